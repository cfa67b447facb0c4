"""A grid of both knobs, predicted everywhere and measured where it pays; on disk, cell by cell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..scheduler.policies import load_policy
from ..sim.cost.profile import Profile, load_profile
from ..sim.wording import first_problem
from .cells import predict_cells
from .errors import ExperimentError
from .grid import Cell, CellResult, best_of, cells, cells_to_measure, default_cell, nearly_best
from .halving import halve
from .intervals import MIN_SEEDS, over_seeds
from .pool import Backend, Pool, check_backend, open_pool
from .preflight import check_ready
from .replay import check_measurable, check_profile, open_profile
from .run import SUMMARY_ONLY, Run, load_run, read_head, write_whole, writing
from .scenario import Scenario

FORMAT = 1
NOT_MEASURED = "not_measured.json"
Progress = Callable[[str, int, int], None]
"""``(what, done, total)``."""
OBJECTIVES = ("output_throughput", "request_throughput", "total_token_throughput", "request_goodput")
"""Metrics that may be maximised."""


class SweepSpec(BaseModel):
    """What a sweep is asked for: the same spec may be resumed, another may not be mixed in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    scenario: Scenario
    policies: tuple[str, ...]
    max_num_seqs: tuple[int, ...]
    max_num_batched_tokens: tuple[int, ...]
    objective: str = "output_throughput"
    trace_digest: str
    profile_hash: str
    num_seeds: int = Field(1, ge=1)
    """Seeds of a drawn trace that every cell is predicted with; 1 for a recorded one."""
    search: bool = False
    """Whether cells may be left out by successive halving."""
    bare: bool = False
    """Whether the cells have their metrics only: no null baselines, no interval, no load, no further seed."""

    @property
    def cells(self) -> list[Cell]:
        """The grid, and vLLM's default for each policy if it is not on it."""
        grid, default = self.grid, default_cell(self.scenario)
        return grid + [c for p in self.policies if (c := default._replace(policy=p)) not in grid]

    @property
    def grid(self) -> list[Cell]:
        """What was asked for."""
        return cells(self.policies, self.max_num_seqs, self.max_num_batched_tokens)


class Sweep:
    """A sweep's folder: ``sweep.json``, ``profile.json``, ``cells/<cell>/predicted.json`` and, where measured,
    ``cells/<cell>/measured-<repeat>/`` (a whole run each). Every finished cell is there at once.
    """

    def __init__(self, folder: Path, spec: SweepSpec, profile: Profile) -> None:
        self.folder = folder
        self.spec = spec
        self.profile = profile

    def predicted(self) -> list[CellResult]:
        """Every cell predicted so far, in grid order."""
        return [result for cell in self.spec.cells if (result := self._load(cell)) is not None]

    def feasible(self) -> list[CellResult]:
        """Those that can work."""
        return [result for result in self.predicted() if result.status == "ok"]

    def best(self, policy: str) -> CellResult | None:
        """The predicted best cell of a policy by the sweep's objective; ties go to the smaller knobs."""
        mine = [result for result in self.feasible() if result.cell.policy == policy]
        return best_of(mine, self.spec.objective) if mine else None

    def measured(self, cell: Cell) -> list[Run]:
        """The cell's measured runs, in order of repeat; an imported one has no records and is not among them."""
        heads = {folder: read_head(folder / "run.json", FORMAT) for folder in self._measured_folders(cell)}
        return [load_run(folder) for folder, head in heads.items() if not head.get(SUMMARY_ONLY)]

    def measured_metrics(self, cell: Cell) -> list[dict[str, float]]:
        """The metrics of the cell's measured runs, without reading their records. An imported run has only those that
        its source printed; one of ours that lacks some is broken, which raises ``ExperimentError``.
        """
        heads = {folder: read_head(folder / "run.json", FORMAT, "metrics") for folder in self._measured_folders(cell)}
        for folder, head in heads.items():
            if not head.get(SUMMARY_ONLY) and self.spec.objective not in head["metrics"]:
                raise ExperimentError(
                    f"{folder / 'run.json'} lacks {self.spec.objective}: delete its folder and run again."
                )
        return [head["metrics"] for head in heads.values()]

    def measured_cells(self) -> list[Cell]:
        """Cells with at least one measured run."""
        return [cell for cell in self.spec.cells if self._measured_folders(cell)]

    def predict(self, *, workers: int = 1, backend: Backend = "loky", progress: Progress | None = None) -> None:
        """Predict every cell that is not there yet or failed before, ``workers`` at a time; each is written as it
        finishes. With ``search`` in the spec some are left out, each with its reason.
        """
        missing = [cell for cell in self.spec.cells if (got := self._load(cell)) is None or got.status == "failed"]
        report = _counter(progress, len(self.spec.cells) - len(missing), len(self.spec.cells))
        with open_pool(backend, workers) as pool:
            if self.spec.search and missing:
                skipped = self._search(pool)
                for cell in (cell for cell in missing if cell in skipped):
                    self._store(CellResult(cell, "skipped", skipped[cell], 0, {}, {}))
                    report()
                missing = [cell for cell in missing if cell not in skipped]
            with closing(
                predict_cells(
                    missing,
                    self.spec.scenario,
                    self.profile,
                    pool,
                    num_seeds=self.spec.num_seeds,
                    bare=self.spec.bare,
                )
            ) as results:
                for result in results:
                    self._store(result)
                    report()

    def _search(self, pool: Pool[CellResult]) -> dict[Cell, str]:
        """Who is left out and why: from ``search.json``, which is written when the last round has ended."""
        path = self.folder / "search.json"
        if not path.exists():
            spec = self.spec
            rungs = halve(spec.grid, spec.scenario, self.profile, spec.objective, pool)
            head = {"format": FORMAT, "rounds": [rung.by_key() for rung in rungs]}
            write_whole(path, json.dumps(head, indent=1) + "\n")
        rounds = read_head(path, FORMAT, "rounds")["rounds"]
        why = {key: reason for row in rounds for key, reason in row["skipped"].items()}
        return {cell: why[cell.key] for cell in self.spec.grid if cell.key in why}

    def measure(self, k: int | None, *, repeats: int = 1, progress: Progress | None = None) -> None:
        """Measure all feasible cells, or a designed subset of at least ``k``; repeats are interleaved (every cell
        once, then every cell again). Cells measured before are not measured again.
        """
        check_ready(self.spec.scenario.model, self.spec.scenario.device)
        from .measure import Device, OutOfMemory

        plan = [
            (cell, self._cell_folder(cell) / f"measured-{repeat}")
            for repeat in range(repeats)
            for cell in self.to_measure(k)
        ]
        missing = [(cell, folder) for cell, folder in plan if not (folder / "run.json").exists()]
        device = Device.of(self.spec.scenario) if missing else None
        for done, (cell, folder) in enumerate(missing, len(plan) - len(missing)):
            if progress:
                progress(f"measuring {cell.max_num_seqs} × {cell.max_num_batched_tokens}", done, len(plan))
            assert device is not None
            try:
                device.measure(cell.of(self.spec.scenario)).save(folder)
            except OutOfMemory as error:  # of this cell: smaller ones may still fit
                self._refuse(cell, str(error))
            else:
                (self._cell_folder(cell) / NOT_MEASURED).unlink(missing_ok=True)
        if progress:
            progress("measuring", len(plan), len(plan))

    def not_measured(self) -> dict[Cell, str]:
        """Cells whose measurement the device had no memory for, with the reason; they are tried again when asked."""
        paths = {cell: self._cell_folder(cell) / NOT_MEASURED for cell in self.spec.cells}
        return {cell: read_head(path, FORMAT, "reason")["reason"] for cell, path in paths.items() if path.exists()}

    def _refuse(self, cell: Cell, reason: str) -> None:
        head = {"format": FORMAT, "reason": reason}
        write_whole(self._cell_folder(cell) / NOT_MEASURED, json.dumps(head, indent=1) + "\n")

    def to_measure(self, k: int | None) -> list[Cell]:
        """Which cells ``measure(k)`` takes."""
        feasible = [result.cell for result in self.feasible()]
        if k is None or not feasible:
            return feasible
        named: list[Cell] = []
        for policy in self.spec.policies:
            mine = [result for result in self.feasible() if result.cell.policy == policy]
            if mine:
                named.append(best_of(mine, self.spec.objective).cell)
                means = [result._replace(metrics=over_seeds(result)) for result in mine]
                named.append(nearly_best(means, self.spec.objective).cell)  # what recommend says
        best = list(dict.fromkeys(named))
        return cells_to_measure(feasible, self.spec.grid, best, default_cell(self.spec.scenario), k)

    def _cell_folder(self, cell: Cell) -> Path:
        return self.folder / "cells" / cell.key

    def _measured_folders(self, cell: Cell) -> list[Path]:
        found = [path.parent for path in self._cell_folder(cell).glob("measured-*/run.json")]
        repeats = {path: path.name.removeprefix("measured-") for path in found}
        return sorted((path for path in found if repeats[path].isdigit()), key=lambda path: int(repeats[path]))

    def _load(self, cell: Cell) -> CellResult | None:
        path = self._cell_folder(cell) / "predicted.json"
        if not path.exists():
            return None
        required = [name for name in CellResult._fields if name not in CellResult._field_defaults]
        raw = read_head(path, FORMAT, *required)
        return CellResult(**{name: raw[name] for name in CellResult._fields if name in raw})._replace(cell=cell)

    def _store(self, result: CellResult) -> None:
        path = self._cell_folder(result.cell) / "predicted.json"
        write_whole(path, json.dumps({"format": FORMAT, **result._asdict()}, indent=1) + "\n")


def _counter(progress: Progress | None, done: int, total: int) -> Callable[[], None]:
    """Reports what is done already, and one more at every call."""
    counts = iter(range(done, total + 1))

    def report() -> None:
        count = next(counts)
        if progress:
            progress("predicting", count, total)

    report()
    return report


def sweep(
    folder: str | Path,
    scenario: Scenario,
    profile: Profile | str | Path,
    *,
    max_num_seqs: Sequence[int],
    max_num_batched_tokens: Sequence[int],
    policies: Sequence[str] | None = None,
    objective: str | None = None,
    measure: int | Literal["all"] | None = None,
    repeats: int = 1,
    seeds: int = MIN_SEEDS,
    workers: int = 1,
    backend: Backend = "loky",
    search: bool = False,
    bare: bool = False,
    progress: Progress | None = None,
) -> Sweep:
    """Predict a grid, and measure ``measure`` cells of it (a number, ``"all"`` or None). Requests that are drawn (a
    generator, a client's arrivals) are predicted with ``seeds`` seeds, measured with the first. ``backend`` says where
    the predictions run, and changes no byte; with ``search`` cells that cannot matter are left out (``halve``), and
    ``bare`` cells have nothing beside their metrics: one replay each instead of six, or eight with three seeds.

    What ``folder`` already holds of this very sweep is kept and not computed again. Raises ``BatchTwinError`` or
    ``TraceError`` for bad input; an infeasible cell, or one that fails twice, is marked and the sweep goes on.
    """
    for option, count in (("workers", workers), ("repeats", repeats), ("seeds", seeds), ("measure", measure)):
        if isinstance(count, int) and count < 1:
            raise ExperimentError(f"{option} is {count}, but it must be at least 1.")
    check_backend(backend)
    loaded = open_profile(profile, scenario)
    check_profile(loaded, scenario)
    if measure is not None:
        check_measurable(scenario)
        check_ready(scenario.model, scenario.device)
    spec = SweepSpec(
        scenario=scenario,
        policies=tuple(dict.fromkeys(policies or (scenario.policy,))),
        max_num_seqs=tuple(sorted(set(max_num_seqs))),
        max_num_batched_tokens=tuple(sorted(set(max_num_batched_tokens))),
        objective=_objective(objective, scenario),
        trace_digest=scenario.trace.load().digest(),
        profile_hash=loaded.hash(),
        num_seeds=seeds if scenario.trace.is_drawn and not bare else 1,
        search=search,
        bare=bare,
    )
    for policy in spec.policies:
        load_policy(policy)
    made = _create_or_resume(Path(folder), spec, loaded)
    made.predict(workers=workers, backend=backend, progress=progress)
    if measure is not None:
        made.measure(None if measure == "all" else measure, repeats=repeats, progress=progress)
    return made


def open_sweep(folder: str | Path) -> Sweep:
    """Open a sweep on disk. Raises ``ExperimentError`` if it is none, broken, or of another version."""
    folder = Path(folder)
    head = read_head(folder / "sweep.json", FORMAT)
    try:
        spec = SweepSpec.model_validate(head)
    except ValidationError as error:
        raise ExperimentError(f"{folder / 'sweep.json'} is broken: {first_problem(error, SweepSpec)}.") from error
    return Sweep(folder, spec, load_profile(folder / "profile.json"))


def _objective(asked: str | None, scenario: Scenario) -> str:
    """What to maximise. Raises ``ExperimentError`` if that is no metric of these runs."""
    if asked is None:
        return "request_goodput" if scenario.slo else "output_throughput"
    if asked not in OBJECTIVES:
        raise ExperimentError(f"There is no objective {asked!r}; known are {', '.join(OBJECTIVES)}.")
    if asked == "request_goodput" and not scenario.slo:
        raise ExperimentError("The objective request_goodput needs an SLO: give one, such as ttft_ms=500.")
    return asked


def _create_or_resume(folder: Path, spec: SweepSpec, profile: Profile) -> Sweep:
    if (folder / "sweep.json").exists():
        found = open_sweep(folder)
        if found.spec != spec:
            raise ExperimentError(
                f"{folder} holds another sweep ({_difference(found.spec, spec)} differs): choose another folder."
            )
        return found
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        profile.save(folder / "profile.json")
    write_whole(folder / "sweep.json", spec.model_dump_json(indent=2) + "\n")
    return Sweep(folder, spec, profile)


def _difference(one: SweepSpec, other: SweepSpec) -> str:
    a, b = dict(_leaves(one.model_dump())), dict(_leaves(other.model_dump()))
    return next((name for name in a if a[name] != b.get(name)), "something")


def _leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, dict):
            yield from _leaves(item, f"{prefix}{name}.")
        else:
            yield prefix + name, item

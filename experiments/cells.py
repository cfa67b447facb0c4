"""Predicting cells in workers: what goes wrong in one is its own result, never the sweep's end."""

from __future__ import annotations

import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from ..scheduler.errors import BatchTwinError
from ..sim.cost.profile import Profile
from .grid import Cell, CellResult, Status
from .intervals import both_ends, other_seeds
from .load import offered_load
from .pool import Job, Pool
from .replay import predict
from .run import Run
from .scenario import Scenario
from .timeline import timeline

NULLS = ("constant", "roofline_affine")
"""Baselines that every sweep predicts as well, so that what the fitted law adds can be seen."""
DIED = "the worker process died (killed, or out of memory)"


def predict_cells(
    cells: Sequence[Cell],
    scenario: Scenario,
    profile: Profile,
    pool: Pool[CellResult],
    *,
    num_seeds: int = 1,
    bare: bool = False,
) -> Generator[CellResult, None, None]:
    """The result of every cell, as it finishes; to be closed. ``bare``: its metrics and nothing beside them. A cell
    that raises what it should not, or whose worker dies, is tried once more by itself, and then reported as failed
    with its reason.

    A worker that dies takes those of its neighbours with it: every cell that had been handed out and is not finished
    is tried again, so that only the guilty one fails.
    """
    asked = (scenario, profile, num_seeds, bare)
    left = list(cells)
    again: list[Cell] = []
    while left:
        handed_out: list[Cell] = []
        finished: set[Cell] = set()
        with closing(pool.results(_jobs(left, handed_out, asked))) as results:
            for result in results:
                finished.add(result.cell)
                if result.status == "failed":
                    again.append(result.cell)
                else:
                    yield result
        again += [cell for cell in handed_out or left if cell not in finished]
        left = left[len(handed_out) :] if handed_out else []
    for cell in again:
        yield _once_more(cell, asked, pool)


_Asked = tuple[Scenario, Profile, int, bool]


def _jobs(cells: Sequence[Cell], handed_out: list[Cell], asked: _Asked) -> Iterator[Job[CellResult]]:
    for cell in cells:
        handed_out.append(cell)
        yield predict_cell, (cell, *asked)


def _once_more(cell: Cell, asked: _Asked, pool: Pool[CellResult]) -> CellResult:
    with closing(pool.results(_jobs([cell], [], asked))) as results:
        result = next(results, None) or _without_metrics(cell, "failed", DIED)
    if result.status == "failed":
        return result._replace(reason=f"Failed twice: {result.reason}.")
    return result


def predict_cell(
    cell: Cell, scenario: Scenario, profile: Profile, num_seeds: int = 1, bare: bool = False
) -> CellResult:
    """One cell in this process. An error that is meant for the user makes it infeasible, any other failed."""
    try:
        own = cell.of(scenario)
        run = predict(own, profile)
        result = CellResult(cell, "ok", "", run.num_gpu_blocks, run.metrics, {})
        return result if bare else _with_all_beside(result, own, profile, num_seeds, run)
    except BatchTwinError as error:
        return _without_metrics(cell, "infeasible", str(error))
    except Exception as error:  # noqa: BLE001  (reported as the cell's own)
        return _without_metrics(cell, "failed", in_words(error))


def _with_all_beside(result: CellResult, own: Scenario, profile: Profile, num_seeds: int, run: Run) -> CellResult:
    """The null baselines, the load, both ends of the interval, the other seeds."""
    low, high = both_ends(own, profile, run.metrics)
    return result._replace(
        metrics=run.metrics | offered_load(own, profile),
        nulls={name: predict(own, profile, profile.null(name)).metrics for name in NULLS},
        low=low,
        high=high,
        seeds=other_seeds(own, profile, num_seeds),
        timeline=timeline(run.records, run.num_gpu_blocks - 1),
    )


def _without_metrics(cell: Cell, status: Status, reason: str) -> CellResult:
    return CellResult(cell, status, reason, 0, {}, {})


def in_words(error: BaseException) -> str:
    """On one line, with the place in the code: file names alone, so that it is the same on every machine."""
    while error.__cause__ is not None:  # SimPy raises a copy that knows only where SimPy is
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return " ".join(f"{type(error).__name__}{where}: {error}".split())

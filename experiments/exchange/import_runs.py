"""Somebody's measured runs into a results folder, beside predictions of the same cells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...sim.cost.profile import Profile
from ...traces import Trace, read_trace, write_vidur_csv
from ..errors import ExperimentError
from ..grid import Cell
from ..provenance import provenance
from ..run import SUMMARY_ONLY, read_head, write_whole, writing
from ..scenario import Scenario, make_scenario
from ..sweep import FORMAT, Progress, Sweep, sweep
from .checks import check_row
from .measured_row import Flag, MeasuredRow
from .sources import read_sources
from .workloads import Group, group_rows, server_fields, trace_of, with_lengths

TRACE_FILE = "trace.csv"


@dataclass(frozen=True, slots=True)
class Checked:
    """A row and everything found wrong with it."""

    row: MeasuredRow
    flags: tuple[Flag, ...]

    @property
    def is_possible(self) -> bool:
        """Whether it may be taken for a measurement."""
        return not any(flag.impossible for flag in self.flags)


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import found and wrote."""

    rows: tuple[Checked, ...]
    left_out: tuple[str, ...]
    sweeps: tuple[Sweep, ...] = ()
    """One a workload; empty if nothing was to be written."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Missing:
    """What a file does not say and its owner knows."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    num_prompts: int | None = None


def check_runs(paths: Sequence[str | Path], missing: Missing | None = None) -> Imported:
    """Read and check runs without writing anything. Raises ``ExperimentError`` if there is none."""
    given = missing or Missing()
    found = read_sources(paths)
    rows = [_filled(row, given) for row in found.rows]
    return Imported(tuple(Checked(row, check_row(row)) for row in rows), found.left_out)


def import_runs(
    paths: Sequence[str | Path],
    folder: str | Path,
    profile: Profile,
    *,
    missing: Missing | None = None,
    fields: Mapping[str, Any] | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Imported:
    """Read, check and store runs, and predict their cells from ``profile``; ``fields`` are those of a scenario, and
    stand above what the files say. Several workloads go to a folder each within ``folder``.

    A row that cannot be true is not stored. Raises ``ExperimentError`` if none is left, or one lacks its knobs.
    """
    checked = check_runs(paths, missing)
    rows = [item.row for item in checked.rows if item.is_possible]
    if not rows:
        raise ExperimentError(f"None of the {len(checked.rows)} runs can be true; the first, {_why(checked.rows[0])}")
    for row in rows:
        _check_knobs(row)
    groups = group_rows(rows)
    sweeps, notes = [], []
    for group in groups:
        home = Path(folder) if len(groups) == 1 else Path(folder) / group.label(groups)
        made, said = _store(group, home, profile, fields or {}, workers, progress)
        sweeps.append(made)
        notes += [f"{home}: {note}" for note in said]
    return Imported(checked.rows, checked.left_out, tuple(sweeps), tuple(dict.fromkeys(notes)))


def _filled(row: MeasuredRow, given: Missing) -> MeasuredRow:
    own = with_lengths(row, given.input_len, given.output_len, given.num_prompts)
    return replace(
        own,
        max_num_seqs=own.max_num_seqs or given.max_num_seqs,
        max_num_batched_tokens=own.max_num_batched_tokens or given.max_num_batched_tokens,
    )


def _why(item: Checked) -> str:
    return f"{item.row.source}: {next(flag.text for flag in item.flags if flag.impossible)}."


def _check_knobs(row: MeasuredRow) -> None:
    for knob in ("max_num_seqs", "max_num_batched_tokens"):
        if getattr(row, knob) is None:
            raise ExperimentError(
                f"{row.source} does not say {knob}, which the client cannot know: give --{knob.replace('_', '-')} (or "
                f"record it with vllm bench serve --metadata {knob}=…)."
            )


def _store(
    group: Group, home: Path, profile: Profile, fields: Mapping[str, Any], workers: int, progress: Progress | None
) -> tuple[Sweep, list[str]]:
    trace, notes = trace_of(group.first.workload)
    scenario = _scenario(group.first, trace, home / TRACE_FILE, profile, fields, notes)
    _write_trace(trace, home)
    cells = [_cell(scenario, row) for row in group.rows]
    made = sweep(
        home,
        scenario,
        profile,
        max_num_seqs=[cell.max_num_seqs for cell in cells],
        max_num_batched_tokens=[cell.max_num_batched_tokens for cell in cells],
        objective=_objective(group.rows),
        workers=workers,
        progress=progress,
    )
    for cell, row in zip(cells, group.rows, strict=True):
        _store_row(made, cell, row)
    return made, notes


def _cell(scenario: Scenario, row: MeasuredRow) -> Cell:
    assert row.max_num_seqs is not None
    assert row.max_num_batched_tokens is not None
    return Cell(scenario.policy, row.max_num_seqs, row.max_num_batched_tokens)


def _objective(rows: Sequence[MeasuredRow]) -> str:
    """Output tokens per second, or requests where some run does not print them (auto_tune)."""
    has_output = all("output_throughput" in row.metrics for row in rows)
    return "output_throughput" if has_output else "request_throughput"


def _scenario(
    row: MeasuredRow, trace: Trace, path: Path, profile: Profile, fields: Mapping[str, Any], notes: list[str]
) -> Scenario:
    """The scenario that the record and its owner describe; a KV pool that nobody states is one that never binds."""
    model, device = profile.model, profile.device
    own: dict[str, Any] = {
        "model": model.name,
        "dtype": model.dtype,
        "device": device.type,
        "threads": device.threads if device.type == "cpu" else None,
        "block_size": profile.block_size,
        "max_model_len": model.max_model_len,
        "max_concurrency": row.workload.max_concurrency,
        **server_fields(row),
        **fields,
    }
    if own.get("num_gpu_blocks") is None and own.get("kv_memory_bytes") is None:
        own["num_gpu_blocks"] = _ample_blocks(trace, own["block_size"])
        notes.append("KV blocks are not known, so the predicted pool never runs out (give --num-gpu-blocks)")
    if row.model and row.model != model.name:
        notes.append(f"the runs are of {row.model}, the profile of {model.name}")
    return make_scenario(trace={"source": str(path)}, **own)


def _ample_blocks(trace: Trace, block_size: int) -> int:
    """Blocks for every request at once, and the null block."""
    lengths = trace.num_prompt_tokens + trace.output_len
    return int((-(-lengths // block_size)).sum()) + 1


def _write_trace(trace: Trace, home: Path) -> None:
    """Beside the results, unless another stands there."""
    path = home / TRACE_FILE
    with writing(home):
        home.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if read_trace(path) != trace:
            raise ExperimentError(f"{home} holds results of another workload: choose another folder.")
        return
    write_vidur_csv(trace, path)


def _store_row(made: Sweep, cell: Cell, row: MeasuredRow) -> None:
    """As the cell's next measured run, a summary without records; one that is there already is not written again."""
    digest = hashlib.sha256(json.dumps([row.source, dict(row.metrics)], sort_keys=True).encode()).hexdigest()[:16]
    taken = made.folder / "cells" / cell.key
    heads = sorted(taken.glob("measured-*/run.json"))
    if any(read_head(path, FORMAT, "provenance")["provenance"].get("source_digest") == digest for path in heads):
        return
    folder = taken / f"measured-{len(heads)}"
    scenario = cell.of(made.spec.scenario)
    about = {"imported_from": row.source, "source_digest": digest, "model": row.model}
    head = {
        "format": FORMAT,
        "kind": "measured",
        SUMMARY_ONLY: True,
        "num_gpu_blocks": scenario.num_gpu_blocks,
        "metrics": dict(row.metrics),
        "flags": [flag.text for flag in check_row(row)],
        "provenance": provenance() | about | dict(row.settings),
    }
    write_whole(folder / "scenario.json", scenario.model_dump_json(indent=2) + "\n")
    write_whole(folder / "run.json", json.dumps(head, indent=2) + "\n")

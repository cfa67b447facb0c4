"""Results of ours in the formats of other tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from ...traces import write_vidur_csv
from ..errors import ExperimentError
from ..open_run import open_run
from ..run import Run, write_whole, writing
from ..scenario import Scenario, load_scenario
from ..sweep import Sweep, open_sweep
from .bench_record import detailed_record, write_sweep_folder
from .fpm_table import write_fpm
from .serve_command import serve_command

FORMATS = ("bench", "vidur", "fpm", "serve")


def export(folder: Path, output: Path | None, form: str) -> Iterator[str]:
    """Write a sweep or a run as ``form`` says and yield lines for the terminal. Raises ``ExperimentError``."""
    if form not in FORMATS:
        raise ExperimentError(f"There is no format {form!r}; known are {', '.join(FORMATS)}.")
    is_sweep = (folder / "sweep.json").exists()
    if form == "serve":
        yield from _commands(_sweep(folder, form), output)
        return
    if output is None:
        raise ExperimentError(f"--format {form} needs a place: give it with -o.")
    if form == "vidur":
        scenario = open_sweep(folder).spec.scenario if is_sweep else _scenario(folder)
        yield _write_trace(scenario, output)
    elif form == "fpm":
        if is_sweep:
            raise ExperimentError(
                f"{folder} is a sweep, but an FPM table is of one run: give one of its cells or measured runs."
            )
        yield f"Wrote {write_fpm(open_run(folder), output):,} rows to {output}"
    elif is_sweep:
        count = write_sweep_folder(open_sweep(folder), output)
        yield f"Wrote {count} predicted cells to {output}: vllm bench sweep plot {output} opens them"
    else:
        yield _write_record(open_run(folder), output)


def _sweep(folder: Path, form: str) -> Sweep:
    if not (folder / "sweep.json").exists():
        raise ExperimentError(f"--format {form} needs a sweep's folder, and {folder} is none.")
    return open_sweep(folder)


def _scenario(folder: Path) -> Scenario:
    if not (folder / "scenario.json").exists():
        raise ExperimentError(f"{folder} holds neither a sweep nor a run: give the folder of one.")
    return load_scenario(folder / "scenario.json")


def _commands(sweep: Sweep, output: Path | None) -> Iterator[str]:
    lines = [serve_command(sweep.spec.scenario, result) for result in sweep.feasible()]
    if output is None:
        yield from lines
        return
    write_whole(output, "\n".join(lines) + "\n")
    yield f"Wrote {len(lines)} commands to {output}"


def _write_trace(scenario: Scenario, output: Path) -> str:
    trace = scenario.trace.load()
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    write_vidur_csv(trace, output)
    return f"Wrote {len(trace):,} requests to {output}"


def _write_record(run: Run, output: Path) -> str:
    write_whole(output, json.dumps(detailed_record(run), indent=4) + "\n")
    return f"Wrote a {run.kind} run of {run.metrics['completed']:,} requests to {output}"

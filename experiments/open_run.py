"""The run that a folder stands for: one that lies there, or the prediction of a sweep's cell, replayed."""

from __future__ import annotations

from pathlib import Path

from .errors import ExperimentError
from .grid import Cell
from .replay import predict
from .run import Run, load_run
from .sweep import Sweep, open_sweep


def open_run(folder: str | Path) -> Run:
    """The run in ``folder``; of a sweep's cell (``cells/<cell>``) its prediction. Raises ``ExperimentError`` if it is
    neither, and whatever ``predicted_run`` raises.
    """
    folder = Path(folder)
    if (folder / "predicted.json").exists():
        sweep = open_sweep(folder.resolve().parents[1])
        return predicted_run(sweep, _cell(sweep, folder.resolve().name))
    if (folder / "sweep.json").exists():
        cell = open_sweep(folder).spec.cells[0]
        raise ExperimentError(f"{folder} is a sweep: give one of its cells, such as {folder / 'cells' / cell.key}.")
    return load_run(folder)


def predicted_run(sweep: Sweep, cell: Cell) -> Run:
    """A cell's replay with all its records: a sweep keeps only its metrics, so it is predicted again (the same bytes).
    Raises ``BatchTwinError`` if the cell cannot work, ``TraceError`` if the trace cannot be read, and
    ``ExperimentError`` if it is another one now.
    """
    scenario = cell.of(sweep.spec.scenario)
    if scenario.trace.load().digest() != sweep.spec.trace_digest:
        raise ExperimentError(
            f"The trace {scenario.trace.source} has changed since {sweep.folder} was predicted: put the old one back, "
            f"or predict again into a new folder."
        )
    return predict(scenario, sweep.profile)


def _cell(sweep: Sweep, key: str) -> Cell:
    found = [cell for cell in sweep.spec.cells if cell.key == key]
    if not found:
        raise ExperimentError(f"{key} is no cell of the sweep in {sweep.folder}: give a folder that the sweep wrote.")
    return found[0]

"""What the all-reduces of a tensor-parallel group take, from a table of their times by size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from .csv_table import FloatArray, Table, TableError, read_csv
from .lines import Line

PER_LAYER = 2
"""After attention and after the MLP."""
PER_PASS = 1
"""After the embedding, whose rows are split over the group. Source: vLLM's ``VocabParallelEmbedding``."""
NAMES = ("all_reduce", "allreduce")


def find_all_reduce(*folders: Path) -> Path | None:
    """The first file in ``folders`` that is named after all-reduces."""
    for folder in folders:
        files = sorted(folder.glob("*.csv")) if folder.is_dir() else []
        found = next((path for path in files if any(name in path.stem.lower() for name in NAMES)), None)
        if found is not None:
            return found
    return None


def read_all_reduce(path: Path, tensor_parallel: int, hidden_size: int) -> Line:
    """Seconds of one all-reduce of [T, hidden_size] 16-bit activations over ``tensor_parallel`` GPUs, by T.

    Read are AIConfigurator's columns (``message_size`` in elements, ``latency`` in ms), Vidur's (``size`` in bytes,
    ``time_stats.all_reduce.*`` in ms) and plain ones (``tokens`` or ``bytes`` and ``time_us``). Raises ``TableError``
    if there is no row for that group.
    """
    table = read_csv(path)
    elements, seconds = _sizes_and_times(table, hidden_size)
    kept = _of_group(table, tensor_parallel)
    if not kept.any():
        raise TableError(f"{path} has no all-reduce over {tensor_parallel} GPUs.")
    backends = table.text("backend") if "backend" in table else [""] * table.num_rows
    graph = np.array(["graph" in name and "no" not in name for name in backends])
    if (kept & graph).any():  # decode steps run in CUDA graphs, where launches cost nothing
        kept &= graph
    points: dict[float, float] = {}
    for size, time in zip((elements[kept] / hidden_size).tolist(), seconds[kept].tolist(), strict=True):
        points[size] = min(points.get(size, time), time)  # a server takes the faster implementation
    return Line(points.items())


def _sizes_and_times(table: Table, hidden_size: int) -> tuple[FloatArray, FloatArray]:
    readers: tuple[tuple[str, str, Callable[[FloatArray], FloatArray], float], ...] = (
        ("message_size", "latency", lambda size: size, 1e-3),
        ("size", "time_stats.all_reduce.median", lambda size: size / 2, 1e-3),
        ("bytes", "time_us", lambda size: size / 2, 1e-6),
        ("tokens", "time_us", lambda size: size * hidden_size, 1e-6),
    )
    for size, time, to_elements, unit in readers:
        if size in table and time in table:
            return to_elements(table.numbers(size)), table.numbers(time) * unit
    raise TableError(
        f"{table.path} has none of the columns of an all-reduce table: message_size and latency, size and "
        f"time_stats.all_reduce.median, or bytes (or tokens) and time_us."
    )


def _of_group(table: Table, tensor_parallel: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    for name in ("num_gpus", "num_workers", "tensor_parallel", "tp"):
        if name in table:
            return np.asarray(table.numbers(name) == tensor_parallel)
    return np.ones(table.num_rows, dtype=np.bool_)

"""Operator times in AIConfigurator's layout: ``gemm``, ``context_attention``, ``generation_attention`` and
``allreduce`` tables, CSV or Parquet, milliseconds of one call on one GPU.

Source of the layout: NVIDIA's ``aiconfigurator-core``, ``systems/data``. Kernels alone: norms, activation, rotation
and sampler are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .csv_table import FloatArray, Table, TableError, read_csv
from .grid import PointTable
from .operator_table import AttentionLoad

DTYPES = ("bfloat16", "float16")
SUFFIXES = (".parquet", ".csv")


@dataclass(frozen=True, slots=True)
class Heads:
    """What attention of one rank looks like."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int


class Gemm:
    """Seconds of an m × k by k × n product, between the shapes measured: the time is close to bilinear in n and k."""

    def __init__(self, table: Table) -> None:
        kept = _of_dtype(table, "gemm_dtype")
        m, n, k = (table.numbers(name)[kept] for name in ("m", "n", "k"))
        points = np.column_stack((k, n, m)).tolist()
        self._times = PointTable(
            zip(points, (table.numbers("latency")[kept] * 1e-3).tolist(), strict=True), ("linear",) * 3
        )
        self.tokens = sorted(set(m.tolist()))

    def __call__(self, n: float, k: float, m: float) -> float:
        """At m tokens."""
        return self._times(k, n, m)

    def reaches(self, n: float, k: float) -> bool:
        """Whether the shape lies within those measured."""
        return self._times.reaches(k, n, 1.0)


@dataclass(frozen=True, slots=True)
class KernelAttention:
    """Attention of one rank. Prompts were measured from their start: a chunk behind a context takes what the prompt up
    to its end takes less what the context alone takes.
    """

    num_layers: int
    decode: PointTable
    prefill: PointTable
    """By (prompts, tokens)."""

    def seconds(self, load: AttentionLoad) -> float:
        """Over all layers."""
        once = self.decode(load.num_decodes, load.mean_kv) if load.num_decodes else 0.0
        if load.chunk:
            whole = self.prefill(1.0, load.chunk + load.chunk_start)
            floor = self.prefill(1.0, load.chunk)
            before = self.prefill(1.0, load.chunk_start) if load.chunk_start >= 1.0 else 0.0
            once += max(whole - before, floor)
        return self.num_layers * once

    def reaches(self, load: AttentionLoad) -> bool:
        """Whether both tables go as far."""
        return (not load.num_decodes or self.decode.reaches(load.num_decodes, load.mean_kv)) and (
            not load.chunk or self.prefill.reaches(1.0, load.chunk + load.chunk_start)
        )


def is_aiconfigurator(folder: Path) -> bool:
    """Whether ``folder`` holds such tables."""
    return find_table(folder, "gemm") is not None


def find_table(folder: Path, name: str) -> Path | None:
    """``gemm.csv``, ``gemm_perf.parquet``, …"""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    stems = (name, f"{name}_perf", f"custom_{name}_perf", f"custom_{name}")
    return next((path for suffix in SUFFIXES for path in files if path.stem in stems and path.suffix == suffix), None)


def read_table(folder: Path, name: str, required: tuple[str, ...]) -> Table:
    """Raises ``TableError`` if ``folder`` lacks it or it cannot be read."""
    path = find_table(folder, name)
    if path is None:
        raise TableError(f"{folder} lacks a {name} table ({name}.csv or {name}_perf.parquet).")
    if path.suffix == ".csv":
        return read_csv(path, required)
    return _read_parquet(path, required)


def read_attention(folder: Path, heads: Heads, num_layers: int) -> KernelAttention:
    """Attention of ranks with these heads. Raises ``TableError`` if they were not measured."""
    prefill = read_table(folder, "context_attention", ("batch_size", "isl", "latency"))
    decode = read_table(folder, "generation_attention", ("batch_size", "step", "latency"))
    return KernelAttention(num_layers, decode_points(decode, heads), prefill_points(prefill, heads))


def prefill_points(table: Table, heads: Heads) -> PointTable:
    """Seconds of one layer by (prompts, tokens), nothing cached. Raises ``TableError`` if the heads are not there."""
    kept = _of_heads(table, heads) & (table.numbers("step", default=0.0) == 0)
    return _points(table, ("batch_size", "isl"), kept, heads)


def decode_points(table: Table, heads: Heads) -> PointTable:
    """Seconds of one layer by (sequences, context)."""
    return _points(table, ("batch_size", "step"), _of_heads(table, heads), heads)


def _points(table: Table, axes: tuple[str, str], kept: NDArray[np.bool_], heads: Heads) -> PointTable:
    kept = kept & _of_dtype(table, "attn_dtype") & _of_dtype(table, "kv_cache_dtype")
    if "window_size" in table:
        kept = kept & (table.numbers("window_size", default=0.0) == 0)
    if not kept.any():
        raise TableError(
            f"{table.path} has no rows of {heads.num_q_heads} query and {heads.num_kv_heads} KV heads of "
            f"{heads.head_dim} in 16 bits."
        )
    coordinates = np.column_stack([table.numbers(name)[kept] for name in axes]).tolist()
    seconds = (table.numbers("latency")[kept] * 1e-3).tolist()
    return PointTable(zip(coordinates, seconds, strict=True), ("linear", "linear"))


def _of_heads(table: Table, heads: Heads) -> NDArray[np.bool_]:
    return np.asarray(
        (table.numbers("num_heads") == heads.num_q_heads)
        & (table.numbers("num_key_value_heads") == heads.num_kv_heads)
        & (table.numbers("head_dim", default=float(heads.head_dim)) == heads.head_dim)
    )


def _of_dtype(table: Table, column: str) -> NDArray[np.bool_]:
    if column not in table:
        return np.ones(table.num_rows, dtype=np.bool_)
    return np.array([word in DTYPES for word in table.text(column)])


def _read_parquet(path: Path, required: tuple[str, ...]) -> Table:
    from pyarrow import ArrowException, parquet

    try:
        read = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise TableError(f"{path} is not a Parquet file ({str(error)[:80]}).") from error
    columns = {
        name: ["" if value is None else str(value) for value in read[name].to_pylist()] for name in read.column_names
    }
    table = Table(path, columns, read.num_rows)
    if not read.num_rows:
        raise TableError(f"{path} holds no rows.")
    for name in required:
        table.text(name)
    return table


def kernel_seconds(table: PointTable, coordinates: FloatArray) -> FloatArray:
    """Seconds at [N, axes] coordinates."""
    return np.array([table(*point) for point in coordinates.tolist()])

"""Operator times in Vidur's layout (also Frontier's): ``mlp.csv`` and ``attention.csv``, milliseconds of one layer.

Source of the layout: ``microsoft/vidur``, ``data/profiling``. Prompts and decodes were measured apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..models import HostTerm
from .csv_table import FloatArray, Table, TableError, read_csv
from .grid import PointTable
from .lines import Line, total

ONCE_A_PASS = ("emb",)
ATTENTION = ("attn_prefill", "attn_decode")
RESHAPES = ("attn_input_reshape", "attn_output_reshape")
KV_SAVE = "attn_kv_cache_save"
"""Counted with decodes only: in Frontier's prompt rows it is 0.84 µs a token and layer, some fifty times what writing
those 16 KiB takes the device, and several times the attention itself."""
HOST_PARTS = ("schedule", "sampler_e2e", "prepare_inputs_e2e", "process_model_outputs")


@dataclass(frozen=True, slots=True)
class Shape:
    """The model as a row describes it."""

    hidden_size: int
    num_q_heads: int
    num_kv_heads: int


@dataclass(frozen=True, slots=True)
class MlpTimes:
    """Every operator but attention, by tokens, in seconds of one call, at one tensor-parallel degree."""

    shape: Shape
    operators: dict[str, Line]
    degrees: tuple[int, ...]
    up_weights: float
    """Weights of gate and up together (or of up alone) on one rank."""

    def dense(self, num_layers: int) -> Line:
        """All layers."""
        return total((line, 1 if name in ONCE_A_PASS else num_layers) for name, line in self.operators.items())


def is_vidur(folder: Path) -> bool:
    """Whether ``folder`` holds such files."""
    return (folder / "mlp.csv").is_file()


def read_mlp(path: Path, tensor_parallel: int) -> MlpTimes:
    """Raises ``TableError`` if the degree was not measured."""
    table = read_csv(path, ("num_tokens", "num_tensor_parallel_workers"))
    rows, degrees = _of_degree(table, tensor_parallel)
    tokens = table.numbers("num_tokens")[rows].tolist()
    operators = {}
    for name in _operators(table):
        seconds = _milliseconds(table, name)[rows] * 1e-3
        operators[name] = Line(zip(tokens, seconds.tolist(), strict=True))
    if not operators:
        raise TableError(f"{path} has no column time_stats.<operator>.median or .mean.")
    shape = _shape(table, rows)
    return MlpTimes(shape, operators, degrees, _up_weights(table, rows, shape) / tensor_parallel)


def read_attention(path: Path, tensor_parallel: int, shape: Shape | None = None) -> tuple[PointTable, PointTable]:
    """Decode by (sequences, context) and prompts by (tokens, context before), in seconds of one layer. Raises
    ``TableError`` if the file is of another model's heads, or lacks either kind of row.
    """
    table = read_csv(path, ("is_prefill", "batch_size", "prefill_chunk_size", "kv_cache_size"))
    rows, _ = _of_degree(table, tensor_parallel)
    if shape is not None and _shape(table, rows) != shape:
        found = _shape(table, rows)
        raise TableError(
            f"{path} is of {found.num_q_heads} query and {found.num_kv_heads} KV heads at hidden size "
            f"{found.hidden_size}, the other operators of {shape.num_q_heads}, {shape.num_kv_heads} and "
            f"{shape.hidden_size}: they are not of one model."
        )
    reshapes = sum((_milliseconds(table, name) for name in RESHAPES if _has(table, name)), np.zeros(table.num_rows))
    saves = _milliseconds(table, KV_SAVE) if _has(table, KV_SAVE) else np.zeros(table.num_rows)
    is_prefill = np.array([word.strip().lower() in ("true", "1") for word in table.text("is_prefill")])
    size, chunk, kv = (table.numbers(name) for name in ("batch_size", "prefill_chunk_size", "kv_cache_size"))
    single = is_prefill & (size == 1)
    decode = _points(path, (size, kv), _milliseconds(table, "attn_decode") + reshapes + saves, rows & ~is_prefill)
    prefill = _points(path, (chunk, kv), _milliseconds(table, "attn_prefill") + reshapes, rows & single)
    return decode, prefill


def read_host(path: Path, model: str, tensor_parallel: int) -> HostTerm | None:
    """The host's part of a step of the engine that was measured (synchronous, Python, of 2024), as a line through its
    batch sizes; None if the file has no such model.
    """
    table = read_csv(path, ("model_name", "batch_size", "tensor_parallel_degree"))
    key = model.rsplit("/", 1)[-1].lower()
    names = np.array([name.rsplit("/", 1)[-1].lower() == key for name in table.text("model_name")])
    rows = names & (table.numbers("tensor_parallel_degree") == tensor_parallel)
    if rows.sum() < 2:
        return None
    host_ms = np.zeros(table.num_rows)
    for part in HOST_PARTS:
        host_ms += table.numbers(f"{part}_median")
    per_seq, fixed = np.polyfit(table.numbers("batch_size")[rows], host_ms[rows], 1)
    return HostTerm(max(float(fixed), 0.0) * 1e-3, max(float(per_seq), 0.0) * 1e-3)


def _of_degree(table: Table, tensor_parallel: int) -> tuple[NDArray[np.bool_], tuple[int, ...]]:
    degree = table.numbers("num_tensor_parallel_workers")
    rows = degree == tensor_parallel
    known = tuple(sorted({int(d) for d in degree.tolist()}))
    if not rows.any():
        raise TableError(
            f"{table.path} has no times for tensor_parallel_size {tensor_parallel}: it holds "
            f"{', '.join(str(d) for d in known)}."
        )
    return rows, known


def _shape(table: Table, rows: NDArray[np.bool_]) -> Shape:
    kv = "n_kv_head"
    heads = "n_head" if "n_head" in table else "n_q_head"
    first = int(np.flatnonzero(rows)[0])
    return Shape(*(int(table.numbers(name)[first]) for name in ("n_embd", heads, kv)))


def _up_weights(table: Table, rows: NDArray[np.bool_], shape: Shape) -> float:
    first = int(np.flatnonzero(rows)[0])
    width = float(table.numbers("n_expanded_embd", default=4.0 * shape.hidden_size)[first])
    gated = "use_gated_mlp" in table and table.text("use_gated_mlp")[first].strip().lower() in ("true", "1")
    return (2 if gated else 1) * width * shape.hidden_size


def _operators(table: Table) -> list[str]:
    names = {n.split(".")[1] for n in table.names if n.startswith("time_stats.") and n.count(".") == 2}
    return sorted(name for name in names if name not in ATTENTION and _has(table, name))


def _has(table: Table, name: str) -> bool:
    return f"time_stats.{name}.median" in table or f"time_stats.{name}.mean" in table


def _milliseconds(table: Table, name: str) -> FloatArray:
    statistic = "median" if f"time_stats.{name}.median" in table else "mean"
    return table.numbers(f"time_stats.{name}.{statistic}", default=0.0)


def _points(
    path: Path, axes: tuple[FloatArray, FloatArray], milliseconds: FloatArray, rows: NDArray[np.bool_]
) -> PointTable:
    kept = rows & (milliseconds > 0)
    if not kept.any():
        raise TableError(f"{path} has no rows of decodes, or none of single prompts: both are needed.")
    coordinates = np.column_stack(axes)[kept].tolist()
    return PointTable(zip(coordinates, (milliseconds[kept] * 1e-3).tolist(), strict=True), ("linear", "linear"))

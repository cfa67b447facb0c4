"""A profile from Vidur's (or Frontier's) tables."""

from __future__ import annotations

from pathlib import Path

from ..models import HostTerm
from .additive_attention import AdditiveAttention
from .composed import Operators, TableProfile
from .csv_table import TableError
from .lines import Line, total
from .pieces import Wanted, all_reduces, digest_of, implied_device, model_of
from .vidur import MlpTimes, Shape, read_attention, read_host, read_mlp

HEAD_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def from_vidur(folder: Path, wanted: Wanted) -> TableProfile:
    """Raises ``TableError`` with what is missing."""
    degree = wanted.tensor_parallel or 1
    mlp = read_mlp(folder / "mlp.csv", degree)
    config = model_of(folder, {"model": "/".join(folder.resolve().parts[-2:])}, wanted)
    if (config.hidden_size, config.num_q_heads, config.num_kv_heads) != _sizes(mlp.shape):
        raise TableError(
            f"{folder / 'mlp.csv'} is of hidden size {mlp.shape.hidden_size} with {mlp.shape.num_q_heads} and "
            f"{mlp.shape.num_kv_heads} heads, which is not {config.name}: give the model (--set model=…)."
        )
    path = folder / "attention.csv"
    if not path.is_file():
        raise TableError(f"{folder} lacks attention.csv: an iteration cannot be composed from mlp.csv alone.")
    decode, prefill = read_attention(path, degree, mlp.shape)
    notes = [
        "prompts and decodes of one step add: they were measured apart",
        "writing a prompt's KV is left out: where it was measured it takes far longer than the bytes",
    ]
    dense = [(mlp.dense(config.num_layers), 1.0), *all_reduces(config, degree, (folder, folder.parent), wanted, notes)]
    head = _head(mlp, config.vocab_size * config.hidden_size / degree, notes)
    attention = AdditiveAttention(config.num_layers, decode, prefill)
    operators = Operators(total(dense), attention, head)
    host = _host(folder, config.name, degree, notes)
    return TableProfile(
        source=str(folder),
        layout="Vidur",
        tensor_parallel=degree,
        model=config.facts(),
        device=implied_device(folder.resolve().parents[1].name, config, operators),
        block_size=16,
        operators=operators,
        digest=digest_of([folder / "mlp.csv", path], config, wanted),
        notes=tuple(notes),
        provenance={},
        enforce_eager=wanted.enforce_eager,
        host=host,
    )


def _sizes(shape: Shape) -> tuple[int, int, int]:
    return shape.hidden_size, shape.num_q_heads, shape.num_kv_heads


def _head(mlp: MlpTimes, weights: float, notes: list[str]) -> Line:
    """The layout has no final projection and no sampler: the projection takes as long a weight as the MLP's up
    projection does, measured at as many rows.
    """
    up = mlp.operators.get("mlp_up_proj")
    if up is None:
        notes.append("no final projection, no sampler and no mlp_up_proj to scale: they are left out")
        return Line([(0.0, 0.0)])
    factor = weights / mlp.up_weights
    notes.append(f"no final projection in the tables: {factor:.2f} times mlp_up_proj, by weights; no sampler")
    return Line((rows, factor * up(rows)) for rows in HEAD_ROWS)


def _host(folder: Path, model: str, degree: int, notes: list[str]) -> HostTerm:
    places = (folder, *folder.resolve().parents[:3])
    path = next((place / "cpu_overheads.csv" for place in places if (place / "cpu_overheads.csv").is_file()), None)
    found = None if path is None else read_host(path, model, degree)
    if found is None:
        notes.append("no host times of this model: 0 ms, right only where the host hides behind the device")
        return HostTerm()
    notes.append(
        f"host {1e3 * found.fixed_s:.2f} ms + {1e6 * found.per_seq_s:.0f} µs a sequence from {path}: a synchronous "
        f"engine of 2024; a server of today spends less"
    )
    return found

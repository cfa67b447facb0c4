"""Attention from a table of mixed batches: one chunk of prompt beside some decodes (LLMServingSim)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .csv_table import FloatArray, Table
from .grid import PointTable, Scale
from .operator_table import AttentionLoad
from .skew import Skew

AXES = ("n_decode", "prefill_chunk", "kv_prefill", "kv_decode")
CANDIDATES: tuple[tuple[Scale, ...], ...] = (("linear",) * 4, ("log",) * 4, ("linear", "linear", "log", "log"))
MAX_HELD_OUT = 800


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """Measured calls: [N, 4] coordinates in the order of ``AXES``, [N] seconds of one layer."""

    points: FloatArray
    seconds: FloatArray

    def take(self, rows: NDArray[np.bool_]) -> AttentionRows:
        """Some of them."""
        return AttentionRows(self.points[rows], self.seconds[rows])


@dataclass(frozen=True, slots=True)
class AxisErrors:
    """Errors of held-out rows in per cent, signed mean and median size."""

    bias_percent: float
    median_percent: float


def attention_rows(table: Table) -> AttentionRows:
    """Rows of an ``attention.csv``. Where it has several kernels a call, their times add; queries of more than one
    token a decode are left out. Raises ``TableError``.
    """
    points = np.column_stack([table.numbers(name) for name in AXES])
    seconds = table.numbers("time_us") * 1e-6
    kept = seconds > 0
    if "decode_q_len" in table:
        kept &= table.numbers("decode_q_len", default=1.0) <= 1
    points, seconds = points[kept], seconds[kept]
    if "kernel" in table or "layer" in table:
        points, inverse = np.unique(points, axis=0, return_inverse=True)
        seconds = np.asarray(np.bincount(inverse.ravel(), weights=seconds), dtype=np.float64)
    return AttentionRows(points, seconds)


class MixedAttention:
    """Interpolates in all four axes; pure decodes and pure prompts have tables of their own."""

    def __init__(
        self, rows: AttentionRows, num_layers: int, scales: Sequence[Scale] = CANDIDATES[0], skew: Skew | None = None
    ) -> None:
        """Raises ``ValueError`` if there are neither pure decodes nor pure prompts."""
        self.scales, self.num_layers, self.skew = tuple(scales), num_layers, skew
        decodes, chunks = rows.points[:, 0] > 0, rows.points[:, 1] > 0
        n, c, kp, kd = range(4)
        self._decode = _part(rows.take(decodes & ~chunks), self.scales, (n, kd))
        self._prefill = _part(rows.take(chunks & ~decodes), self.scales, (c, kp))
        self._mixed = _part(rows.take(decodes & chunks), self.scales, (n, c, kp, kd))
        if self._decode is None or self._prefill is None:
            raise ValueError("attention needs rows of decodes alone and rows of a chunk alone")

    def seconds(self, load: AttentionLoad) -> float:
        """Over all layers."""
        once = self._uniform(load, load.mean_kv)
        if self.skew is not None and load.spread is not None:
            once += self.skew.excess_s(
                load.num_decodes, load.chunk, load.mean_kv, load.spread, lambda kv: self._uniform(load, kv)
            )
        return self.num_layers * once

    def reaches(self, load: AttentionLoad) -> bool:
        """Whether the table goes as far."""
        n, c = load.num_decodes, load.chunk
        if not c:
            return self._decode is not None and self._decode.reaches(n, load.mean_kv)
        if not n:
            return self._prefill is not None and self._prefill.reaches(c, load.chunk_start)
        return self._mixed is not None and self._mixed.reaches(n, c, load.chunk_start, load.mean_kv)

    def _uniform(self, load: AttentionLoad, kv: float) -> float:
        """One layer at equal contexts."""
        n, c = load.num_decodes, load.chunk
        assert self._decode is not None
        assert self._prefill is not None
        if not c:
            return self._decode(n, kv) if n else 0.0
        if not n:
            return self._prefill(c, load.chunk_start)
        if self._mixed is None:  # a table without mixed rows: the parts one after the other
            return self._decode(n, kv) + self._prefill(c, load.chunk_start)
        return self._mixed(n, c, load.chunk_start, kv)


def choose_scales(rows: AttentionRows) -> tuple[tuple[Scale, ...], dict[str, AxisErrors]]:
    """The axes (linear or logarithmic) that predict held-out rows with the least median error, and each one's errors.

    Held out are the mixed rows off the main grid, or else every second key of chunk and contexts.
    """
    held_out = _held_out(rows)
    errors: dict[str, AxisErrors] = {}
    if not held_out.any():
        return CANDIDATES[0], errors
    test = _thinned(rows.take(held_out))
    for scales in CANDIDATES:
        model = MixedAttention(rows.take(~held_out), 1, scales)
        predicted = [
            model._uniform(AttentionLoad(int(n), kd, None, c, kp), kd) for n, c, kp, kd in test.points.tolist()
        ]
        error = 100 * (np.array(predicted) / test.seconds - 1)
        errors["/".join(scales)] = AxisErrors(float(error.mean()), float(np.median(np.abs(error))))
    best = min(CANDIDATES, key=lambda scales: errors["/".join(scales)].median_percent)
    return best, errors


def _held_out(rows: AttentionRows) -> NDArray[np.bool_]:
    """[N] mixed rows off the powers of two; where there are none, those off every second key of the last three axes."""
    mixed = (rows.points[:, 0] > 0) & (rows.points[:, 1] > 0)
    log = np.log2(np.maximum(rows.points, 1))
    off = np.asarray(mixed & (log != np.round(log)).any(axis=1))
    if off.any() and (mixed & ~off).sum() >= max(16, 0.2 * mixed.sum()):
        return off
    off = np.zeros(len(mixed), dtype=np.bool_)
    for axis in range(1, 4):
        keys = np.unique(rows.points[mixed, axis]) if mixed.any() else np.array([])
        off |= np.isin(rows.points[:, axis], keys[1:-1:2])
    off = np.asarray(off & mixed)
    return off if (mixed & ~off).sum() >= 16 else np.zeros(len(mixed), dtype=np.bool_)


def _thinned(rows: AttentionRows) -> AttentionRows:
    """At most ``MAX_HELD_OUT`` rows, drawn without regard to their order in the file."""
    if len(rows.seconds) <= MAX_HELD_OUT:
        return rows
    drawn = np.sort(np.random.Generator(np.random.PCG64(0)).permutation(len(rows.seconds))[:MAX_HELD_OUT])
    return AttentionRows(rows.points[drawn], rows.seconds[drawn])


def _part(rows: AttentionRows, scales: Sequence[Scale], axes: Sequence[int]) -> PointTable | None:
    if not len(rows.seconds):
        return None
    coordinates = rows.points[:, list(axes)].tolist()
    return PointTable(zip(coordinates, rows.seconds.tolist(), strict=True), [scales[axis] for axis in axes])

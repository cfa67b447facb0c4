"""What unequal contexts among the decodes cost: a step's attention takes longer than at equal contexts of their mean.

A profile measures mixes of two lengths: ``nb`` of ``n`` decodes at ``kv_big``, the others at ``kvs``. The excess over
equal contexts is α · (time at the longest − time at the mean). Real contexts are many; they count as the mix of two
lengths with the same mean, variance and longest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .csv_table import FloatArray, Table
from .grid import PointTable

AXES = ("n", "pc", "share")
"""Decodes, tokens of the chunk beside them, share of the long ones: what α may depend on."""
CANDIDATES: tuple[tuple[str, ...], ...] = ((), ("n",), ("n", "pc"), ("n", "share"), ("n", "pc", "share"))
MIN_GAP = 0.05
"""Rows whose longest context costs less than this share more than the mean say nothing about α."""


@dataclass(frozen=True, slots=True)
class SkewRows:
    """Measured mixes, [N] each; times in seconds."""

    axes: dict[str, FloatArray]
    context: FloatArray
    mean_s: FloatArray
    longest_s: FloatArray
    mixed_s: FloatArray

    def take(self, rows: NDArray[np.intp]) -> SkewRows:
        """Some of them."""
        axes = {name: values[rows] for name, values in self.axes.items()}
        return SkewRows(axes, self.context[rows], self.mean_s[rows], self.longest_s[rows], self.mixed_s[rows])


def skew_rows(table: Table) -> SkewRows:
    """Rows of a ``skew.csv``; those with a time of 0 are left out. Raises ``TableError``."""
    n = table.numbers("n")
    share = table.numbers("nb") / np.maximum(n, 1)
    times = [table.numbers(name) * 1e-6 for name in ("t_mean_us", "t_max_us", "t_skew_us")]
    rows = SkewRows({"n": n, "pc": table.numbers("pc", default=0.0), "share": share}, table.numbers("kvs"), *times)
    return rows.take(np.flatnonzero(np.minimum.reduce(times) > 0))


class Skew:
    """α by the axes chosen; ``share_of`` gives the share of long contexts of a real step."""

    def __init__(self, rows: SkewRows, axes: Sequence[str]) -> None:
        self.axes = tuple(axes)
        self._table = _alphas(rows, self.axes)

    def alpha(self, num_decodes: float, chunk: float, share: float) -> float:
        """The share of the way from the mean's time to the longest's that unequal contexts take."""
        if not self.axes:
            return self._table(0.0)
        known = {"n": num_decodes, "pc": chunk, "share": share}
        return self._table(*(known[axis] for axis in self.axes))

    def excess_s(
        self,
        num_decodes: int,
        chunk: float,
        mean_kv: float,
        spread: tuple[float, float],
        time: Callable[[float], float],
    ) -> float:
        """Seconds beyond equal contexts; ``time`` is that of equal ones by context."""
        variance, longest = spread
        gap = longest - mean_kv
        if num_decodes < 2 or gap < 1.0 or variance <= 0.0:
            return 0.0
        share = variance / (variance + gap * gap)  # the two-length mix with this mean, variance and longest
        return max(self.alpha(num_decodes, chunk, share) * (time(longest) - time(mean_kv)), 0.0)


def choose_skew(rows: SkewRows) -> tuple[Skew | None, dict[str, float]]:
    """The axes that predict mixes at contexts left out best (every second context, both ways), or None if equal
    contexts do better; with the mean absolute error in per cent of each candidate.
    """
    contexts = np.unique(rows.context)
    errors = {"equal contexts": _error(rows.mean_s, rows.mixed_s)}
    if len(contexts) < 2:
        return None, errors
    odd = np.isin(rows.context, contexts[1::2])
    for axes in CANDIDATES:
        predicted = np.empty(len(rows.mean_s))
        for held_out in (odd, ~odd):
            skew = Skew(rows.take(np.flatnonzero(~held_out)), axes)
            rest = rows.take(np.flatnonzero(held_out))
            points = list(zip(*(rest.axes[axis].tolist() for axis in AXES), strict=True))
            alphas = {point: skew.alpha(*point) for point in set(points)}
            alpha = np.array([alphas[point] for point in points])
            predicted[held_out] = rest.mean_s + alpha * (rest.longest_s - rest.mean_s)
        errors["α(" + ", ".join(axes) + ")"] = _error(predicted, rows.mixed_s)
    best = min(errors, key=lambda name: errors[name])
    chosen = next((axes for axes in CANDIDATES if best == "α(" + ", ".join(axes) + ")"), None)
    return (None if chosen is None else Skew(rows, chosen)), errors


def _alphas(rows: SkewRows, axes: Sequence[str]) -> PointTable:
    """Least squares of the relative excess in each cell of the axes."""
    gap = rows.longest_s / rows.mean_s - 1
    excess = rows.mixed_s / rows.mean_s - 1
    telling = np.flatnonzero(gap > MIN_GAP)
    if not len(telling):
        return PointTable([((0.0,) * max(len(axes), 1), 0.0)], ["linear"] * max(len(axes), 1))
    columns = [rows.axes[axis].tolist() for axis in axes] or [[0.0] * len(gap)]
    sums: dict[tuple[float, ...], list[float]] = {}
    for i in telling.tolist():
        cell = sums.setdefault(tuple(column[i] for column in columns), [0.0, 0.0])
        cell[0] += float(gap[i] * excess[i])
        cell[1] += float(gap[i] * gap[i])
    return PointTable([(key, a / b) for key, (a, b) in sums.items()], ["log"] * len(columns))


def _error(predicted: FloatArray | Iterable[float], measured: FloatArray) -> float:
    return float(100 * np.mean(np.abs(np.asarray(predicted) / measured - 1)))

"""Times along one axis (tokens, sequences), tabulated for every whole number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
MOST_TABULATED = 1 << 18
"""Tokens beyond which a time is computed when it is asked for."""


class Line:
    """Piecewise linear through measured points (x, seconds).

    Below the first point the first time holds; beyond the last it goes on with the mean slope of the upper half of
    the table (the last two points alone are noise), never downwards.
    """

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        """Several times at the same x are averaged. Raises ``ValueError`` if there are no points."""
        grouped: dict[float, list[float]] = {}
        for x, y in points:
            grouped.setdefault(x, []).append(y)
        if not grouped:
            raise ValueError("a line needs at least one point")
        self._xs = sorted(grouped)
        self._ys = [sum(grouped[x]) / len(grouped[x]) for x in self._xs]
        self._table: list[float] = []

    @property
    def high(self) -> float:
        """The last measured x: beyond it times are extrapolated."""
        return self._xs[-1]

    def __call__(self, x: int) -> float:
        """Seconds at a whole number."""
        if x < len(self._table):
            return self._table[x]
        if x > MOST_TABULATED:
            return float(self._at(np.array([x], dtype=np.float64))[0])
        self._table = self._at(np.arange(2 * x + 2, dtype=np.float64)).tolist()
        return self._table[x]

    def _at(self, xs: FloatArray) -> FloatArray:
        ys = np.interp(xs, self._xs, self._ys)
        return np.asarray(ys + self._slope() * np.maximum(xs - self.high, 0.0))

    def _slope(self) -> float:
        half = min(bisect_left(self._xs, self.high / 2), len(self._xs) - 2)
        if half < 0:
            return 0.0
        return max((self._ys[-1] - self._ys[half]) / (self.high - self._xs[half]), 0.0)


def total(parts: Iterable[tuple[Line, float]]) -> Line:
    """Σ weight · line, measured wherever all of them are; where one ends earlier the sum counts as ending there."""
    chosen = list(parts)
    high = min(line.high for line, _ in chosen)
    xs = sorted({x for line, _ in chosen for x in line._xs if x <= high})
    return Line((x, sum(weight * float(np.interp(x, line._xs, line._ys)) for line, weight in chosen)) for x in xs)

"""Interpolation in a table of measured points that need not form one complete grid.

Points are nested by axis: each key of the first axis has its own keys of the second, and so on. A query interpolates
linearly between the nearest two keys *whose own points reach to where the query is*, so a coarse wide grid and a fine
narrow one may lie in one table, and holes (cells that did not fit the device) cost nothing but distance.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Scale = Literal["linear", "log"]
Point = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Node:
    """Keys of one axis, each with what lies below it; lows and highs of this axis and the deeper ones."""

    keys: list[float]
    below: list[_Node] | list[float]
    lows: Point
    highs: Point


class PointTable:
    """Values at points of a few axes. Below the lowest key of an axis a query counts as that key; above the highest
    it is extrapolated along the last two keys, never downwards.
    """

    def __init__(self, points: Iterable[tuple[Sequence[float], float]], scales: Sequence[Scale]) -> None:
        """``points`` are (coordinates, value); several values at the same coordinates are averaged. Raises
        ``ValueError`` if there are none.
        """
        self.scales = tuple(scales)
        self._scalers = [_SCALERS[scale] for scale in self.scales]
        grouped: dict[Point, list[float]] = {}
        for coordinates, value in points:
            scaled = tuple(scale(x) for scale, x in zip(self._scalers, coordinates, strict=True))
            grouped.setdefault(scaled, []).append(value)
        if not grouped:
            raise ValueError("a table needs at least one point")
        self._root = _nested([(point, sum(v) / len(v)) for point, v in sorted(grouped.items())], 0, len(self.scales))

    def __call__(self, *coordinates: float) -> float:
        """The value at a point."""
        root = self._root
        query = [max(scale(x), low) for scale, x, low in zip(self._scalers, coordinates, root.lows, strict=True)]
        return _at(root, query, [min(x, high) for x, high in zip(query, root.highs, strict=True)], 0)

    def reaches(self, *coordinates: float) -> bool:
        """Whether no coordinate is above the highest of its axis: nothing is extrapolated."""
        return all(
            scale(x) <= high for scale, x, high in zip(self._scalers, coordinates, self._root.highs, strict=True)
        )


_SCALERS: dict[Scale, Callable[[float], float]] = {"linear": float, "log": lambda x: math.log2(x + 1.0)}


def _nested(points: list[tuple[Point, float]], axis: int, num_axes: int) -> _Node:
    """``points`` sorted, equal in the axes before ``axis``."""
    groups: dict[float, list[tuple[Point, float]]] = {}
    for point in points:
        groups.setdefault(point[0][axis], []).append(point)
    keys = list(groups)
    if axis == num_axes - 1:
        return _Node(keys, [group[0][1] for group in groups.values()], (keys[0],), (keys[-1],))
    below = [_nested(group, axis + 1, num_axes) for group in groups.values()]
    lows = tuple(min(node.lows[i] for node in below) for i in range(num_axes - axis - 1))
    highs = tuple(max(node.highs[i] for node in below) for i in range(num_axes - axis - 1))
    return _Node(keys, below, (keys[0], *lows), (keys[-1], *highs))


def _at(node: _Node, query: list[float], within: list[float], axis: int) -> float:
    """``within`` is the query cut to the table's reach: what a key's points must cover to be chosen."""
    low, high = _neighbours(node, within, axis)
    first = _value(node, low, query, within, axis)
    if low == high:
        return first
    x, x0, x1 = query[axis], node.keys[low], node.keys[high]
    if x == x0:
        return first
    second = _value(node, high, query, within, axis)
    if x > x1:  # beyond the table: along its last slope, never downwards
        return second + max(second - first, 0.0) * (x - x1) / (x1 - x0)
    return first + (second - first) * ((x - x0) / (x1 - x0))


def _value(node: _Node, index: int, query: list[float], within: list[float], axis: int) -> float:
    below = node.below[index]
    return below if isinstance(below, float) else _at(below, query, within, axis + 1)


def _neighbours(node: _Node, within: list[float], axis: int) -> tuple[int, int]:
    """Places of the two keys to interpolate between, or twice the same."""
    keys, x, last = node.keys, within[axis], len(node.keys) - 1
    right = bisect_left(keys, x)
    if right <= last and keys[right] == x and _covers(node, right, within, axis) and right < last:
        return right, right
    low = next((i for i in range(min(right, last + 1) - 1, -1, -1) if _covers(node, i, within, axis)), -1)
    high = next((i for i in range(right, last + 1) if _covers(node, i, within, axis)), -1)
    if low >= 0 and high >= 0:
        return low, high
    if low < 0 and high < 0:  # nobody reaches that far on the deeper axes: the nearest do
        return max(right - 1, 0) if right else 0, min(right, last)
    only = max(low, high)
    if high < 0:  # only smaller keys reach: along the last two of them
        before = next((i for i in range(only - 1, -1, -1) if _covers(node, i, within, axis)), only)
        return before, only
    return only, only


def _covers(node: _Node, index: int, within: list[float], axis: int) -> bool:
    below = node.below[index]
    if isinstance(below, float):
        return True
    return all(low <= x <= high for low, x, high in zip(below.lows, within[axis + 1 :], below.highs, strict=True))

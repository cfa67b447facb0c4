"""The highest rate at which something holds, by doubling and bisection; every rate tried is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

LOWEST, HIGHEST = 2.0**-10, 2.0**10
"""Rate scales beyond which nothing is tried."""
CHECKS = (0.7, 0.9, 1.1, 1.5)
"""Multiples of the answer at which monotony is checked afterwards."""
DecidedBy = Literal["bracket", "lowest", "highest"]


@dataclass(frozen=True, slots=True)
class Tried:
    """One rate, as a multiple of the trace's own, and what was found there."""

    rate_scale: float
    meets: bool
    metrics: dict[str, float]
    missed: str
    """Which limits were missed, in words; empty if none."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """What a search found. ``highest_met`` and ``lowest_missed`` differ by the tolerance at most if ``decided_by`` is
    ``bracket``; ``lowest``: even the lowest rate tried misses; ``highest``: even the highest meets.
    """

    highest_met: Tried | None
    lowest_missed: Tried | None
    decided_by: DecidedBy
    tried: tuple[Tried, ...]
    """In ascending order of rates."""

    @property
    def contradictions(self) -> tuple[tuple[Tried, Tried], ...]:
        """Pairs (missed, met) with the lower rate missed: the answer is then that of this path of bisection only."""
        met = [tried for tried in self.tried if tried.meets]
        return tuple(
            (low, met[-1]) for low in self.tried if met and not low.meets and low.rate_scale < met[-1].rate_scale
        )


def search(
    attempt: Callable[[float], Tried],
    *,
    tolerance: float,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
    checks: Sequence[float] = CHECKS,
) -> Bracket:
    """Double or halve from a rate scale of 1 (or the nearest bound) until one rate meets and one misses, then bisect
    (geometrically) until they differ by ``tolerance`` as a share; then try ``checks``.
    """
    memory: dict[float, Tried] = {}

    def at(rate_scale: float) -> Tried:
        if rate_scale not in memory:
            memory[rate_scale] = attempt(rate_scale)
        return memory[rate_scale]

    first = at(min(max(1.0, lowest), highest))
    low, high = _bracket(at, first, lowest, highest)
    while low and high and high.rate_scale > low.rate_scale * (1 + tolerance):
        middle = at(sqrt(low.rate_scale * high.rate_scale))
        low, high = (middle, high) if middle.meets else (low, middle)
    if low and high:
        for rate_scale in (low.rate_scale * factor for factor in checks):
            if lowest <= rate_scale <= highest:
                at(rate_scale)
    decided_by: DecidedBy = "bracket" if low and high else "highest" if low else "lowest"
    return Bracket(low, high, decided_by, tuple(memory[rate] for rate in sorted(memory)))


def _bracket(
    at: Callable[[float], Tried], first: Tried, lowest: float, highest: float
) -> tuple[Tried | None, Tried | None]:
    """The last rate that meets and the first that misses, on the way up or down from ``first``."""
    now = first
    while now.meets and now.rate_scale < highest:
        then, now = now, at(min(2 * now.rate_scale, highest))
        if not now.meets:
            return then, now
    if now.meets:
        return now, None
    while not now.meets and now.rate_scale > lowest:
        then, now = now, at(max(now.rate_scale / 2, lowest))
        if now.meets:
            return now, then
    return None, now

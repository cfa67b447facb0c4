"""What published points and their predictions say of a shape: where throughput saturates, where preemption starts,
whether the cap still matters once KV blocks run out; and whether a point can be true at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from .points import Point
from .validate_points import Predicted

SATURATED = 0.95
"""Of the greatest throughput: from here on the cap matters little."""
FLAT = 0.05
SWEPT = ("max_num_seqs", "concurrency", "request_rate", "max_num_batched_tokens")
MEASURED = frozenset(
    name for name in (field.name for field in fields(Point)) if name.endswith(("_ms", "tok_s", "request_s"))
)
FREE = MEASURED | {"line", "source", "note", "num_preemptions"}


@dataclass(frozen=True, slots=True)
class Shape:
    """One check of one group of points."""

    group: str
    check: str
    predicted: str
    published: str
    agrees: bool | None
    """None where the published points cannot say."""


def shapes(points: Sequence[Predicted]) -> list[Shape]:
    """Checks of every group of points that differ in one knob alone, three points or more."""
    found = []
    for knob in SWEPT:
        groups: dict[tuple[object, ...], list[Predicted]] = {}
        names = [field.name for field in fields(Point) if field.name not in FREE | {knob}]
        for point in points:
            if point.metrics is not None and getattr(point.point, knob) is not None:
                groups.setdefault(tuple(getattr(point.point, name) for name in names), []).append(point)
        for group in groups.values():
            values = {getattr(p.point, knob) for p in group}
            if len(values) >= 3 and len(values) == len(group):
                found += _checks(sorted(group, key=lambda p: float(getattr(p.point, knob))), knob)
    return found


def implausible(point: Point) -> str | None:
    """Why a point cannot be true as it stands: Little's law, with the mean latency its figures give. A server keeps no
    more in flight than its clients send.
    """
    rate = point.request_s
    if rate is None and point.output_tok_s is not None and point.output_tokens:
        rate = point.output_tok_s / point.output_tokens
    limit = point.concurrency
    if rate is None or limit is None:
        return None
    latency_ms = point.mean_e2el_ms
    if latency_ms is None and point.mean_ttft_ms is not None and point.mean_tpot_ms is not None and point.output_tokens:
        latency_ms = point.mean_ttft_ms + (point.output_tokens - 1) * point.mean_tpot_ms
    if latency_ms is not None and rate * latency_ms / 1e3 > 1.05 * limit:
        return (
            f"{rate:.3g} requests/s for {latency_ms / 1e3:.3g} s each keep {rate * latency_ms / 1e3:.0f} in flight, "
            f"but only {limit} were sent at a time: is the throughput one of all tokens?"
        )
    longest_s = limit / rate
    worst_ms = point.p99_e2el_ms
    if worst_ms is not None and not point.output_cv and worst_ms / 1e3 > 3 * longest_s:
        return (
            f"{limit} in flight at {rate:.3g} requests/s need a mean latency of at most {longest_s:.3g} s beside a P99 "
            f"of {worst_ms / 1e3:.3g} s at equal lengths: is the throughput one of all tokens?"
        )
    return None


def _checks(group: Sequence[Predicted], knob: str) -> list[Shape]:
    first = group[0].point
    lines = ", ".join(str(p.point.line) for p in group)
    name = f"{first.model} on {first.gpu or 'the profile'} over {knob} (lines {lines})"
    at = [float(getattr(p.point, knob)) for p in group]
    ours = [p.metrics["output_throughput"] for p in group if p.metrics is not None]
    theirs = [_published_throughput(p.point) for p in group]
    known = [value for value in theirs if value is not None]
    complete = len(known) == len(group)
    found = [_saturation(name, at, ours, known if complete else None)]
    if knob == "max_num_seqs":
        found.append(_preemption(name, at, group))
        flat = _flat_once_full(name, at, group, ours, known if complete else None)
        if flat is not None:
            found.append(flat)
    return found


def _published_throughput(point: Point) -> float | None:
    """Output tokens a second, or what is proportional to them within a group."""
    return next((v for v in (point.output_tok_s, point.total_tok_s, point.request_s) if v is not None), None)


def _saturation(name: str, at: list[float], ours: list[float], theirs: list[float] | None) -> Shape:
    mine = _saturates(ours)
    other = None if theirs is None else _saturates(theirs)
    agrees = None if other is None else abs(mine - other) <= 1
    said = "–" if other is None else f"{at[other]:g}"
    return Shape(
        name, f"throughput within {100 * (1 - SATURATED):.0f} % of its best from", f"{at[mine]:g}", said, agrees
    )


def _saturates(values: list[float]) -> int:
    best = max(values)
    return next(i for i, value in enumerate(values) if value >= SATURATED * best)


def _preemption(name: str, at: list[float], group: Sequence[Predicted]) -> Shape:
    mine = _first(at, group, lambda p: p.metrics is not None and p.metrics["num_preemptions"] > 0)
    said = all(p.point.num_preemptions is not None for p in group)
    if not said:
        return Shape(name, "preemption from", _at(mine), "–", None)
    other = _first(at, group, lambda p: bool(p.point.num_preemptions))
    near = mine == other or (mine is not None and other is not None and abs(at.index(mine) - at.index(other)) <= 1)
    return Shape(name, "preemption from", _at(mine), _at(other), near)


def _first(at: list[float], group: Sequence[Predicted], holds: Callable[[Predicted], bool]) -> float | None:
    return next((x for x, p in zip(at, group, strict=True) if holds(p)), None)


def _at(value: float | None) -> str:
    return "nowhere" if value is None else f"{value:g}"


def _flat_once_full(
    name: str, at: list[float], group: Sequence[Predicted], ours: list[float], theirs: list[float] | None
) -> Shape | None:
    """Once blocks hold requests back the cap does nothing: from there on throughput is flat."""
    full = [i for i, p in enumerate(group) if p.metrics is not None and p.metrics["bound_kv_blocks_share"] > 0.1]
    if len(full) < 2:
        return None
    mine = _spread([ours[i] for i in full])
    other = None if theirs is None else _spread([theirs[i] for i in full])
    said = "–" if other is None else f"{100 * other:.0f} %"
    agrees = None if other is None else mine <= 2 * FLAT and other <= 2 * FLAT
    return Shape(
        name, f"spread of throughput from {at[full[0]]:g} on, where blocks run out", f"{100 * mine:.0f} %", said, agrees
    )


def _spread(values: list[float]) -> float:
    return max(values) / min(values) - 1.0 if min(values) > 0 else float("inf")

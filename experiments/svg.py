"""Small line and point charts as SVG text, where a picture is wanted without a browser or a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

PREDICTED, MEASURED = "#0072B2", "#D55E00"
"""The colours of ``dashboard.colors``, which this folder does not import; a test holds them equal."""
WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 34, 44
TICKS = 5


@dataclass(frozen=True, slots=True)
class Curve:
    """Points [N] of one name and colour, joined by lines or not."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    joined: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """A label, and whether the axis is logarithmic."""

    label: str
    log: bool = False


def chart(title: str, curves: Sequence[Curve], x_axis: Axis, y_axis: Axis) -> str:
    """One panel as a complete SVG document. Points that are not finite (or not positive on a logarithmic axis) are
    left out.
    """
    return document([panel(title, curves, x_axis, y_axis)], columns=1)


def document(panels: Sequence[str], columns: int) -> str:
    """Panels in rows of ``columns``."""
    rows = -(-len(panels) // columns)
    width, height = WIDTH * min(columns, len(panels)), HEIGHT * rows
    placed = "".join(
        f'<g transform="translate({WIDTH * (i % columns)},{HEIGHT * (i // columns)})">{part}</g>'
        for i, part in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>{placed}</svg>\n'
    )


def panel(title: str, curves: Sequence[Curve], x_axis: Axis, y_axis: Axis) -> str:
    """One panel's elements."""
    kept = [_kept(curve, x_axis, y_axis) for curve in curves]
    x_range = _range([x for points in kept for x, _ in points], x_axis, from_zero=False)
    y_range = _range([y for points in kept for _, y in points], y_axis, from_zero=not y_axis.log)
    parts = [f'<text x="{LEFT}" y="16" font-size="13">{escape(title)}</text>', _frame(x_range, y_range, x_axis, y_axis)]
    for i, (curve, points) in enumerate(zip(curves, kept, strict=True)):
        places = [(_place(x, x_range, x_axis, horizontal=True), _place(y, y_range, y_axis)) for x, y in points]
        if curve.joined and len(places) > 1:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{curve.color}" stroke-width="1.6"/>')
        else:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{curve.color}"/>' for x, y in places]
        left = LEFT + 8 + 170 * (i % 3)
        top = 28 + 12 * (i // 3)
        parts.append(f'<text x="{left}" y="{top}" fill="{curve.color}">{escape(curve.name)}</text>')
    return "".join(parts)


def _kept(curve: Curve, x_axis: Axis, y_axis: Axis) -> list[tuple[float, float]]:
    def fits(value: float, axis: Axis) -> bool:
        return math.isfinite(value) and (value > 0 or not axis.log)

    pairs = zip(curve.x, curve.y, strict=True)
    return [(float(x), float(y)) for x, y in pairs if fits(x, x_axis) and fits(y, y_axis)]


def _range(values: Sequence[float], axis: Axis, *, from_zero: bool) -> tuple[float, float]:
    if not values:
        return (1.0, 10.0) if axis.log else (0.0, 1.0)
    low, high = min(values), max(values)
    if from_zero:
        low = min(low, 0.0)
    if low == high:
        high = low * 2 if low > 0 else low + 1.0
    return low, high


def _place(value: float, limits: tuple[float, float], axis: Axis, *, horizontal: bool = False) -> float:
    low, high = limits
    if axis.log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    share = (value - low) / (high - low)
    if horizontal:
        return LEFT + share * (WIDTH - LEFT - RIGHT)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _frame(x_range: tuple[float, float], y_range: tuple[float, float], x_axis: Axis, y_axis: Axis) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<path d="M{LEFT},{TOP}V{bottom}H{right}" fill="none" stroke="#868E99"/>']
    for value in _ticks(x_range, x_axis):
        x = _place(value, x_range, x_axis, horizontal=True)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{_short(value)}</text>')
    for value in _ticks(y_range, y_axis):
        y = _place(value, y_range, y_axis)
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>')
        parts.append(f'<path d="M{LEFT},{y:.1f}H{right}" stroke="#E6E9ED"/>')
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_axis.label)}</text>')
    middle = (TOP + bottom) / 2
    turned = f'transform="rotate(-90 14 {middle})"'
    parts.append(f'<text x="14" y="{middle}" text-anchor="middle" {turned}>{escape(y_axis.label)}</text>')
    return "".join(parts)


def _ticks(limits: tuple[float, float], axis: Axis) -> list[float]:
    low, high = limits
    if axis.log:
        return [low * (high / low) ** (i / (TICKS - 1)) for i in range(TICKS)]
    return [low + (high - low) * i / (TICKS - 1) for i in range(TICKS)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

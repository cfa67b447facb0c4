"""The three heatmaps over both knobs: predicted, measured, error. The knobs' values stand at equal distances, as they
do when they are powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go

from .colors import ERRORS, FAINT, MARK_FILL, MARK_LINE, MEASURED, NEUTRAL, PREDICTED, VALUES, reversed_scale
from .data import FloatMatrix, HeatmapData, Mask, Place
from .figures import new_figure, title
from .hover import hovers
from .labels import compact, label, percent

What = Literal["predicted", "measured", "error"]
LARGEST_WITH_NUMBERS = 9
"""Columns up to which a cell has room for its number."""
LOG_COLORS_FROM = 12.0
"""Largest over smallest value from which on colours follow the logarithm."""
LEGEND = "★ recommended   ◆ vLLM's default   ▲ preempts   ▨ cannot work"
ERROR_LIMITS_PERCENT = (10.0, 25.0, 50.0, 100.0)
_HATCHES = 4


def heatmap(data: HeatmapData, what: What, *, height_px: int = 350) -> go.Figure:
    """One of the three. Both of the values share their colours; infeasible cells are hatched, and the recommendation,
    vLLM's default and preemption are marked.
    """
    figure = new_figure(_title(data, what), height_px)
    figure.add_trace(_tiles(data))
    figure.add_trace(_errors(data) if what == "error" else _values(data, what))
    figure.add_trace(_hatching(data.infeasible))
    for mark in _marks(data, with_preemption=what == "predicted"):
        figure.add_trace(mark)
    figure.update_xaxes(**_axis("max_num_batched_tokens", "tokens", data.max_num_batched_tokens))
    figure.update_yaxes(**_axis("max_num_seqs", "sequences", data.max_num_seqs))
    return figure


def _title(data: HeatmapData, what: What) -> str:
    found = label(data.metric)
    if what == "error":
        return title("Error", f"{found.text}: predicted over measured − 1 (%)")
    color = PREDICTED if what == "predicted" else MEASURED
    detail = found.with_unit + (", median of the repeats" if what == "measured" else "")
    return title(what.capitalize(), detail, color)


def _axis(name: str, unit: str, values: tuple[int, ...]) -> dict[str, Any]:
    return {
        "title": {"text": f"{name} ({unit})", "standoff": 6, "font": {"size": 12}},
        "tickmode": "array",
        "tickvals": list(range(len(values))),
        "ticktext": [f"{value:,}" for value in values],
        "range": [-0.5, len(values) - 0.5],
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "fixedrange": True,
    }


def _tiles(data: HeatmapData) -> go.Heatmap:
    """A faint tile for every cell of the grid, which says what is known of it."""
    return go.Heatmap(
        z=np.where(data.in_grid, 0.0, np.nan),
        customdata=hovers(data),
        hovertemplate="%{customdata}<extra></extra>",
        colorscale=[[0, FAINT], [1, FAINT]],
        showscale=False,
        xgap=2,
        ygap=2,
        name="grid",
    )


def _values(data: HeatmapData, what: What) -> go.Heatmap:
    found = label(data.metric)
    both = np.stack((data.predicted, data.measured)) * found.scale
    log = _wants_log(both)
    values = both[0 if what == "predicted" else 1]
    low, high = _limits(np.log10(both) if log else both)
    return go.Heatmap(
        z=np.log10(values) if log else values,
        zmin=low,
        zmax=high,
        colorscale=reversed_scale(VALUES) if found.lower_is_better else VALUES,
        colorbar=_colorbar(low, high, log),
        text=_texts(values, compact),
        name=what,
        **_layer(data),
    )


def _errors(data: HeatmapData) -> go.Heatmap:
    worst = _error_limit(data.error_percent)
    return go.Heatmap(
        z=data.error_percent,
        zmin=-worst,
        zmax=worst,
        colorscale=ERRORS,
        colorbar=_colorbar(-worst, worst, log=False),
        text=_texts(data.error_percent, lambda value: percent(value, signed=True).removesuffix(" %")),
        name="error",
        **_layer(data),
    )


def _layer(data: HeatmapData) -> dict[str, Any]:
    """What both kinds of coloured cells have: gaps, numbers where there is room, everything known on hover."""
    fits = len(data.max_num_batched_tokens) <= LARGEST_WITH_NUMBERS
    return {
        "xgap": 2,
        "ygap": 2,
        "texttemplate": "%{text}" if fits else None,
        "textfont": {"size": 11},
        "customdata": hovers(data),
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": False,
    }


def _wants_log(values: FloatMatrix) -> bool:
    found = values[np.isfinite(values)]
    return bool(len(found) and found.min() > 0 and found.max() / found.min() >= LOG_COLORS_FROM)


def _error_limit(errors_percent: FloatMatrix) -> float:
    """One of a few round limits, so that a colour means the same error from metric to metric."""
    worst = float(np.nanmax(np.abs(errors_percent), initial=0.0))
    return next((limit for limit in ERROR_LIMITS_PERCENT if worst <= limit), worst)


def _limits(values: FloatMatrix) -> tuple[float, float]:
    found = values[np.isfinite(values)]
    if not len(found):
        return 0.0, 1.0
    low, high = float(found.min()), float(found.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _colorbar(low: float, high: float, log: bool) -> dict[str, Any]:
    at = np.linspace(low, high, 5)
    return {
        "thickness": 7,
        "len": 1.0,
        "x": 1.01,
        "xpad": 4,
        "ypad": 0,
        "outlinewidth": 0,
        "tickmode": "array",
        "tickvals": at.tolist(),
        "ticktext": [compact(10**value if log else value) for value in at.tolist()],
        "tickfont": {"size": 10},
        "ticks": "",
    }


def _texts(values: FloatMatrix, write: Callable[[float], str]) -> list[list[str]]:
    return [["" if math.isnan(value) else write(value) for value in row] for row in values.tolist()]


def _hatching(cells: Mask) -> go.Scatter:
    """Diagonal strokes over every infeasible cell, as one line with gaps."""
    x: list[float | None] = []
    y: list[float | None] = []
    for row, column in np.argwhere(cells).tolist():
        for step in range(1, 2 * _HATCHES):
            start, end = max(0.0, step / _HATCHES - 1), min(1.0, step / _HATCHES)
            x += [column - 0.5 + start, column - 0.5 + end, None]
            y += [row - 0.5 + step / _HATCHES - start, row - 0.5 + step / _HATCHES - end, None]
    line = {"color": NEUTRAL, "width": 1}
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", name="infeasible")


def _marks(data: HeatmapData, *, with_preemption: bool) -> Iterator[go.Scatter]:
    """Small marks in the corners of a cell, clear of its number; preemption is a fact of the prediction alone."""
    preempting = np.argwhere(data.preempting).tolist() if with_preemption else []
    yield _mark("preempts", [(row, column) for row, column in preempting], "triangle-up", (0.37, -0.35), 6)
    yield _mark("vLLM default", [data.default] if data.default else [], "diamond", (-0.37, 0.34), 9)
    if data.recommended:
        yield _frame(data.recommended, MARK_FILL, 4)
        yield _frame(data.recommended, MARK_LINE, 2)
    yield _mark("recommended", [data.recommended] if data.recommended else [], "star", (-0.37, 0.34), 12)


def _mark(name: str, cells: list[Place], symbol: str, offset: tuple[float, float], size: int) -> go.Scatter:
    return go.Scatter(
        x=[column + offset[0] for _, column in cells],
        y=[row + offset[1] for row, _ in cells],
        mode="markers",
        marker={"symbol": symbol, "size": size, "color": MARK_FILL, "line": {"color": MARK_LINE, "width": 1}},
        hoverinfo="skip",
        name=name,
    )


def _frame(cell: Place, color: str, width_px: int) -> go.Scatter:
    row, column = cell
    x, y = np.array([-1, 1, 1, -1, -1]) * 0.48 + column, np.array([-1, -1, 1, 1, -1]) * 0.47 + row
    line = {"color": color, "width": width_px}
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", name="frame")

"""The three heatmaps over both knobs: predicted, measured, error. Both axes are logarithmic, base 2: from 8 to 16 it
is as far as from 64 to 128.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
MARKS = {
    "recommended": "★ recommended",
    "default": "◆ vLLM's default",
    "meets": "□ meets the SLOs",
    "preempts": "⋯ preempts",
    "infeasible": "▨ cannot work",
    "failed": "✕ failed",
    "skipped": "– left out by the search",
    "missing": "grey: not predicted yet",
}
"""What each mark means, in the order of the legend."""
ERROR_LIMITS_PERCENT = (10.0, 25.0, 50.0, 100.0)
CLIP_PERCENTILE = 90.0
"""Of the errors' sizes: beyond it a colour says no more, so that one outlier does not make all others white."""
CLICKS = "cells"
"""The name of the trace whose points are the cells, for clicks."""
_HATCHES = 4


def heatmap(data: HeatmapData, what: What, *, height_px: int = 350) -> go.Figure:
    """One of the three. Both of the values share their colours; cells without a result are hatched or crossed, and the
    recommendation, vLLM's default, preemption and the SLOs are marked.
    """
    figure = new_figure(_title(data, what), height_px)
    grid = _Grid.of(data)
    figure.add_trace(_tiles(data, grid))
    figure.add_trace(_errors(data, grid) if what == "error" else _values(data, what, grid))
    figure.add_trace(_hatching(data.status == "infeasible", grid))
    for mark in _marks(data, grid, predicted=what == "predicted"):
        figure.add_trace(mark)
    figure.add_trace(_clicks(data, grid))
    figure.update_xaxes(**_axis("max_num_batched_tokens", "tokens", data.max_num_batched_tokens, grid.x))
    figure.update_yaxes(**_axis("max_num_seqs", "sequences", data.max_num_seqs, grid.y))
    figure.update_layout(clickmode="event+select", dragmode=False, hovermode="closest")
    return figure


def legend(data: HeatmapData) -> str:
    """The marks that are there, in words."""
    there = {
        "recommended": data.recommended is not None,
        "default": data.default is not None,
        "meets": bool(data.meets_slo.any()),
        "preempts": bool(data.preempting.any()),
        "missing": bool((data.in_grid & (data.status == "")).any()),
        **{name: bool((data.status == name).any()) for name in ("infeasible", "failed", "skipped")},
    }
    return "   ".join(text for name, text in MARKS.items() if there[name])


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where the cells lie: the edges between columns (x) and rows (y), as logarithms."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    @classmethod
    def of(cls, data: HeatmapData) -> _Grid:
        return cls(edges(data.max_num_batched_tokens), edges(data.max_num_seqs))

    def at(self, cell: Place, across: float, up: float) -> tuple[float, float]:
        """A point in a cell, as shares of its width and height from its lower left corner."""
        row, column = cell
        return (
            self.x[column] + across * (self.x[column + 1] - self.x[column]),
            self.y[row] + up * (self.y[row + 1] - self.y[row]),
        )


def edges(values: tuple[int, ...]) -> tuple[float, ...]:
    """The edges of cells around ``log2`` of rising values: half way to the neighbours, and as far beyond the ends."""
    centers = np.log2(values)
    if len(centers) == 1:
        return float(centers[0]) - 0.5, float(centers[0]) + 0.5
    middles = (centers[1:] + centers[:-1]) / 2
    return tuple(np.concatenate(([2 * centers[0] - middles[0]], middles, [2 * centers[-1] - middles[-1]])).tolist())


def _title(data: HeatmapData, what: What) -> str:
    found = label(data.metric)
    if what == "error":
        limit, clipped = _error_limit(data.error_percent)
        note = f"; colours end at ±{limit:g} % (P{CLIP_PERCENTILE:g} of the cells)" if clipped else ""
        return title("Error", f"{found.text}: predicted over measured − 1 (%){note}")
    color = PREDICTED if what == "predicted" else MEASURED
    detail = found.with_unit
    if what == "measured":
        detail += "; grey: not measured"
    return title(what.capitalize(), detail, color)


def _axis(name: str, unit: str, values: tuple[int, ...], found: tuple[float, ...]) -> dict[str, Any]:
    return {
        "title": {"text": f"{name} ({unit})", "standoff": 6, "font": {"size": 12}},
        "tickmode": "array",
        "tickvals": np.log2(values).tolist(),
        "ticktext": [f"{value:,}" for value in values],
        "range": [found[0], found[-1]],
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "fixedrange": True,
    }


def _tiles(data: HeatmapData, grid: _Grid) -> go.Heatmap:
    """A faint tile for every cell of the grid, which says what is known of it."""
    return go.Heatmap(
        x=grid.x,
        y=grid.y,
        z=np.where(data.in_grid, 0.0, np.nan),
        customdata=hovers(data),
        hovertemplate="%{customdata}<extra></extra>",
        colorscale=[[0, FAINT], [1, FAINT]],
        showscale=False,
        xgap=2,
        ygap=2,
        name="grid",
    )


def _values(data: HeatmapData, what: What, grid: _Grid) -> go.Heatmap:
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
        **_layer(data, grid),
    )


def _errors(data: HeatmapData, grid: _Grid) -> go.Heatmap:
    limit, _ = _error_limit(data.error_percent)
    return go.Heatmap(
        z=data.error_percent,
        zmin=-limit,
        zmax=limit,
        colorscale=ERRORS,
        colorbar=_colorbar(-limit, limit, log=False),
        text=_texts(data.error_percent, lambda value: percent(value, signed=True).removesuffix(" %")),
        name="error",
        **_layer(data, grid),
    )


def _layer(data: HeatmapData, grid: _Grid) -> dict[str, Any]:
    """What both kinds of coloured cells have: gaps, numbers where there is room, everything known on hover."""
    fits = len(data.max_num_batched_tokens) <= LARGEST_WITH_NUMBERS
    return {
        "x": grid.x,
        "y": grid.y,
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


def _error_limit(errors_percent: FloatMatrix) -> tuple[float, bool]:
    """One of a few round limits, so that a colour means the same error from metric to metric, and whether some errors
    lie beyond it.
    """
    sizes = np.abs(errors_percent[np.isfinite(errors_percent)])
    if not len(sizes):
        return ERROR_LIMITS_PERCENT[0], False
    most = float(np.percentile(sizes, CLIP_PERCENTILE))
    limit = next((limit for limit in ERROR_LIMITS_PERCENT if most <= limit), math.ceil(most))
    return limit, bool(sizes.max() > limit)


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


def _places(cells: Mask) -> list[Place]:
    return [(row, column) for row, column in np.argwhere(cells).tolist()]


def _hatching(cells: Mask, grid: _Grid) -> go.Scatter:
    """Diagonal strokes over every infeasible cell, as one line with gaps."""
    strokes: list[tuple[float | None, float | None]] = []
    for cell in _places(cells):
        for step in range(1, 2 * _HATCHES):
            start, end, all_ = max(0.0, step / _HATCHES - 1), min(1.0, step / _HATCHES), step / _HATCHES
            strokes += [grid.at(cell, start, all_ - start), grid.at(cell, end, all_ - end), (None, None)]
    line = {"color": NEUTRAL, "width": 1}
    return _lines(strokes, line, "infeasible")


def _lines(points: list[tuple[float | None, float | None]], line: dict[str, Any], name: str) -> go.Scatter:
    x, y = [point[0] for point in points], [point[1] for point in points]
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", name=name)


def _marks(data: HeatmapData, grid: _Grid, *, predicted: bool) -> Iterator[go.Scatter]:
    """Small marks at the edge of a cell, clear of its number; preemption, SLOs and what has no result are facts of the
    prediction alone.
    """
    if predicted:
        yield _dots(_places(data.preempting), grid)
        yield _frames(_places(data.meets_slo), grid, 0.07, MARK_FILL, 3, "meets the SLOs, below")
        yield _frames(_places(data.meets_slo), grid, 0.07, MARK_LINE, 1, "meets the SLOs")
        yield _mark("failed", _places(data.status == "failed"), grid, "x-thin", (0.5, 0.5), 14)
        yield _mark("skipped", _places(data.status == "skipped"), grid, "line-ew", (0.5, 0.5), 12)
    default, chosen = ([place] if place else [] for place in (data.default, data.recommended))
    yield _mark("vLLM default", default, grid, "diamond", (0.13, 0.84), 9)
    yield _frames(chosen, grid, 0.02, MARK_FILL, 4, "frame, below")
    yield _frames(chosen, grid, 0.02, MARK_LINE, 2, "frame")
    yield _mark("recommended", chosen, grid, "star", (0.13, 0.84), 12)


def _mark(name: str, cells: list[Place], grid: _Grid, symbol: str, where: tuple[float, float], size: int) -> go.Scatter:
    points = [grid.at(cell, *where) for cell in cells]
    thin = symbol in ("x-thin", "line-ew")
    line = {"color": NEUTRAL if thin else MARK_LINE, "width": 2 if thin else 1}
    return go.Scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        mode="markers",
        marker={"symbol": symbol, "size": size, "color": MARK_FILL, "line": line},
        hoverinfo="skip",
        name=name,
    )


def _dots(cells: list[Place], grid: _Grid) -> go.Scatter:
    """A row of dots at the foot of every cell that preempts."""
    points = [grid.at(cell, across, 0.12) for cell in cells for across in (0.26, 0.42, 0.58, 0.74)]
    return go.Scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        mode="markers",
        marker={"size": 4, "color": MARK_FILL, "line": {"color": MARK_LINE, "width": 1}},
        hoverinfo="skip",
        name="preempts",
    )


def _frames(cells: list[Place], grid: _Grid, inset: float, color: str, width_px: int, name: str) -> go.Scatter:
    low, high = inset, 1 - inset
    corners = ((low, low), (high, low), (high, high), (low, high), (low, low))
    points: list[tuple[float | None, float | None]] = []
    for cell in cells:
        points += [*(grid.at(cell, *corner) for corner in corners), (None, None)]
    return _lines(points, {"color": color, "width": width_px}, name)


def _clicks(data: HeatmapData, grid: _Grid) -> go.Scatter:
    """An unseen point in every cell: maps have no points that could be chosen."""
    cells = _places(data.in_grid)
    points = [grid.at(cell, 0.5, 0.5) for cell in cells]
    texts = hovers(data)
    unseen = {"marker": {"opacity": 0}}
    return go.Scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        mode="markers",
        marker={"symbol": "square", "size": 34, "opacity": 0},
        selected=unseen,
        unselected=unseen,
        customdata=[[data.key(cell), texts[cell]] for cell in cells],
        hovertemplate="%{customdata[1]}<extra></extra>",
        name=CLICKS,
    )

"""The frame of the iterations' figure: panels one over the other on one axis of time, and the lines drawn in them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from .colors import BLOCKS, GRID_LINE, NEUTRAL, SEQS, TOKENS, UNBOUND
from .iteration_data import FloatArray, Timeline

BOUND_COLORS = (SEQS, TOKENS, BLOCKS, UNBOUND)
BOUND_TEXTS = ("max_num_seqs", "max_num_batched_tokens", "KV blocks", "nothing")


class Panel(NamedTuple):
    """One row of the figure."""

    title: str
    detail: str
    share: float
    """Of the height."""


PANELS = (
    Panel("Iterations", "tokens in each, as wide as it took", 0.42),
    Panel("Active bound", "", 0.05),
    Panel("Step time", "ms", 0.13),
    Panel("Scheduler State", "vllm:num_requests_running, vllm:num_requests_waiting", 0.17),
    Panel("Cache Utilization", "% · vllm:kv_cache_usage_perc", 0.13),
    Panel("Preemptions", "vllm:num_preemptions_total, increase", 0.09),
)
"""The last three are named as on vLLM's and Ray's boards, with vLLM's metric."""
GAP = 0.052
ITERATIONS, BOUND, STEP, STATE, CACHE, PREEMPTIONS = range(len(PANELS))


def lay_out(figure: go.Figure, data: Timeline) -> list[float]:
    """Axes one over the other; returns where each panel's top is, as a share of the height."""
    top, tops = 1.0, []
    axes: dict[str, Any] = {}
    for i, panel in enumerate(PANELS):
        height = panel.share * (1 - GAP * len(PANELS)) / sum(p.share for p in PANELS)
        top -= GAP
        axes[axis("yaxis", i)] = {
            "domain": [max(top - height, 0.0), top],
            "gridcolor": GRID_LINE,
            "rangemode": "tozero",
            "nticks": 4 if panel.share < 0.3 else 6,
            "zeroline": False,
            "tickformat": "~s",
            "fixedrange": True,
        }
        tops.append(top)
        top -= height
    axes[axis("yaxis", BOUND)] |= {"range": [0, 1], "showticklabels": False, "showgrid": False}
    axes[axis("yaxis", CACHE)] |= {"range": [0, 100], "tickvals": [0, 50, 100], "tickformat": None}
    axes[axis("yaxis", PREEMPTIONS)] |= _whole_numbers(data.preemptions)
    figure.update_layout(
        **axes,
        xaxis={
            "range": list(data.window),
            "anchor": axis("y", len(PANELS) - 1),
            "gridcolor": GRID_LINE,
            "zeroline": False,
            "ticksuffix": " s",
            "showspikes": True,
            "spikemode": "across",
            "spikethickness": 1,
            "spikedash": "dot",
            "spikecolor": NEUTRAL,
            "fixedrange": True,
        },
        margin={"l": 46, "r": 8, "t": 0, "b": 26},
        dragmode="select",
        selectdirection="h",
        hovermode="closest",
        bargap=0,
        barmode="overlay",
        newselection={"line": {"color": NEUTRAL, "width": 1, "dash": "dot"}},
    )
    return tops


def _whole_numbers(counts: FloatArray) -> dict[str, Any]:
    most = float(counts.max(initial=0.0))
    return {"range": [0, max(1.0, 1.1 * most)], "dtick": 1 if most <= 3 else None}


def axis(name: str, panel: int) -> str:
    return name if panel == 0 else f"{name}{panel + 1}"


def place(panel: int) -> dict[str, str]:
    return {"xaxis": "x", "yaxis": axis("y", panel)}


def panel_title(panel: Panel, y: float, data: Timeline) -> dict[str, Any]:
    detail = panel.detail
    if panel is PANELS[ITERATIONS] and not data.is_exact:
        detail = f"tokens, mean by time of {data.total:,} iterations; thin: the largest"
    if panel is PANELS[BOUND]:
        words = zip(BOUND_TEXTS, BOUND_COLORS, strict=True)
        detail = " &nbsp; ".join(f"<span style='color:{color}'>■</span> {text}" for text, color in words)
    return {
        "text": f"<b>{panel.title}</b> &nbsp;<span style='font-size:11px'>{detail}</span>",
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": y,
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 12},
    }


def staircase(data: Timeline, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Corners of a staircase: each value from its bin's begin to its end, down to 0 where nothing ran between."""
    begin_s, end_s = data.begin_s, data.end_s
    x = np.column_stack((begin_s, end_s)).ravel()
    y = np.repeat(values, 2)
    gaps = np.flatnonzero(begin_s[1:] > end_s[:-1]) + 1
    at = np.repeat(2 * gaps, 2)
    return np.insert(x, at, np.column_stack((end_s[gaps - 1], begin_s[gaps])).ravel()), np.insert(y, at, 0.0)


def line(data: Timeline, values: FloatArray, panel: int, name: str, color: str, hover: str, **more: Any) -> go.Scatter:
    x, y = staircase(data, values)
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": color, "width": more.pop("width", 1.4)},
        name=name,
        hovertemplate=f"{hover}<extra></extra>",
        **place(panel),
        **more,
    )


def note(text: str, color: str) -> dict[str, Any]:
    font = {"size": 11, "color": color}
    return {"text": text, "x": 1, "xref": "paper", "xanchor": "right", "showarrow": False, "font": font}


def limit_line(y: float, panel: int, color: str) -> dict[str, Any]:
    look = {"color": color, "width": 1, "dash": "dash"}
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "yref": axis("y", panel),
        "y0": y,
        "y1": y,
        "line": look,
    }

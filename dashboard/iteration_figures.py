"""Iterations over time, as one figure: what each served, what bounded it, how long it took, and the panels that people
know from vLLM's and Ray's Grafana boards, all over one axis of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from .colors import BLOCKS, DECODE, FAINT, GRID_LINE, NEUTRAL, PREFILL, SEQS, TOKENS, UNBOUND, WAITING, request_color
from .figures import new_figure
from .iteration_data import BOUNDS, ChunkBars, FloatArray, Timeline

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
_GAP = 0.052
ITERATIONS, BOUND, STEP, STATE, CACHE, PREEMPTIONS = range(len(PANELS))


class Limits(NamedTuple):
    """The knobs of the cell, drawn as lines."""

    max_num_seqs: int
    max_num_batched_tokens: int


def iterations(
    data: Timeline,
    limits: Limits,
    chunks: ChunkBars | None = None,
    preempted: Sequence[str] = (),
    *,
    height_px: int = 640,
) -> go.Figure:
    """Draw it. With ``chunks`` and ``preempted`` (for an exact timeline) prompts have the colours of their requests."""
    figure = new_figure("", height_px)
    top = _layout(figure, data)
    if data.is_exact:
        _exact_tokens(figure, data, chunks)
    else:
        _mean_tokens(figure, data)
    _budget(figure, data, limits)
    _bounds(figure, data)
    _steps(figure, data)
    _state(figure, data, limits)
    _cache(figure, data)
    _preemptions(figure, data, preempted)
    for panel, y in zip(PANELS, top, strict=True):
        figure.add_annotation(_panel_title(panel, y, data))
    return figure


def _layout(figure: go.Figure, data: Timeline) -> list[float]:
    """Axes one over the other; returns where each panel's top is, as a share of the height."""
    top, tops = 1.0, []
    axes: dict[str, Any] = {}
    for i, panel in enumerate(PANELS):
        height = panel.share * (1 - _GAP * len(PANELS)) / sum(p.share for p in PANELS)
        top -= _GAP
        axes[_axis("yaxis", i)] = {
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
    axes[_axis("yaxis", BOUND)] |= {"range": [0, 1], "showticklabels": False, "showgrid": False}
    axes[_axis("yaxis", CACHE)] |= {"range": [0, 100], "tickvals": [0, 50, 100], "tickformat": None}
    axes[_axis("yaxis", PREEMPTIONS)] |= _whole_numbers(data.preemptions)
    figure.update_layout(
        **axes,
        xaxis={
            "range": list(data.window),
            "anchor": _axis("y", len(PANELS) - 1),
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


def _axis(name: str, panel: int) -> str:
    return name if panel == 0 else f"{name}{panel + 1}"


def _place(panel: int) -> dict[str, str]:
    return {"xaxis": "x", "yaxis": _axis("y", panel)}


def _panel_title(panel: Panel, y: float, data: Timeline) -> dict[str, Any]:
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


def _steps_of(data: Timeline, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Corners of a staircase: each value from its bin's begin to its end, down to 0 where nothing ran between."""
    begin_s, end_s = data.begin_s, data.end_s
    x = np.column_stack((begin_s, end_s)).ravel()
    y = np.repeat(values, 2)
    gaps = np.flatnonzero(begin_s[1:] > end_s[:-1]) + 1
    at = np.repeat(2 * gaps, 2)
    return np.insert(x, at, np.column_stack((end_s[gaps - 1], begin_s[gaps])).ravel()), np.insert(y, at, 0.0)


def _line(data: Timeline, values: FloatArray, panel: int, name: str, color: str, hover: str, **more: Any) -> go.Scatter:
    x, y = _steps_of(data, values)
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": color, "width": more.pop("width", 1.4)},
        name=name,
        hovertemplate=f"{hover}<extra></extra>",
        **_place(panel),
        **more,
    )


def _mean_tokens(figure: go.Figure, data: Timeline) -> None:
    decodes = np.nan_to_num(data.decode_tokens)
    chunks = np.nan_to_num(data.prefill_tokens)
    both = decodes + chunks
    peak = np.nan_to_num(data.peak_tokens)
    largest = "the largest %{y:,.0f} tokens"
    figure.add_trace(_line(data, peak, ITERATIONS, "largest", "rgba(134, 142, 153, 0.75)", largest, width=0.8))
    hover = "%{y:,.0f} tokens, decodes and prompts<br>%{x:.3f} s"
    fill = {"fill": "tozeroy", "width": 0}
    figure.add_trace(_line(data, both, ITERATIONS, "prompts", PREFILL, hover, fillcolor=PREFILL, **fill))
    hover = "%{y:,.1f} decodes<br>%{x:.3f} s"
    figure.add_trace(_line(data, decodes, ITERATIONS, "decodes", DECODE, hover, fillcolor=DECODE, **fill))
    _legend(figure, (("decodes", DECODE), ("prompts", PREFILL)))


def _exact_tokens(figure: go.Figure, data: Timeline, chunks: ChunkBars | None) -> None:
    middle_s, width_s = (data.begin_s + data.end_s) / 2, data.end_s - data.begin_s
    edge = {"line": {"color": FAINT, "width": 0.6}}
    figure.add_trace(
        go.Bar(
            x=middle_s,
            width=width_s,
            y=data.decode_tokens,
            marker={"color": DECODE, **edge},
            customdata=np.column_stack((data.first, data.step_ms, data.begin_s)),
            hovertemplate=(
                "iteration %{customdata[0]:,}<br>%{y:,} decodes<br>%{customdata[1]:.2f} ms, from %{customdata[2]:.3f} s"
                "<extra></extra>"
            ),
            name="decodes",
            **_place(ITERATIONS),
        )
    )
    if chunks is None:
        extra = {"marker": {"color": PREFILL, **edge}, "name": "prompts", "hoverinfo": "skip", **_place(ITERATIONS)}
        figure.add_trace(go.Bar(x=middle_s, width=width_s, y=data.prefill_tokens, base=data.decode_tokens, **extra))
        return
    at = chunks.bin
    figure.add_trace(
        go.Bar(
            x=middle_s[at],
            width=width_s[at],
            y=chunks.num_tokens,
            base=chunks.base_tokens,
            marker={"color": [request_color(request) for request in chunks.request.tolist()], **edge},
            customdata=np.column_stack((data.first[at], chunks.request, chunks.num_tokens, chunks.start)),
            hovertemplate=(
                "<b>request %{customdata[1]:,}</b><br>iteration %{customdata[0]:,}<br>%{customdata[2]:,} tokens of its "
                "prompt, after %{customdata[3]:,}<extra></extra>"
            ),
            name="chunks",
            **_place(ITERATIONS),
        )
    )
    _legend(figure, (("decodes", DECODE), ("chunks, a colour a request", request_color(4))))


def _legend(figure: go.Figure, entries: Sequence[tuple[str, str]]) -> None:
    text = " &nbsp; ".join(f"<span style='color:{color}'>■</span> {name}" for name, color in entries)
    figure.add_annotation(
        text=text, x=1, xref="paper", xanchor="right", y=1 - _GAP, yref="paper", yanchor="bottom", showarrow=False
    )


def _budget(figure: go.Figure, data: Timeline, limits: Limits) -> None:
    """The line of the token budget; said in words where it would flatten everything else."""
    largest = float(np.nanmax(data.peak_tokens, initial=1.0))
    budget = limits.max_num_batched_tokens
    if budget > 4 * largest:
        text, y, yref = f"max_num_batched_tokens {budget:,} is far above ↑", 1 - _GAP - 0.005, "paper"
        figure.add_annotation(_note(text, TOKENS) | {"y": y, "yref": yref, "yanchor": "top"})
        return
    figure.add_shape(_limit_line(budget, ITERATIONS, TOKENS))
    note = _note(f"max_num_batched_tokens {budget:,}", TOKENS)
    figure.add_annotation(note | {"y": budget, "yref": "y", "yanchor": "top"})
    figure.update_layout(yaxis={"range": [0, 1.03 * max(largest, budget)]})


def _note(text: str, color: str) -> dict[str, Any]:
    font = {"size": 11, "color": color}
    return {"text": text, "x": 1, "xref": "paper", "xanchor": "right", "showarrow": False, "font": font}


def _limit_line(y: float, panel: int, color: str) -> dict[str, Any]:
    line = {"color": color, "width": 1, "dash": "dash"}
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "yref": _axis("y", panel),
        "y0": y,
        "y1": y,
        "line": line,
    }


def _bounds(figure: go.Figure, data: Timeline) -> None:
    """Shares of time, from the bottom: which bound held. Where nothing ran the strip is empty."""
    below: NDArray[np.float64] = np.zeros(len(data.begin_s))
    layers = []
    for i in range(len(BOUNDS)):
        below = below + data.bound_share[:, i]
        layers.append(below)
    for i in reversed(range(len(BOUNDS))):  # the highest first: each covers what lies under it
        hover = f"{BOUND_TEXTS[i]}<br>%{{x:.3f}} s"
        look = {"fill": "tozeroy", "fillcolor": BOUND_COLORS[i], "width": 0}
        shown = layers[i] if data.bound_share[:, i].any() else np.zeros(len(below))
        figure.add_trace(_line(data, shown, BOUND, BOUND_TEXTS[i], BOUND_COLORS[i], hover, **look))


def _steps(figure: go.Figure, data: Timeline) -> None:
    if not data.is_exact:
        peak = np.nan_to_num(data.peak_step_ms)
        figure.add_trace(
            _line(data, peak, STEP, "longest", "rgba(134, 142, 153, 0.75)", "longest %{y:.2f} ms", width=0.8)
        )
    hover = "step %{y:.2f} ms<br>%{x:.3f} s"
    mean = np.nan_to_num(data.step_ms)
    figure.add_trace(_line(data, mean, STEP, "step time", NEUTRAL, hover, fill="tozeroy", fillcolor=FAINT))


def _state(figure: go.Figure, data: Timeline, limits: Limits) -> None:
    figure.add_trace(_line(data, data.waiting, STATE, "waiting", WAITING, "%{y:,.1f} waiting<br>%{x:.3f} s"))
    figure.add_trace(_line(data, data.running, STATE, "running", SEQS, "%{y:,.1f} running<br>%{x:.3f} s"))
    most = max(float(data.running.max(initial=1.0)), float(data.waiting.max(initial=1.0)))
    words = f"<span style='color:{SEQS}'>━</span> running &nbsp; <span style='color:{WAITING}'>━</span> waiting"
    if limits.max_num_seqs <= 4 * most:
        figure.add_shape(_limit_line(limits.max_num_seqs, STATE, SEQS))
        words += f" &nbsp; <span style='color:{SEQS}'>┅</span> max_num_seqs {limits.max_num_seqs:,}"
    else:
        words += f" &nbsp; max_num_seqs {limits.max_num_seqs:,} is far above ↑"
    top = figure.layout[_axis("yaxis", STATE)].domain[1]
    figure.add_annotation(_note(words, NEUTRAL) | {"y": top, "yref": "paper", "yanchor": "bottom"})


def _cache(figure: go.Figure, data: Timeline) -> None:
    hover = "KV cache %{y:.1f} % used<br>%{x:.3f} s"
    fill = "rgba(204, 102, 119, 0.18)"
    figure.add_trace(_line(data, data.kv_percent, CACHE, "KV cache", BLOCKS, hover, fill="tozeroy", fillcolor=fill))


def _preemptions(figure: go.Figure, data: Timeline, preempted: Sequence[str]) -> None:
    some = np.flatnonzero(data.preemptions)
    names = [preempted[i] for i in some.tolist()] if len(preempted) == len(data.preemptions) else [""] * len(some)
    middle_s = ((data.begin_s + data.end_s) / 2)[some]
    figure.add_trace(
        go.Bar(
            x=middle_s,
            y=data.preemptions[some],
            width=np.maximum((data.end_s - data.begin_s)[some], (data.window[1] - data.window[0]) / 400),
            marker={"color": BLOCKS, "line": {"width": 0}},
            customdata=np.array(names, dtype=object).reshape(-1, 1),
            hovertemplate="%{y:,} preempted %{customdata[0]}<br>%{x:.3f} s<extra></extra>",
            name="preemptions",
            **_place(PREEMPTIONS),
        )
    )
    if len(some):
        figure.add_trace(
            go.Scatter(
                x=middle_s,
                y=np.zeros(len(some)),
                mode="markers",
                marker={"symbol": "triangle-up", "color": BLOCKS, "size": 7},
                cliponaxis=False,
                hoverinfo="skip",
                **_place(ITERATIONS),
            )
        )

"""Iterations over time, as one figure: what each served, what bounded it, how long it took, and the panels that people
know from vLLM's and Ray's Grafana boards, all over one axis of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from .colors import BLOCKS, DECODE, FAINT, NEUTRAL, PREFILL, SEQS, TOKENS, WAITING, request_color
from .figures import new_figure
from .iteration_data import BOUNDS, ChunkBars, Timeline
from .iteration_panels import (
    BOUND,
    BOUND_COLORS,
    BOUND_TEXTS,
    CACHE,
    GAP,
    ITERATIONS,
    PANELS,
    PREEMPTIONS,
    STATE,
    STEP,
    axis,
    lay_out,
    limit_line,
    line,
    note,
    panel_title,
    place,
)


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
    top = lay_out(figure, data)
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
        figure.add_annotation(panel_title(panel, y, data))
    return figure


def _mean_tokens(figure: go.Figure, data: Timeline) -> None:
    decodes = np.nan_to_num(data.decode_tokens)
    chunks = np.nan_to_num(data.prefill_tokens)
    both = decodes + chunks
    peak = np.nan_to_num(data.peak_tokens)
    largest = "the largest %{y:,.0f} tokens"
    figure.add_trace(line(data, peak, ITERATIONS, "largest", "rgba(134, 142, 153, 0.75)", largest, width=0.8))
    hover = "%{y:,.0f} tokens, decodes and prompts<br>%{x:.3f} s"
    fill = {"fill": "tozeroy", "width": 0}
    figure.add_trace(line(data, both, ITERATIONS, "prompts", PREFILL, hover, fillcolor=PREFILL, **fill))
    hover = "%{y:,.1f} decodes<br>%{x:.3f} s"
    figure.add_trace(line(data, decodes, ITERATIONS, "decodes", DECODE, hover, fillcolor=DECODE, **fill))
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
            **place(ITERATIONS),
        )
    )
    if chunks is None:
        extra = {"marker": {"color": PREFILL, **edge}, "name": "prompts", "hoverinfo": "skip", **place(ITERATIONS)}
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
            **place(ITERATIONS),
        )
    )
    _legend(figure, (("decodes", DECODE), ("chunks, a colour a request", request_color(4))))


def _legend(figure: go.Figure, entries: Sequence[tuple[str, str]]) -> None:
    text = " &nbsp; ".join(f"<span style='color:{color}'>■</span> {name}" for name, color in entries)
    figure.add_annotation(
        text=text, x=1, xref="paper", xanchor="right", y=1 - GAP, yref="paper", yanchor="bottom", showarrow=False
    )


def _budget(figure: go.Figure, data: Timeline, limits: Limits) -> None:
    """The line of the token budget; said in words where it would flatten everything else."""
    largest = float(np.nanmax(data.peak_tokens, initial=1.0))
    budget = limits.max_num_batched_tokens
    if budget > 4 * largest:
        text, y, yref = f"max_num_batched_tokens {budget:,} is far above ↑", 1 - GAP - 0.005, "paper"
        figure.add_annotation(note(text, TOKENS) | {"y": y, "yref": yref, "yanchor": "top"})
        return
    figure.add_shape(limit_line(budget, ITERATIONS, TOKENS))
    label = note(f"max_num_batched_tokens {budget:,}", TOKENS)
    figure.add_annotation(label | {"y": budget, "yref": "y", "yanchor": "top"})
    figure.update_layout(yaxis={"range": [0, 1.03 * max(largest, budget)]})


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
        figure.add_trace(line(data, shown, BOUND, BOUND_TEXTS[i], BOUND_COLORS[i], hover, **look))


def _steps(figure: go.Figure, data: Timeline) -> None:
    if not data.is_exact:
        peak = np.nan_to_num(data.peak_step_ms)
        figure.add_trace(
            line(data, peak, STEP, "longest", "rgba(134, 142, 153, 0.75)", "longest %{y:.2f} ms", width=0.8)
        )
    hover = "step %{y:.2f} ms<br>%{x:.3f} s"
    mean = np.nan_to_num(data.step_ms)
    figure.add_trace(line(data, mean, STEP, "step time", NEUTRAL, hover, fill="tozeroy", fillcolor=FAINT))


def _state(figure: go.Figure, data: Timeline, limits: Limits) -> None:
    figure.add_trace(line(data, data.waiting, STATE, "waiting", WAITING, "%{y:,.1f} waiting<br>%{x:.3f} s"))
    figure.add_trace(line(data, data.running, STATE, "running", SEQS, "%{y:,.1f} running<br>%{x:.3f} s"))
    most = max(float(data.running.max(initial=1.0)), float(data.waiting.max(initial=1.0)))
    words = f"<span style='color:{SEQS}'>━</span> running &nbsp; <span style='color:{WAITING}'>━</span> waiting"
    if limits.max_num_seqs <= 4 * most:
        figure.add_shape(limit_line(limits.max_num_seqs, STATE, SEQS))
        words += f" &nbsp; <span style='color:{SEQS}'>┅</span> max_num_seqs {limits.max_num_seqs:,}"
    else:
        words += f" &nbsp; max_num_seqs {limits.max_num_seqs:,} is far above ↑"
    top = figure.layout[axis("yaxis", STATE)].domain[1]
    figure.add_annotation(note(words, NEUTRAL) | {"y": top, "yref": "paper", "yanchor": "bottom"})


def _cache(figure: go.Figure, data: Timeline) -> None:
    hover = "KV cache %{y:.1f} % used<br>%{x:.3f} s"
    fill = "rgba(204, 102, 119, 0.18)"
    figure.add_trace(line(data, data.kv_percent, CACHE, "KV cache", BLOCKS, hover, fill="tozeroy", fillcolor=fill))


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
            **place(PREEMPTIONS),
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
                **place(ITERATIONS),
            )
        )

"""What padding would cost, and how near an iteration is to both bounds."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from .colors import FAINT, NEUTRAL, SEQS, TOKENS, request_color
from .figures import new_figure
from .forward_data import Forward
from .forward_figures import heading, nothing, short_name
from .labels import percent

MOST_ROWS = 24
"""Rows of the rectangle that are named."""


def rectangle(data: Forward, *, height_px: int = 158) -> go.Figure:
    """The padded ``[B, L_max]`` rectangle that static batching would compute for the same tokens."""
    found = data.rectangle
    figure = new_figure("", height_px)
    detail = (
        f"[{found.num_rows:,}, {found.length_tokens:,}]: {found.num_wasted_tokens:,} of {found.num_slots:,} slots "
        f"wasted, {percent(found.waste_percent)}"
    )
    figure.update_layout(
        title=heading("Static [B, L_max]", detail), margin={"l": 62, "r": 10, "t": 34, "b": 22}, barmode="overlay"
    )
    if data.num_seqs == 0:
        return nothing(figure, "No rows, no rectangle.")
    rows = np.arange(data.num_seqs)
    gap = 0.12 if data.num_seqs <= 100 else 0.0
    common = {"y": rows, "orientation": "h", "width": 1 - gap}
    figure.add_trace(
        go.Bar(
            x=np.full(len(rows), found.length_tokens),
            marker={"color": FAINT, "pattern": {"shape": "/", "fgcolor": NEUTRAL, "size": 5, "solidity": 0.22}},
            hoverinfo="skip",
            name="padding",
            **common,
        )
    )
    waste = found.length_tokens - data.shapes.query_lens
    figure.add_trace(
        go.Bar(
            x=data.shapes.query_lens,
            marker={"color": [request_color(int(request)) for request in data.request]},
            customdata=np.column_stack((np.array(data.names, dtype=object), waste)),
            hovertemplate="<b>%{customdata[0]}</b><br>%{x:,} tokens and %{customdata[1]:,} of padding<extra></extra>",
            name="tokens",
            **common,
        )
    )
    figure.update_xaxes(range=[0, found.length_tokens], nticks=5, tickformat=",", zeroline=False, showgrid=False)
    named = data.num_seqs <= MOST_ROWS
    figure.update_yaxes(
        range=[data.num_seqs - 0.5, -0.5],
        tickvals=rows if named else [0, data.num_seqs - 1],
        ticktext=[short_name(data, i) for i in range(data.num_seqs)] if named else ["row 0", f"{data.num_seqs - 1:,}"],
        showgrid=False,
        zeroline=False,
    )
    return figure


def gauges(data: Forward, *, height_px: int = 92) -> go.Figure:
    """How much of both bounds this iteration uses."""
    config = data.config
    tokens = data.num_tokens + data.num_padded_tokens
    rows = (
        ("resident", data.num_running, config.max_num_seqs, SEQS, "max_num_seqs"),
        ("served", data.num_seqs, config.max_num_seqs, SEQS, "max_num_seqs"),
        ("tokens T", tokens, config.max_num_batched_tokens, TOKENS, "max_num_batched_tokens"),
    )
    figure = new_figure("", height_px)
    figure.update_layout(margin={"l": 62, "r": 0, "t": 2, "b": 2}, barmode="overlay")
    y = np.arange(len(rows))
    shares = np.array([value / limit for _, value, limit, *_ in rows])
    texts = [f"<b>{value:,}</b> of {name} {limit:,}" for _, value, limit, _, name in rows]
    common = {"y": y, "orientation": "h", "width": 0.56, "hovertemplate": "%{customdata}<extra></extra>"}
    hovers = [f"{text} · {percent(100 * share)}" for text, share in zip(texts, shares.tolist(), strict=True)]
    figure.add_trace(go.Bar(x=np.ones(len(rows)), marker={"color": FAINT}, customdata=hovers, **common))
    figure.add_trace(go.Bar(x=shares, marker={"color": [row[3] for row in rows]}, customdata=hovers, **common))
    for i, text in enumerate(texts):
        figure.add_annotation(text=text, x=0.32, xref="paper", xanchor="left", y=i, showarrow=False, font={"size": 11})
    figure.update_xaxes(domain=[0, 0.3], range=[0, max(1.0, float(shares.max()))], visible=False)
    figure.update_yaxes(
        range=[len(rows) - 0.5, -0.5], tickvals=y, ticktext=[row[0] for row in rows], showgrid=False, zeroline=False
    )
    return figure

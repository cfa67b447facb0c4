"""The flat batch of one forward: cells with numbers for a few tokens, drawn to scale for many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import plotly.graph_objects as go

from .colors import FAINT, GRID_LINE, NEUTRAL, REQUEST_TEXT, REQUESTS, request_color, tint
from .figures import new_figure
from .forward_data import Forward

MOST_CELLS = 40
"""Tokens that are drawn as cells with their numbers in them; more are drawn to scale."""


def heading(head: str, detail: str) -> dict[str, Any]:
    """A figure's title on one line."""
    text = f"<b>{head}</b> &nbsp;<span style='font-size:12px;font-weight:400'>{detail}</span>"
    return {"text": text, "pad": {"t": 6}, "font": {"size": 13.5}}


def flat_batch(data: Forward, *, height_px: int = 252) -> go.Figure:
    """``input_tokens``, ``positions`` and ``slot_mapping`` over the rows of the flat batch."""
    figure = new_figure("", height_px)
    tokens, seqs = _counted(data.num_tokens, "token"), _counted(data.num_seqs, "sequence")
    detail = f"{tokens} of {seqs} in a row, without padding"
    figure.update_layout(
        title=heading("What the model receives", detail),
        margin={"l": 118, "r": 10, "t": 34, "b": 36},
        bargap=0,
        barmode="overlay",
    )
    if data.num_tokens == 0:
        return nothing(figure, "This iteration serves nobody: it only preempts.")
    (_cells if data.num_tokens <= MOST_CELLS else _to_scale)(figure, data)
    return figure


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def nothing(figure: go.Figure, text: str) -> go.Figure:
    """``figure`` with a sentence in the place of its picture."""
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.add_annotation(text=text, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    return figure


# Few tokens: a cell each.


def _cells(figure: go.Figure, data: Forward) -> None:
    shapes, seq = data.shapes, data.seq_of_token
    t = data.num_tokens
    tokens = [
        f"{short_name(data, s)}<sub>{position}</sub>"
        for s, position in zip(seq.tolist(), shapes.positions.tolist(), strict=True)
    ]
    colors = [request_color(int(data.request[s])) for s in seq]
    rows = (
        (2, "input_tokens", tokens, colors),
        (1, "positions", list(map(str, shapes.positions.tolist())), [tint(color) for color in colors]),
        (0, "slot_mapping", list(map(str, shapes.slot_mapping.tolist())), [tint(color) for color in colors]),
    )
    hovers = _token_hovers(data)
    for at, name, texts, fills in rows:
        figure.add_trace(_cell_row(at, name, texts, fills, hovers))
    boundaries = shapes.query_start_loc.tolist()
    for x in boundaries:
        line = {"color": NEUTRAL, "width": 1.5}
        figure.add_shape(type="line", x0=x, x1=x, y0=-0.12, y1=3.35, line=line)
    for i, name in enumerate(data.names):
        middle = (boundaries[i] + boundaries[i + 1]) / 2
        figure.add_annotation(_sequence_note(data, i, name, middle))
    for row in shapes.sample_rows.tolist():
        figure.add_annotation(text="▲", x=row + 0.5, y=-0.2, yanchor="top", showarrow=False, font={"size": 10})
    figure.update_xaxes(
        range=[0, t],
        tickvals=boundaries,
        title=_x_title(data, "▲ its logits are needed"),
        showgrid=False,
        zeroline=False,
    )
    labels = [f"{name} [{t}]" for _, name, *_ in rows]
    figure.update_yaxes(
        range=[-0.55, 3.75], tickvals=[row[0] + 0.45 for row in rows], ticktext=labels, showgrid=False, zeroline=False
    )


def short_name(data: Forward, seq: int) -> str:
    name = data.names[seq]
    return name if name.isalpha() else str(int(data.request[seq]))


def _cell_row(at: int, name: str, texts: list[Any], colors: list[str], hovers: list[str]) -> go.Bar:
    return go.Bar(
        x=np.arange(len(texts)) + 0.5,
        y=np.full(len(texts), 0.9),
        base=at,
        width=0.94,
        marker={"color": colors, "line": {"width": 0}},
        text=texts,
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"color": REQUEST_TEXT, "size": 12},
        constraintext="none",
        customdata=hovers,
        hovertemplate="%{customdata}<extra></extra>",
        name=name,
    )


def _token_hovers(data: Forward) -> list[str]:
    shapes, size = data.shapes, data.config.block_size
    out = []
    for row, seq in enumerate(data.seq_of_token.tolist()):
        position, slot = int(shapes.positions[row]), int(shapes.slot_mapping[row])
        blocks = shapes.readable_blocks(seq, size)[: position // size + 1]
        some = ", ".join(map(str, blocks[:12])) + (" …" if len(blocks) > 12 else "")
        out.append(
            f"<b>{data.names[seq]}</b>, its token at position {position:,}<br>"
            f"row {row:,} of the batch; may see positions 0 … {position:,}<br>"
            f"in block{'s' if len(blocks) > 1 else ''} {some}<br>"
            f"K and V go to slot {slot:,} = block {slot // size:,} × {size} + {slot % size}"
        )
    return out


def _sequence_note(data: Forward, i: int, name: str, x: float) -> dict[str, Any]:
    length, new = int(data.shapes.seq_lens[i]), int(data.shapes.query_lens[i])
    what = "decode" if i < data.shapes.num_decode_rows else "prompt" if data.starts[i] == 0 else "next chunk"
    wide = 6 * new >= data.num_tokens
    detail = f"{what} · seq_len {length:,}" if wide and new > 2 else f"seq_len {length:,}" if wide else f"{length:,}"
    short = name if wide else short_name(data, i)
    text = f"<b>{short}</b><br>{detail}"
    return {"text": text, "x": x, "y": 3.0, "yanchor": "bottom", "showarrow": False, "font": {"size": 11}}


def _x_title(data: Forward, more: str = "") -> dict[str, Any]:
    text = f"query_start_loc [{data.num_seqs + 1:,}]" + (f" &nbsp;·&nbsp; {more}" if more else "")
    return {"text": text, "standoff": 4, "font": {"size": 11.5}}


# Many tokens: to scale.


def _to_scale(figure: go.Figure, data: Forward) -> None:
    shapes, t = data.shapes, data.num_tokens
    begins, lengths = shapes.query_start_loc[:-1], shapes.query_lens
    colors = [request_color(int(request)) for request in data.request]
    edge = {"line": {"color": FAINT, "width": 0.6 if data.num_seqs <= 300 else 0}}
    hovers = [_sequence_hover(data, i) for i in range(data.num_seqs)]
    common = {"x": begins + lengths / 2, "width": lengths, "hovertemplate": "%{customdata}<extra></extra>"}
    figure.add_trace(
        go.Bar(
            y=np.ones(len(begins)), marker={"color": colors, **edge}, customdata=hovers, name="input_tokens", **common
        )
    )
    figure.add_trace(
        go.Bar(
            y=shapes.seq_lens,
            marker={"color": colors, "opacity": 0.3, **edge},
            customdata=hovers,
            name="seq_lens",
            yaxis="y2",
            **common,
        )
    )
    figure.add_trace(_ramps(data))
    for trace in _slots(data):
        figure.add_trace(trace)
    marks = [0, *begins[(lengths * 40 >= t) & (begins * 40 >= t)].tolist()]
    figure.update_xaxes(
        range=[0, t],
        tickvals=[*marks, t],
        ticklen=4,
        ticks="outside",
        title=_x_title(data),
        anchor="y3",
        tickformat=",",
    )
    plain = {"zeroline": False, "gridcolor": GRID_LINE, "nticks": 4, "rangemode": "tozero", "tickformat": "~s"}
    figure.update_layout(
        yaxis={"domain": [0.86, 1], "tickvals": [0.5], "ticktext": [f"input_tokens [{t:,}]"], "showgrid": False},
        yaxis2={**plain, "domain": [0.42, 0.8]},
        yaxis3={**plain, "domain": [0, 0.36]},
    )
    for text, y in (("positions,<br>seq_lens", 0.61), ("slot_mapping", 0.18)):
        place = {"x": 0, "xref": "paper", "xanchor": "right", "xshift": -36, "y": y, "yref": "paper"}
        figure.add_annotation(text=text, showarrow=False, align="right", font={"size": 12}, **place)


def _sequence_hover(data: Forward, i: int) -> str:
    shapes = data.shapes
    new, start = int(shapes.query_lens[i]), int(data.starts[i])
    blocks = -(-int(shapes.seq_lens[i]) // data.config.block_size)
    what = "a decode: one token" if i < shapes.num_decode_rows else f"{new:,} tokens of its prompt"
    return (
        f"<b>{data.names[i]}</b>, {what}<br>rows {int(shapes.query_start_loc[i]):,} to "
        f"{int(shapes.query_start_loc[i + 1]) - 1:,} of the batch<br>{start:,} tokens before, seq_len {start + new:,}, "
        f"{blocks:,} block{'s' if blocks > 1 else ''}"
    )


def _slots(data: Forward) -> Iterator[go.Scatter]:
    """Where each token is written: a stroke for every run of neighbouring slots, a point for a single one."""
    slots, seq = data.shapes.slot_mapping, data.seq_of_token
    breaks = np.flatnonzero((np.diff(slots) != 1) | (np.diff(seq) != 0)) + 1
    starts, stops = np.append(0, breaks), np.append(breaks, len(slots))
    colors = data.request[seq[starts]] % len(REQUESTS)
    hover = {"hovertemplate": "row %{x:,.0f} is written to slot %{y:,}<extra></extra>", "yaxis": "y3"}
    for color in np.unique(colors).tolist():
        mine = colors == color
        run, single = mine & (stops - starts > 1), mine & (stops - starts == 1)
        nothing = np.full(int(run.sum()), np.nan)
        x = np.column_stack((starts[run], stops[run] - 1, nothing)).ravel()
        y = np.column_stack((slots[starts[run]], slots[stops[run] - 1], nothing)).ravel()
        look = {"color": REQUESTS[color], "width": 4}
        yield go.Scatter(x=x, y=y, mode="lines", line=look, name="slot_mapping", **hover)
        square = {"color": REQUESTS[color], "size": 5, "symbol": "square"}
        at = starts[single]
        yield go.Scatter(x=at, y=slots[at], mode="markers", marker=square, name="slot_mapping", **hover)


def _ramps(data: Forward) -> go.Scatter:
    """The positions of each sequence: a ramp from where it stood to its length."""
    begins, ends = data.shapes.query_start_loc[:-1].astype(float), data.shapes.query_start_loc[1:].astype(float)
    x = np.column_stack((begins, ends, np.full(len(begins), np.nan))).ravel()
    y = np.column_stack((data.starts, data.shapes.seq_lens, np.full(len(begins), np.nan))).ravel()
    line = {"color": NEUTRAL, "width": 1.6}
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", name="positions", yaxis="y2")

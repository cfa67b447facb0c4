"""What every figure has in common, and the parity plot. Figures are built from data alone and set no text colour, so
that the page they stand on, light or dark, decides it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from .colors import FAINT, GRID_LINE, MEASURED, NEUTRAL, PREDICTED
from .labels import CHOOSERS, NULLS, label, percent, quantity

FONT = "Inter, 'Source Sans 3', 'Source Sans', 'Segoe UI', system-ui, sans-serif"
BANDS_PERCENT = (25, 10, 5)
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "cross")
"""What tells cells apart: colours are taken, for predicted and measured."""
_TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 12},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
        "title": {"x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "pad": {"t": 14}, "font": {"size": 14}},
    }
)


def new_figure(title: str, height_px: int) -> go.Figure:
    """An empty figure in our style."""
    figure = go.Figure()
    figure.update_layout(
        template=_TEMPLATE,
        title={"text": title},
        height=height_px,
        margin={"l": 62, "r": 12, "t": 58, "b": 48},
        showlegend=False,
    )
    return figure


def restyle(figure: go.Figure, height_px: int) -> None:
    """Our style for a figure that Plotly made."""
    figure.update_layout(
        template=_TEMPLATE, height=height_px, margin={"l": 62, "r": 12, "t": 34, "b": 60}, showlegend=False
    )


def title(head: str, detail: str, color: str | None = None) -> str:
    """A bold head (with a dot of its colour) over what is shown and in which unit."""
    dot = f"<span style='color:{color}'>●</span> " if color else ""
    return f"{dot}<b>{head}</b><br><span style='font-size:12px;font-weight:400'>{detail}</span>"


def parity(data: pd.DataFrame, metric: str, *, height_px: int = 380) -> go.Figure:
    """Predicted over measured with the ±5, ±10 and ±25 % bands; the null baselines wait in the legend."""
    found = label(metric)
    figure = new_figure(title(f"Parity: {found.text}", "Bands of ±5, ±10 and ±25 %"), height_px)
    low, high, log = _range(data, found.scale)
    for trace in _bands(low, high):
        figure.add_trace(trace)
    for null in NULLS:
        figure.add_trace(_null_points(data, null, found.scale))
    for regime, rows in _regimes(data):
        figure.add_trace(_points(rows, metric, regime))
    unit = f" ({found.unit})" if found.unit else ""
    axis = _axis(low, high, log)
    figure.update_xaxes(title=_axis_title("Measured", unit, MEASURED), **axis)
    figure.update_yaxes(title=_axis_title("Predicted", unit, PREDICTED), **axis)
    figure.update_layout(
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top", "font": {"size": 11}},
    )
    return figure


def _axis(low: float, high: float, log: bool) -> dict[str, object]:
    return {
        "type": "log" if log else "linear",
        "range": [math.log10(low), math.log10(high)] if log else [low, high],
        "dtick": "D2" if log else None,
        "nticks": 7,
        "tickformat": "~s",
        "gridcolor": GRID_LINE,
        "zeroline": False,
    }


def _axis_title(text: str, unit: str, color: str) -> dict[str, object]:
    return {"text": f"<span style='color:{color}'>●</span> {text}{unit}", "standoff": 12}


def _range(data: pd.DataFrame, scale: float) -> tuple[float, float, bool]:
    """Lower and upper end of both axes, and whether they are logarithmic: where values span more than fourfold."""
    values = data[["measured", "predicted"]].to_numpy(dtype=float) * scale
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0, False
    low, high = float(values.min()), float(values.max())
    if low > 0 and high / low > 4:
        return low / 1.25, high * 1.25, True
    pad = 0.12 * (high - low) or 0.12 * abs(high) or 1.0
    return max(low - pad, 0.0) if low >= 0 else low - pad, high + pad, False


def _bands(low: float, high: float) -> Iterator[go.Scatter]:
    ends = np.array([low, high])
    for width in BANDS_PERCENT:
        above, below = ends * (1 + width / 100), ends * (1 - width / 100)
        yield go.Scatter(
            x=np.concatenate((ends, ends[::-1])),
            y=np.concatenate((above, below[::-1])),
            mode="lines",
            line={"width": 0},
            fill="toself",
            fillcolor=FAINT,
            hoverinfo="skip",
            name=f"±{width} %",
            showlegend=False,
        )
    line = {"color": NEUTRAL, "width": 1}
    yield go.Scatter(x=ends, y=ends, mode="lines", line=line, hoverinfo="skip", name="equal", showlegend=False)


def _regimes(data: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The cells below saturation and those beyond it, each with a mark of its own."""
    saturated = data["load_rho"] >= 1
    yield "Below saturation", data[~saturated]
    yield "Saturated (load ρ ≥ 1)", data[saturated]


def _points(data: pd.DataFrame, metric: str, regime: str) -> go.Scatter:
    scale = label(metric).scale
    records: list[dict[str, object]] = data.to_dict("records")  # type: ignore[assignment]
    return go.Scatter(
        x=data["measured"] * scale,
        y=data["predicted"] * scale,
        error_x={"array": data["noise"].fillna(0) * scale, "color": MEASURED, "thickness": 1.2, "width": 0},
        mode="markers",
        marker={
            "color": PREDICTED,
            "size": 9,
            "symbol": "circle" if regime.startswith("Below") else "square",
            "line": {"color": "white", "width": 1},
        },
        name=regime,
        customdata=[_hover(row, metric) for row in records],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _hover(row: dict[str, object], metric: str) -> str:
    return (
        f"<b>{row['max_num_seqs']} × {row['max_num_batched_tokens']}</b> · {row['policy']}<br>"
        f"predicted {quantity(metric, float(str(row['predicted'])))}<br>"
        f"measured {quantity(metric, float(str(row['measured'])))}<br>"
        f"error {percent(float(str(row['error_percent'])), signed=True)}"
    )


def _null_points(data: pd.DataFrame, null: str, scale: float) -> go.Scatter:
    return go.Scatter(
        x=data["measured"] * scale,
        y=data[null] * scale,
        mode="markers",
        marker={"color": NEUTRAL, "size": 8, "symbol": "x-thin-open" if null == "constant" else "circle-open"},
        name=CHOOSERS[null],
        visible="legendonly",
        hoverinfo="skip",
    )

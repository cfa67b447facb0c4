"""Throughput against what a user feels: every cell, the frontier, the SLOs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..experiments.grid import Cell
from ..experiments.recommend import SLO_METRIC
from .colors import FAINT, GRID_LINE, MEASURED, NEUTRAL, PREDICTED
from .data import compared, meets_slo
from .figures import new_figure, title
from .heatmaps import CLICKS
from .labels import label, number
from .results import Results

Against = Literal["p99_itl_ms", "p99_ttft_ms", "tokens_per_s_user"]
AGAINST: dict[Against, str] = {
    "p99_itl_ms": "P99 ITL (ms)",
    "p99_ttft_ms": "P99 TTFT (ms)",
    "tokens_per_s_user": "Tokens/s a user (1 / mean TPOT)",
}
"""What the throughput of a device may be held against."""
_SPEED = "tokens_per_s_user"


@dataclass(frozen=True)
class ParetoData:
    """One row a cell with ``throughput`` (output tokens/s a device), ``against`` (of ``AGAINST``), the same measured
    where they are, ``meets_slo`` and whether the cell is on the predicted ``frontier``.
    """

    against: Against
    rows: pd.DataFrame
    limit: float | None
    """The SLO on this axis, in its unit; None if there is none."""
    recommended: Cell | None


def pareto_data(results: Results, against: Against, slo: dict[str, float], recommended: Cell | None) -> ParetoData:
    """The cells that have a result. Behind a router the throughput is that of one replica."""
    devices = results.sweep.spec.scenario.num_replicas
    source = "mean_tpot_ms" if against == _SPEED else against
    measured = {name: compared(results, name) for name in ("output_throughput", source)}
    rows = []
    for result in (result for result in results.cells if result.metrics):
        found = {name: of[result.cell]["measured"] for name, of in measured.items() if result.cell in of}
        rows.append(
            {
                **result.cell._asdict(),
                "throughput": result.metrics["output_throughput"] / devices,
                "against": _turned(result.metrics[source], against),
                "measured_throughput": found.get("output_throughput", np.nan) / devices,
                "measured_against": _turned(found.get(source, np.nan), against),
                "meets_slo": meets_slo(result, slo),
            }
        )
    columns = [*Cell._fields, "throughput", "against", "measured_throughput", "measured_against", "meets_slo"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["frontier"] = frontier(frame["throughput"], frame["against"], lower_is_better=against != _SPEED)
    return ParetoData(against, frame, _limit(against, slo), recommended)


def frontier(throughput: pd.Series[float], against: pd.Series[float], *, lower_is_better: bool) -> list[bool]:
    """Whether no other cell is at least as good in both and better in one; never where a value is undefined."""
    cost = (against if lower_is_better else -against).to_numpy(dtype=float)
    gain = throughput.to_numpy(dtype=float)
    on = []
    for mine, paid in zip(gain, cost, strict=True):
        better = (gain >= mine) & (cost <= paid) & ((gain > mine) | (cost < paid))
        on.append(bool(np.isfinite(mine) and np.isfinite(paid) and not better.any()))
    return on


def _turned(milliseconds: float, against: Against) -> float:
    return 1000.0 / milliseconds if against == _SPEED and milliseconds else milliseconds


def _limit(against: Against, slo: dict[str, float]) -> float | None:
    if against == _SPEED:
        return 1000.0 / slo["tpot_ms"] if "tpot_ms" in slo else None
    name = next((name for name, metric in SLO_METRIC.items() if metric == against), None)
    return slo.get(name) if name else None


def pareto(data: ParetoData, *, height_px: int = 400) -> go.Figure:
    """Cloud, frontier, what was measured joined to its prediction, and a shade over what misses this axis's SLO."""
    head = title("Throughput a device", f"Output tokens/s against {AGAINST[data.against]}; frontier: no cell beats it")
    figure = new_figure(head, height_px)
    if data.limit is not None:
        _shade(figure, data)
    on = data.rows[data.rows["frontier"]].sort_values("against")
    line = {"color": PREDICTED, "width": 1.5, "shape": "hv" if data.against != _SPEED else "vh"}
    figure.add_trace(
        go.Scatter(x=on["against"], y=on["throughput"], mode="lines", line=line, name="Frontier", hoverinfo="skip")
    )
    for trace in (_twins(data.rows), _cloud(data), _chosen(data)):
        figure.add_trace(trace)
    figure.update_xaxes(title=AGAINST[data.against], gridcolor=GRID_LINE, zeroline=False, rangemode="tozero")
    figure.update_yaxes(title="Output tokens/s a device", gridcolor=GRID_LINE, zeroline=False)
    figure.update_layout(
        showlegend=True,
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
        clickmode="event+select",
        dragmode=False,
    )
    return figure


def _shade(figure: go.Figure, data: ParetoData) -> None:
    if data.limit is None:
        return
    values = data.rows[["against", "measured_against"]].to_numpy(dtype=float)
    far = 1.1 * max(float(np.nanmax(values, initial=0.0)), data.limit)
    x0, x1 = (0.0, data.limit) if data.against == _SPEED else (data.limit, far)
    figure.add_vrect(x0=x0, x1=x1, fillcolor=FAINT, line_width=0, layer="below")
    figure.add_vline(
        x=data.limit,
        line={"color": NEUTRAL, "dash": "dash", "width": 1},
        annotation={"text": f"SLO {number(data.limit)}", "font": {"size": 11}},
    )


def _twins(rows: pd.DataFrame) -> go.Scatter:
    found = rows[rows["measured_throughput"].notna()]
    gap = [np.nan] * len(found)
    x = np.column_stack((found["measured_against"], found["against"], gap)).ravel()
    y = np.column_stack((found["measured_throughput"], found["throughput"], gap)).ravel()
    size = np.tile([9, 0, 0], len(found))
    return go.Scatter(
        x=x,
        y=y,
        mode="lines+markers",
        line={"color": MEASURED, "width": 1},
        marker={"color": MEASURED, "size": size, "symbol": "diamond", "opacity": 1},
        name="Measured",
        hoverinfo="skip",
    )


def _cloud(data: ParetoData) -> go.Scatter:
    rows = data.rows
    texts = [
        f"<b>{row.max_num_seqs:,} × {row.max_num_batched_tokens:,}</b> · {row.policy}<br>"
        f"{number(float(row.throughput))} tokens/s · {AGAINST[data.against]} {number(float(row.against))}"  # type: ignore[arg-type]
        for row in rows.itertuples()
    ]
    keys = [
        Cell(str(row.policy), int(row.max_num_seqs), int(row.max_num_batched_tokens)).key  # type: ignore[arg-type]
        for row in rows.itertuples()
    ]
    return go.Scatter(
        x=rows["against"],
        y=rows["throughput"],
        mode="markers",
        marker={
            "color": PREDICTED,
            "size": 9,
            "symbol": ["circle" if met else "circle-open" for met in rows["meets_slo"]],
        },
        unselected={"marker": {"opacity": 1}},
        customdata=list(zip(keys, texts, strict=True)),
        hovertemplate="%{customdata[1]}<extra></extra>",
        name="Predicted (hollow: misses an SLO)" if not rows["meets_slo"].all() else "Predicted",
        meta=CLICKS,
    )


def _chosen(data: ParetoData) -> go.Scatter:
    rows = data.rows
    if data.recommended is None:
        mine = rows.iloc[:0]
    else:
        same = [rows[name] == value for name, value in data.recommended._asdict().items()]
        mine = rows[np.logical_and.reduce(same)]
    return go.Scatter(
        x=mine["against"],
        y=mine["throughput"],
        mode="markers",
        marker={"symbol": "star-open", "size": 17, "color": NEUTRAL, "line": {"width": 2.5, "color": NEUTRAL}},
        name="Recommended",
        hoverinfo="skip",
    )


def explorer(rows: pd.DataFrame, metrics: tuple[str, ...], *, height_px: int = 330) -> go.Figure:
    """Parallel coordinates over the knobs (as powers of two) and ``metrics``: drag along an axis to keep a range."""
    figure = new_figure("", height_px)
    found = rows[rows["status"] == "ok"]
    dimensions = [_knob_axis(found, knob) for knob in ("max_num_seqs", "max_num_batched_tokens")]
    for name in (name for name in metrics if name in found and found[name].notna().any()):
        values = found[name].astype(float) * label(name).scale
        dimensions.append({"label": label(name).brief, "values": values, "tickformat": "~g"})
    first = found[metrics[0]] if metrics and metrics[0] in found else None
    line = {"color": first, "colorscale": "Cividis", "showscale": False} if first is not None else {"color": PREDICTED}
    figure.add_trace(go.Parcoords(dimensions=dimensions, line=line, labelfont={"size": 12}, tickfont={"size": 11}))
    figure.update_layout(margin={"l": 70, "r": 50, "t": 50, "b": 24}, title=None)
    return figure


def _knob_axis(rows: pd.DataFrame, knob: str) -> dict[str, object]:
    values = sorted(set(rows[knob].astype(int)))
    return {
        "label": knob,
        "values": np.log2(rows[knob].astype(float)),
        "tickvals": np.log2(values).tolist() if values else [],
        "ticktext": [f"{value:,}" for value in values],
    }

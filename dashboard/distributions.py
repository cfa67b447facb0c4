"""Whole distributions of TTFT, ITL, TPOT and E2E, side by side for several cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from ..experiments.grid import Cell
from ..experiments.run import Kind, Run
from ..sim.metrics import itl_gaps, request_times
from .colors import GRID_LINE, MEASURED, PREDICTED
from .data import compared
from .figures import DASHES, restyle
from .labels import label, number, percent
from .results import Results
from .words import cell_name

TIMES = {
    "ttft": "TTFT (ms): arrival to first token",
    "itl": "ITL (ms): every gap between tokens",
    "tpot": "TPOT (ms): a request's mean gap",
    "e2el": "E2E (ms): arrival to last token",
}
"""Never one for the other: ITL pools all gaps, TPOT is one mean a request."""
_POINTS = 201
_COLOR = {"predicted": PREDICTED, "measured": MEASURED}
TABLE = (
    "output_throughput",
    "request_goodput",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_itl_ms",
    "p99_itl_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
    "num_preemptions",
    "mean_kv_usage",
)


@dataclass(frozen=True)
class Distribution:
    """One cell in one world: for each of ``TIMES`` the values (ms) at equally spaced shares from 0 to 1."""

    cell: Cell
    kind: Kind
    quantiles_ms: dict[str, NDArray[np.float64]]


def distribution(cell: Cell, run: Run) -> Distribution:
    """The distributions of a run."""
    times = request_times(run.records)
    gaps_s, counts = itl_gaps(run.records)
    found = {
        "ttft": _quantiles(times.ttft_s),
        "itl": _quantiles(gaps_s, counts),
        "tpot": _quantiles(times.tpot_s[~np.isnan(times.tpot_s)]),
        "e2el": _quantiles(times.e2el_s),
    }
    return Distribution(cell, run.kind, {name: values * 1e3 for name, values in found.items()})


def _quantiles(values: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Of a weighted sample, where its cumulative weight first reaches each share; NaN of nothing."""
    if not len(values):
        return np.full(_POINTS, np.nan)
    weights = np.ones(len(values), dtype=np.int64) if counts is None else counts
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(weights[order])
    wanted = np.ceil(np.linspace(0, 1, _POINTS) * ends[-1]).clip(1)
    return np.asarray(values[order][np.searchsorted(ends, wanted, side="left")])


def frame(found: Sequence[Distribution]) -> pd.DataFrame:
    """One row a share, cell and world."""
    shares = np.linspace(0, 1, _POINTS)
    parts = [
        pd.DataFrame(
            {
                **one.cell._asdict(),
                "kind": one.kind,
                "share": shares,
                **{f"{name}_ms": values for name, values in one.quantiles_ms.items()},
            }
        )
        for one in found
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def cdfs(found: Sequence[Distribution], *, height_px: int = 350) -> go.Figure:
    """Four cumulative distributions; a dash a cell, a colour a world. Log axes where values span tenfold."""
    figure = make_subplots(rows=1, cols=len(TIMES), subplot_titles=list(TIMES.values()), shared_yaxes=True)
    restyle(figure, height_px)
    cells = list(dict.fromkeys(one.cell for one in found))
    shares = np.linspace(0, 100, _POINTS)
    for column, name in enumerate(TIMES, start=1):
        for one in found:
            figure.add_trace(
                go.Scatter(
                    x=one.quantiles_ms[name],
                    y=shares,
                    mode="lines",
                    line={"color": _COLOR[one.kind], "dash": DASHES[cells.index(one.cell) % len(DASHES)], "width": 2},
                    name=f"{cell_name(one.cell)} {one.kind}",
                    legendgroup=f"{one.cell} {one.kind}",
                    showlegend=column == 1,
                    hovertemplate="%{y:.0f} % within %{x:.3g} ms<extra>%{fullData.name}</extra>",
                ),
                row=1,
                col=column,
            )
        kind = "log" if _is_wide([one.quantiles_ms[name] for one in found]) else "linear"
        step = {"dtick": "D2"} if kind == "log" else {"nticks": 6}
        figure.update_xaxes(type=kind, gridcolor=GRID_LINE, zeroline=False, tickformat="~s", **step, row=1, col=column)
    figure.update_yaxes(gridcolor=GRID_LINE, zeroline=False, range=[0, 101])
    figure.update_yaxes(title="Share of the sample (%)", row=1, col=1)
    figure.update_annotations(font={"size": 12})
    figure.update_layout(showlegend=True, legend={"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top"})
    return figure


def _is_wide(values: list[NDArray[np.float64]]) -> bool:
    every = np.concatenate(values) if values else np.empty(0)
    every = every[np.isfinite(every)]
    return bool(len(every) and every.min() > 0 and every.max() / every.min() > 10)


def differences(results: Results, cells: Sequence[Cell]) -> pd.DataFrame:
    """One row a metric, with its unit: the first cell's prediction, every other's and its change against the first,
    and what was measured of each.
    """
    by_cell = results.by_cell
    rows = []
    for name in TABLE:
        if not all(name in by_cell[cell].metrics for cell in cells):
            continue
        found, first = label(name), by_cell[cells[0]].metrics[name]
        row = {"Metric": found.text, "Unit": found.unit}
        for place, cell in enumerate(cells):
            value = by_cell[cell].metrics[name]
            change = f" ({percent(100 * (value / first - 1), signed=True)})" if place and first else ""
            row[_head(cell, several=len(results.sweep.spec.policies) > 1)] = number(value * found.scale) + change
        for cell in cells:
            if (measured := compared(results, name).get(cell)) is not None:
                heading = f"{_head(cell, several=len(results.sweep.spec.policies) > 1)} measured"
                row[heading] = number(measured["measured"] * found.scale)
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def _head(cell: Cell, *, several: bool) -> str:
    return cell_name(cell) + (f" {cell.policy}" if several else "")

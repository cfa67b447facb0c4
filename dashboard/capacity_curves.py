"""What a cell gives and keeps as requests come faster: goodput, the share within the SLOs, where the queue grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from ..experiments.capacity import Capacity, capacity
from ..experiments.grid import Cell
from ..experiments.scenario import Scenario
from ..sim.cost.profile import Profile
from .colors import FAINT, GRID_LINE, NEUTRAL, PREDICTED
from .figures import DASHES, SYMBOLS, new_figure, title
from .labels import number
from .words import cell_name

TOLERANCE = 0.05
"""How exact a capacity is here, as a share: half the predictions of the command line's 2 %."""


@dataclass(frozen=True)
class Curve:
    """A cell over the rates that the search for its capacity tried: ``rate_per_s``, ``goodput_per_s`` (requests a
    second that meet every SLO), ``attainment`` (their share, 0 to 1) and ``load_rho``, by rising rate.
    """

    cell: Cell
    capacity: Capacity
    rows: pd.DataFrame

    @property
    def unstable_from_per_s(self) -> float | None:
        """The lowest rate tried at which the busy time exceeds the time in which requests arrive: the queue grows."""
        over = self.rows.loc[self.rows["load_rho"] >= 1, "rate_per_s"]
        return float(over.min()) if len(over) else None

    @property
    def is_beyond_stability(self) -> bool:
        """Whether the SLOs are met although the queue grows: only because the trace ends before it is long."""
        return self.unstable_from_per_s is not None and self.capacity.rate_per_s >= self.unstable_from_per_s

    @property
    def words(self) -> str:
        """The capacity and what decides it, and from where on the queue grows."""
        grows = self.unstable_from_per_s
        stable = "" if grows is None else f" The queue grows from {number(grows)} requests/s on."
        return self.capacity.sentence + stable


def curve(scenario: Scenario, profile: Profile, cell: Cell, slo: Mapping[str, float]) -> Curve:
    """Search the capacity of a cell and keep every rate tried. Raises ``BatchTwinError`` or ``TraceError``."""
    found = capacity(cell.of(scenario), profile, slo=slo, tolerance=TOLERANCE)
    rows = [
        {
            "rate_per_s": found.rate_of(tried),
            "goodput_per_s": tried.metrics["request_goodput"],
            "attainment": tried.metrics["request_goodput"] / tried.metrics["request_throughput"],
            "load_rho": tried.metrics["load_rho"],
            "meets": tried.meets,
        }
        for tried in found.bracket.tried
    ]
    return Curve(cell, found, pd.DataFrame(rows))


def frame(curves: Sequence[Curve]) -> pd.DataFrame:
    """All rates of all cells."""
    return pd.concat([one.rows.assign(**one.cell._asdict()) for one in curves], ignore_index=True)


def goodput(curves: Sequence[Curve], *, height_px: int = 370) -> go.Figure:
    """Requests within the SLOs against requests offered; on the diagonal every request is."""
    figure = _figure("Goodput", "Requests/s within the SLOs against requests/s offered", curves, height_px)
    far = float(frame(curves)["rate_per_s"].max())
    line = {"color": NEUTRAL, "width": 1, "dash": "dot"}
    figure.add_trace(go.Scatter(x=[0, far], y=[0, far], mode="lines", line=line, name="All of them", hoverinfo="skip"))
    _curves(figure, curves, "goodput_per_s", 1.0, "%{y:.3g} good requests/s")
    top = 1.15 * float(frame(curves)["goodput_per_s"].max()) or 1.0
    figure.update_yaxes(title="Good requests/s", range=[0, top])
    return figure


def attainment(curves: Sequence[Curve], *, height_px: int = 370) -> go.Figure:
    """The share of requests within the SLOs against requests offered."""
    detail = "Requests that meet every SLO (%) against requests/s offered"
    figure = _figure("SLO attainment", detail, curves, height_px)
    _curves(figure, curves, "attainment", 100.0, "%{y:.1f} % meet every SLO")
    figure.update_yaxes(title="Requests within the SLOs (%)", range=[0, 104])
    return figure


def _figure(head: str, detail: str, curves: Sequence[Curve], height_px: int) -> go.Figure:
    figure = new_figure(title(head, detail), height_px)
    far = _far(curves)
    for one in curves:
        if one.unstable_from_per_s is not None:
            figure.add_vrect(x0=one.unstable_from_per_s, x1=10 * far, fillcolor=FAINT, line_width=0, layer="below")
        figure.add_vline(x=one.capacity.rate_per_s, line={"color": PREDICTED, "width": 1, "dash": "dot"})
    figure.update_xaxes(title="Requests/s offered", range=[0, far], gridcolor=GRID_LINE, zeroline=False)
    figure.update_yaxes(gridcolor=GRID_LINE, zeroline=False)
    figure.update_layout(
        showlegend=True, legend={"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top", "font": {"size": 11}}
    )
    return figure


def _far(curves: Sequence[Curve]) -> float:
    """As far as it is of interest: twice the largest capacity, or all that was tried if none has one."""
    most = max(one.capacity.rate_per_s for one in curves)
    tried = float(frame(curves)["rate_per_s"].max())
    return min(2.0 * most, tried) if most > 0 else tried


def _curves(figure: go.Figure, curves: Sequence[Curve], column: str, scale: float, hover: str) -> None:
    for place, one in enumerate(curves):
        figure.add_trace(
            go.Scatter(
                x=one.rows["rate_per_s"],
                y=one.rows[column] * scale,
                mode="lines+markers",
                line={"color": PREDICTED, "dash": DASHES[place % len(DASHES)], "width": 2},
                marker={"color": PREDICTED, "symbol": SYMBOLS[place % len(SYMBOLS)], "size": 7},
                name=f"{cell_name(one.cell)}: up to {number(one.capacity.rate_per_s)}/s",
                customdata=one.rows["load_rho"],
                hovertemplate=f"%{{x:.3g}} requests/s: {hover}, load ρ %{{customdata:.2f}}<extra></extra>",
            )
        )

"""How far to believe it: errors by load, what they are made of, and how the step times deviate from the fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..experiments.run import Run
from ..sim.cost.features import Features, features_of_columns
from ..sim.cost.profile import Profile
from .colors import FAINT, GRID_LINE, MEASURED, NEUTRAL, PREDICTED
from .data import compared, parity_data
from .facts import Fact
from .figures import new_figure, title
from .labels import label, number, percent
from .results import Results

REGIMES = ("below saturation", "saturated")
NEVER = "never validated"
CLAIMED = (
    "output_throughput",
    "request_throughput",
    "request_goodput",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
    "mean_queue_ms",
    "peak_kv_usage",
)
"""What the pages say of a cell, and somebody may rely on."""
FEATURES = {
    "num_tokens": "New tokens T",
    "num_decodes": "Decodes",
    "num_decode_kv_tokens": "KV tokens read by decodes",
    "num_prefill_tokens": "Prefill tokens",
    "prefill_attention_work": "Prefill attention work (query-context pairs)",
    "num_samples": "Rows sampled",
}
PARTS = {"cost": "Cost model", "schedule": "Other decisions", "rest": "Host gaps and clock"}
_BINS = 24
_MOST_POINTS = 2500


def regime_of(load_rho: float) -> str:
    """Whether the queue grew for as long as requests arrived (load ρ of at least 1)."""
    return REGIMES[1] if load_rho >= 1 else REGIMES[0]


def validation(results: Results) -> pd.DataFrame:
    """One row a metric that is claimed: by load regime the median and the worst error and from how many cells, and
    the coverage of its intervals where results carry them; ``NEVER`` where nothing was measured.
    """
    rows = []
    for name in CLAIMED:
        found = parity_data(results, name)
        row: dict[str, str] = {"Metric": label(name).text}
        for regime in REGIMES:
            mine = np.array([regime_of(rho) == regime for rho in found["load_rho"]], dtype=bool)
            errors = found.loc[mine, "error_percent"].abs().dropna()
            row[regime.capitalize()] = (
                f"{percent(errors.median())} median, {percent(errors.max())} worst ({len(errors)})"
                if len(errors)
                else NEVER
            )
        if (share := coverage(results, name)) is not None:
            row["Interval holds"] = percent(100 * share)
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def coverage(results: Results, metric: str) -> float | None:
    """The share of the measured cells whose measurement lies in the predicted interval; None if the results carry no
    intervals of this metric.
    """
    inside = [float(row.get("inside", np.nan)) for row in compared(results, metric).values()]
    known = [value for value in inside if not np.isnan(value)]
    return float(np.mean(known)) if known else None


def split_frame(results: Results, metric: str) -> pd.DataFrame:
    """One row a measured cell: measured − predicted and its parts, in per cent of the measured value."""
    if results.comparison is None:
        return pd.DataFrame()
    found = results.comparison.split
    found = found[found["metric"] == metric]
    knobs = found[["policy", "max_num_seqs", "max_num_batched_tokens"]].reset_index(drop=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = {
            name: (100 * found[name] / found["measured"]).to_numpy(dtype=float) for name in ("cost", "schedule", "rest")
        }
        total = (100 * (found["measured"] - found["predicted"]) / found["measured"]).to_numpy(dtype=float)
    return knobs.assign(**parts, total=total)


def split_figure(rows: pd.DataFrame, metric: str, *, height_px: int = 380) -> go.Figure:
    """The parts as stacked bars and their sum as a mark, cell by cell."""
    detail = f"{label(metric).text}: measured − predicted (% of measured) and the parts that sum to it"
    figure = new_figure(title("Where the error comes from", detail), height_px)
    names = [f"{row.max_num_seqs:,} × {row.max_num_batched_tokens:,}" for row in rows.itertuples()]
    shapes = {"cost": "", "schedule": "/", "rest": "."}
    for part, text in PARTS.items():
        pattern = {"shape": shapes[part], "fgcolor": NEUTRAL, "bgcolor": FAINT if shapes[part] else None}
        marker = {
            "color": PREDICTED if part == "cost" else FAINT,
            "pattern": pattern,
            "line": {"width": 1, "color": NEUTRAL},
        }
        figure.add_trace(go.Bar(x=names, y=rows[part], name=text, marker=marker, hovertemplate="%{y:+.1f} %"))
    mark = {"color": MEASURED, "symbol": "diamond", "size": 9}
    figure.add_trace(
        go.Scatter(x=names, y=rows["total"], mode="markers", marker=mark, name="Sum", hovertemplate="%{y:+.1f} %")
    )
    figure.update_layout(
        barmode="relative", showlegend=True, legend={"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top"}
    )
    figure.update_yaxes(title="% of measured", gridcolor=GRID_LINE, zerolinecolor=NEUTRAL)
    figure.update_xaxes(title="max_num_seqs × max_num_batched_tokens", type="category")
    return figure


def residuals(runs: Sequence[Run], profile: Profile) -> pd.DataFrame:
    """One row a measured iteration: the fit's features, ``device_s``, ``fitted_s`` and ``residual_percent`` (fitted
    over measured − 1). Iterations that compute nothing are left out.
    """
    parts = []
    for run in runs:
        features = features_of_columns(run.records.iterations)
        table = pd.DataFrame(dict(zip(Features._fields, features, strict=True)))
        table["device_s"] = run.records.iterations["device_s"]
        table["fitted_s"] = profile.cost_model.durations_s(features)
        parts.append(table[(table["num_tokens"] > 0) & (table["device_s"] > 0)])
    if not parts:
        return pd.DataFrame(columns=[*Features._fields, "device_s", "fitted_s", "residual_percent"])
    rows = pd.concat(parts, ignore_index=True)
    return rows.assign(residual_percent=100 * (rows["fitted_s"] / rows["device_s"] - 1))


def binned(rows: pd.DataFrame, feature: str) -> pd.DataFrame:
    """The residual's median, P10 and P90 in bins of equally many iterations along ``feature``."""
    if rows.empty:
        return pd.DataFrame(columns=["at", "low", "median", "high", "count"])
    bins = pd.qcut(rows[feature], min(_BINS, rows[feature].nunique()), duplicates="drop")
    groups = rows.groupby(bins, observed=True)
    residual = groups["residual_percent"]
    return pd.DataFrame(
        {
            "at": groups[feature].median(),
            "low": residual.quantile(0.1),
            "median": residual.median(),
            "high": residual.quantile(0.9),
            "count": residual.size(),
        }
    ).reset_index(drop=True)


def residual_figure(rows: pd.DataFrame, feature: str, *, height_px: int = 380) -> go.Figure:
    """Residuals over one feature: a thinned cloud, the median and the band that holds four fifths."""
    detail = f"Fitted over measured − 1 (%) against {FEATURES[feature]}; line: median, band: P10 to P90"
    figure = new_figure(title("Step times against the fit", detail), height_px)
    thin = rows.iloc[:: max(1, len(rows) // _MOST_POINTS)]
    figure.add_trace(
        go.Scattergl(
            x=thin[feature],
            y=thin["residual_percent"],
            mode="markers",
            marker={"color": MEASURED, "size": 3, "opacity": 0.25},
            hoverinfo="skip",
            name="Iterations",
        )
    )
    band = binned(rows, feature)
    figure.add_trace(
        go.Scatter(
            x=pd.concat((band["at"], band["at"][::-1])),
            y=pd.concat((band["low"], band["high"][::-1])),
            mode="lines",
            fill="toself",
            fillcolor=FAINT,
            line={"width": 0},
            hoverinfo="skip",
            name="P10 to P90",
        )
    )
    line = {"color": PREDICTED, "width": 2}
    figure.add_trace(go.Scatter(x=band["at"], y=band["median"], mode="lines", line=line, name="Median"))
    wide = len(rows) > 0 and rows[feature].min() > 0 and rows[feature].max() > 20 * rows[feature].min()
    kind = {"type": "log", "dtick": "D2"} if wide else {"type": "linear"}
    figure.update_xaxes(title=FEATURES[feature], gridcolor=GRID_LINE, zeroline=False, **kind)
    figure.update_yaxes(title="Residual (%)", gridcolor=GRID_LINE, zerolinecolor=NEUTRAL, range=_span(rows))
    return figure


def _span(rows: pd.DataFrame) -> list[float]:
    """Both sides alike, to P98 of the sizes: a few interrupted steps must not flatten the rest."""
    if rows.empty:
        return [-10.0, 10.0]
    far = max(5.0, float(np.percentile(rows["residual_percent"].abs(), 98)))
    return [-far, far]


def calibration_card(profile: Profile) -> list[Fact]:
    """What the fit is made of and how wrong it is."""
    fit = profile.fit
    errors = {"Fitted law": fit.held_out, **{f"Null: {name.replace('_', ' ')}": of for name, of in fit.nulls.items()}}
    found = [
        Fact(
            f"{name}, held out",
            f"{percent(of.median_percent)} median, {percent(of.p90_percent)} P90, {percent(of.worst_percent)} worst, "
            f"bias {percent(of.bias_percent, signed=True)}",
        )
        for name, of in errors.items()
    ]
    found.append(Fact("The device repeats itself within", percent(fit.repeat_noise_percent)))
    found.append(
        Fact(
            "Measured",
            f"{fit.num_batches} batches, {fit.num_rounds} rounds, {fit.seconds_measured:,.0f} s on the device",
        )
    )
    found.append(Fact("Attention", profile.attention_backend))
    found += [Fact(name.replace("_", " ").capitalize(), value) for name, value in profile.provenance.items()]
    return found


def law_text(profile: Profile) -> str:
    """The coefficients that are not 0, in microseconds."""
    law = profile.law.model_dump()
    parts = [
        f"{name.removesuffix('_s').replace('_', ' ')} {number(value * 1e6)} µs"
        for name, value in law.items()
        if isinstance(value, float) and value > 0
    ]
    slopes = law["token_slopes_s"]
    if isinstance(slopes, tuple):
        parts.insert(1, "per token " + " / ".join(number(slope * 1e6) for slope in slopes) + " µs")
    return ", ".join(parts)

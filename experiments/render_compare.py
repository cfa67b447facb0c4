"""A comparison as text for a terminal: tables and sentences, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import nan

import pandas as pd
from rich.table import Table

from ..sim.cost.spread import LEVEL
from .compare import COUNTS, MIN_RANKED, Comparison
from .render import LABELS, NAMES, make_table, number

_COUNT_NAMES = {
    "mean_kv_usage": "KV usage mean (% of the pool)",
    "peak_kv_usage": "KV usage peak (% of the pool)",
    "peak_waiting": "Waiting peak (requests)",
    "num_preemptions": "Preemptions",
}
_SERIES_NAMES = {"running": "Running", "waiting": "Waiting", "kv_usage": "KV usage (% of the pool)"}


def comparison_parts(comparison: object) -> Iterator[Table | str]:
    """Tables (with titles) and sentences."""
    assert isinstance(comparison, Comparison)
    yield _errors(comparison.summary)
    yield _counts(comparison.summary)
    if "running_distance" in comparison.over_time:
        yield _over_time(comparison.over_time)
    if len(comparison.split):
        yield _split(comparison)
        yield from _cancelling(comparison)
    else:
        yield "[dim]Imported runs have no records, so where the error comes from cannot be told.[/]"
    yield from _best(comparison)
    regret = ", ".join(f"{who.replace('_', ' ')} {value:.1f} %" for who, value in comparison.regret_percent.items())
    objective = LABELS.get(comparison.objective, comparison.objective)
    yield f"Regret in {objective}, by who chooses: {regret}."
    yield f"Rank correlation of predicted and measured: {number(comparison.rank_correlation, 3)}{_ties(comparison)}."
    yield from _coverage(comparison)


def _errors(summary: pd.DataFrame) -> Table:
    heads = ("Metric", "Median", "Worst", "Bias", "Noise", "±", "Inside", "Constant", "Roofline")
    columns = [
        *("median_error_percent", "worst_error_percent", "bias_percent", "repeat_noise_percent", "interval_percent"),
        *("coverage_percent", "constant_median_percent", "roofline_affine_median_percent"),
    ]
    num_cells = int(summary["num_cells"].max())
    over = f"{num_cells} measured cell{'s' if num_cells != 1 else ''}"
    title = f"Error of the prediction over {over} (%); ± half of its interval, inside: cells that hold"
    table = make_table(*heads, title=title)
    for row in summary[~summary["metric"].isin(COUNTS)].to_dict("records"):
        name = str(row["metric"])
        digits = [0 if column == "coverage_percent" else 1 for column in columns]
        shown = (number(row.get(c, nan), d) for c, d in zip(columns, digits, strict=True))
        table.add_row(NAMES.get(name, name), *shown)
    return table


def _counts(summary: pd.DataFrame) -> Table:
    """Queue, cache and preemptions may be 0: their errors are differences."""
    table = make_table("Difference, predicted − measured", "Median", "Worst", "Inside (%)")
    for row in summary[summary["metric"].isin(COUNTS)].to_dict("records"):
        name = str(row["metric"])
        scale = 100.0 if name.endswith("usage") else 1.0
        values = (row["median_error"] * scale, row["worst_error"] * scale)
        table.add_row(_COUNT_NAMES[name], *(number(value, 1) for value in values), number(row["coverage_percent"], 0))
    return table


def _over_time(series: pd.DataFrame) -> Table:
    table = make_table("Over time", "Measured mean", "Mean distance", "Worst cell's")
    for name, words in _SERIES_NAMES.items():
        scale = 100.0 if name == "kv_usage" else 1.0
        mean, distance = series[f"{name}_mean"] * scale, series[f"{name}_distance"] * scale
        table.add_row(words, *(number(value, 1) for value in (mean.mean(), distance.mean(), distance.max())))
    return table


def _split(comparison: Comparison) -> Table:
    parts = ("rest", "cost", "schedule", "hidden")
    title = "Where measured − predicted comes from (mean, % of measured)"
    table = make_table("Metric", "Rest", "Cost", "Schedule", "Cancels", title=title)
    for name in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "p99_itl_ms", "mean_e2el_ms"):
        rows = comparison.split[comparison.split["metric"] == name]
        shares = [100.0 * (rows[part] / rows["measured"]).mean() for part in parts]
        table.add_row(NAMES[name], *(f"{share:+.1f}" for share in shares[:-1]), f"{shares[-1]:.1f}")
    return table


def _cancelling(comparison: Comparison) -> Iterator[str]:
    """Cells whose E2E looks right because TTFT and TPOT are wrong in opposite ways."""
    found = comparison.latency[comparison.latency["cancels"]]
    for row in found.to_dict("records"):
        yield (
            f"[yellow]{row['max_num_seqs']} × {row['max_num_batched_tokens']}: TTFT {row['ttft_error_percent']:+.1f} % "
            f"and TPOT {row['tpot_error_percent']:+.1f} % cancel in E2E ({row['e2el_error_percent']:+.1f} %): "
            f"{row['hidden_percent']:.1f} % of it is hidden.[/]"
        )
    if not len(found):
        yield "In no cell do errors of TTFT and TPOT cancel in E2E."


def _best(comparison: Comparison) -> Iterator[str]:
    """The cell with the best prediction among the measured, with both figures."""
    rows = comparison.cells[comparison.cells["metric"] == comparison.objective].dropna(subset=["measured"])
    if rows.empty:
        return
    best = max(rows.to_dict("records"), key=lambda row: row["predicted"])
    yield (
        f"Best prediction among them, {best['max_num_seqs']} × {best['max_num_batched_tokens']}: predicted "
        f"{number(best['predicted'], 1)}, measured {number(best['measured'], 1)} ({best['error_percent']:+.1f} %)."
    )


def _ties(comparison: Comparison) -> str:
    """How many pairs of measured cells no order can be told of: they differ by less than their repeat noise
    (half the range of a cell's repeats, for one without repeats the other cells' median).
    """
    rows = comparison.cells[comparison.cells["metric"] == comparison.objective].dropna(subset=["measured"])
    if len(rows) < MIN_RANKED:
        return ""
    noise = rows["repeat_noise_percent"]
    if noise.isna().all():
        return "; measured once each, so which of their differences are noise is not known (sweep with --repeats 3)"
    figures = list(zip(rows["measured"], rows["measured"] * noise.fillna(noise.median()) / 100.0, strict=True))
    pairs = list(combinations(figures, 2))
    ties = sum(abs(one - other) <= half + other_half for (one, half), (other, other_half) in pairs)
    return f"; of {len(pairs)} pairs of cells {ties} are ties, which differ by less than the repeat noise of both"


def _coverage(comparison: Comparison) -> Iterator[str]:
    rows = comparison.cells[~comparison.cells["metric"].isin(COUNTS)]
    inside = rows["inside"].dropna()
    if not len(inside):
        return
    own = rows[rows["metric"] == comparison.objective]["inside"].dropna()
    yield (
        f"Intervals at {LEVEL:.0%}, from the calibration alone, hold {int(inside.sum())} of {len(inside)} measured "
        f"figures ({100 * inside.mean():.0f} %), of {LABELS.get(comparison.objective, comparison.objective)} "
        f"{int(own.sum())} of {len(own)}."
    )

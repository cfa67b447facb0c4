"""The tables as they are shown: human headings, readable numbers. Used by the page and by the report."""

from __future__ import annotations

import math

import pandas as pd

from .data import compared, table
from .labels import CHOOSERS, NULLS, label, number, percent
from .results import Results

KEY_METRICS = ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_itl_ms", "num_preemptions")

SUMMARY_NOTE = (
    "Median, worst and mean signed error of the prediction over the measured cells. Noise: half the range of a cell's "
    "repeats, median over the cells. Constant and Roofline: the median error if every step took the same time, or what "
    "a roofline says, scaled and shifted to the calibration. Interval: half its width (median) at 90 %, from the "
    "calibration alone; Inside: the share of the measured cells that lie in theirs."
)


def summary(results: Results) -> pd.DataFrame:
    """One row a metric: the prediction's error beside the device's own noise and what the null baselines miss
    (``SUMMARY_NOTE`` explains the headings).
    """
    if results.comparison is None:
        return pd.DataFrame()
    found = results.comparison.summary
    shown = {
        "Metric": [label(name).text for name in found["metric"]],
        "Median": found["median_error_percent"].map(percent),
        "Worst": found["worst_error_percent"].map(percent),
        "Bias": [percent(value, signed=True) for value in found["bias_percent"]],
        "Noise": found["repeat_noise_percent"].map(percent),
    }
    if "interval_percent" in found:
        shown["Interval"] = ["–" if math.isnan(value) else f"± {percent(value)}" for value in found["interval_percent"]]
        shown["Inside"] = found["coverage_percent"].map(percent)
    for null, word in NULLS.items():
        if (column := f"{null}_median_percent") in found:
            shown[word] = found[column].map(percent)
    return pd.DataFrame(shown)


def regret(results: Results) -> pd.DataFrame:
    """Who chooses the cell, and how much of the measured best that loses."""
    if results.comparison is None:
        return pd.DataFrame()
    lost = results.comparison.regret_percent
    heading = f"Lost of the measured best {label(results.comparison.objective).text.lower()}"
    return pd.DataFrame(
        {"Chosen by": [CHOOSERS.get(name, name) for name in lost], heading: [percent(value) for value in lost.values()]}
    )


def rank_text(correlation: float) -> str:
    """Spearman's rank correlation in a sentence."""
    if math.isnan(correlation):
        return "Too few measured cells for a rank correlation."
    return f"Rank correlation of predicted and measured over the measured cells: {number(correlation)}."


def split(results: Results, metric: str) -> pd.DataFrame:
    """Measured − predicted of every measured cell, and the three parts that sum to it, in the metric's unit."""
    if results.comparison is None:
        return pd.DataFrame()
    found = results.comparison.split
    found = found[found["metric"] == metric]
    scale = label(metric).scale

    def shown(values: pd.Series[float]) -> list[str]:
        return [signed(value * scale) for value in values]

    return pd.DataFrame(
        {
            **_knobs(found, with_policy=len(results.sweep.spec.policies) > 1),
            "Measured − predicted": shown(found["measured"] - found["predicted"]),
            "Cost model": shown(found["cost"]),
            "Other decisions": shown(found["schedule"]),
            "Host gaps and clock": shown(found["rest"]),
        }
    )


def cancelling_text(results: Results) -> str:
    """Whether errors of TTFT and TPOT cancel in E2E, in a sentence; empty where nothing is measured."""
    if results.comparison is None or results.comparison.latency.empty:
        return ""
    found = results.comparison.latency
    hiding = found[found["cancels"]]
    if hiding.empty:
        return f"In none of the {len(found)} measured cells do errors of TTFT and TPOT cancel in E2E."
    worst = hiding.sort_values("hidden_percent").iloc[-1]
    errors = ", ".join(
        f"{word} {percent(worst[f'{name}_error_percent'], signed=True)}"
        for name, word in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2E"))
    )
    return (
        f"In {len(hiding)} of the {len(found)} measured cells errors of TTFT and TPOT cancel in E2E; most in "
        f"{worst['max_num_seqs']} × {worst['max_num_batched_tokens']}: {errors}."
    )


def cells(results: Results, metric: str) -> pd.DataFrame:
    """One row a cell, as numbers: the knobs, the chosen metric predicted, measured and its error, the key metrics,
    what holds the cell back, and why it cannot work if it cannot.
    """
    found = table(results)
    if found.empty:
        return pd.DataFrame()
    shown = _knobs(found, with_policy=len(results.sweep.spec.policies) > 1)
    for name in (name for name in dict.fromkeys((metric, *KEY_METRICS)) if name in found):
        heading = label(name).with_unit
        shown[heading] = found[name] * label(name).scale
        if name == metric and f"{metric}_low" in found:
            shown |= {end: found[f"{metric}_{end.lower()}"] * label(name).scale for end in ("Low", "High")}
        if name == metric and compared(results, metric):
            shown[f"{heading}, measured"] = found[f"{metric}_measured"] * label(name).scale
            shown["Error (%)"] = found[f"{metric}_error_percent"]
    shown["KV blocks"] = found["num_gpu_blocks"]
    shown["Held back by"] = found["bound"]
    shown["Cannot work because"] = found["reason"]
    return pd.DataFrame({heading: _whole(column) for heading, column in shown.items()})


def _whole(column: pd.Series[float]) -> pd.Series[float] | pd.Series[int]:
    """Counts as whole numbers although some are missing."""
    if not pd.api.types.is_float_dtype(column) or (column.dropna() % 1).any():
        return column
    return column.astype("Int64")


def signed(value: float) -> str:
    """A number with its sign, unless it would read as zero."""
    text = number(value)
    return f"+{text}" if value > 0 and text.strip("0.") else text.lstrip("−") if not text.strip("−0.") else text


def _knobs(found: pd.DataFrame, *, with_policy: bool) -> dict[str, pd.Series[float]]:
    named = {"Policy": found["policy"]} if with_policy else {}
    return named | {"max_num_seqs": found["max_num_seqs"], "max_num_batched_tokens": found["max_num_batched_tokens"]}

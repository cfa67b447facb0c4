"""Predicted beside measured: every cell's error, beside the device's own noise, and what it costs to believe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from ..sim.cost.features import features_of_columns
from ..sim.cost.models import CostModel, HostTerm
from ..sim.metrics import metrics
from ..sim.retime import retime
from .budget import hidden, latency_parts, over_time, percent_error
from .errors import ExperimentError
from .grid import Cell, CellResult, default_cell
from .intervals import METRICS
from .run import Run
from .sweep import Sweep, open_sweep

COUNTS = ("mean_kv_usage", "peak_kv_usage", "peak_waiting", "num_preemptions")
"""Metrics that may be 0, so that their error is told as a difference."""
PERCENT_METRICS = tuple(name for name in METRICS if name not in COUNTS)
MIN_RANKED = 3
"""Measured cells below which no rank correlation is told."""
SPLIT_COLUMNS = (*Cell._fields, "metric", "measured", "predicted", "rest", "cost", "schedule", "hidden")


@dataclass(frozen=True)
class Comparison:
    """What a sweep's measured cells say about its predictions."""

    objective: str
    cells: pd.DataFrame
    """One row a cell and metric: policy, max_num_seqs, max_num_batched_tokens, metric, predicted, measured (median of
    the repeats), predicted_low and predicted_high (the interval of the calibration; NaN if the cell has none), inside
    (whether it holds the measured figure), error (predicted − measured), error_percent, repeat_noise_percent (half the
    range of the repeats), constant_error_percent and roofline_affine_error_percent (the null baselines), num_repeats.
    """
    summary: pd.DataFrame
    """One row a metric: median, worst and bias of the error, repeat noise, the nulls' medians; half the width of the
    interval (median, in per cent of the prediction) and its coverage, the share of the measured cells inside."""
    split: pd.DataFrame
    """One row a cell and metric: measured − predicted of its median run, its parts rest, cost and schedule, and how
    much of them cancels (``hidden``). A cell of imported runs, which have no records, has none."""
    rank_correlation: float
    """Spearman's, between predicted and measured objective over the measured cells."""
    regret_percent: dict[str, float]
    """Measured objective lost against the measured best, by who chooses: ``predicted``, the nulls, ``random`` (mean
    over all measured cells), ``vllm_default``."""
    latency: pd.DataFrame = field(default_factory=pd.DataFrame)
    """One row a cell: the error of the mean E2E latency as the sum of that of the first token and that of the later
    ones, and whether they cancel (``budget.latency_parts``)."""
    over_time: pd.DataFrame = field(default_factory=pd.DataFrame)
    """One row a cell: how far running, waiting and KV usage are from the measured ones, moment by moment
    (``budget.over_time``)."""


def compare(sweep: Sweep | str | Path, *, with_split: bool = True) -> Comparison:
    """Compare whatever ``sweep`` has measured. Raises ``ExperimentError`` if that is nothing. Only ``split``,
    ``latency`` and ``over_time`` read the runs' records, which takes its time: without them the three are empty.
    """
    opened = sweep if isinstance(sweep, Sweep) else open_sweep(sweep)
    results = {result.cell: result for result in opened.feasible()}
    measured = {cell: opened.measured_metrics(cell) for cell in opened.measured_cells() if cell in results}
    if not measured:
        raise ExperimentError(f"{opened.folder} has no measured cell: run the sweep with --measure.")
    table = pd.DataFrame(
        [row for cell, repeats in measured.items() for row in _rows(results[cell], repeats, _metrics(opened))]
    )
    objective = opened.spec.objective
    read = measured if with_split else ()
    runs = {cell: run for cell in read if (run := _median_run(opened, cell)) is not None}
    return Comparison(
        objective=objective,
        cells=table,
        summary=_summary(table),
        split=pd.DataFrame(
            [row for cell, run in runs.items() for row in _split_rows(opened, results[cell], run)],
            columns=SPLIT_COLUMNS,
        ),
        latency=pd.DataFrame(
            [{**cell._asdict(), **latency_parts(results[cell].metrics, run.metrics)} for cell, run in runs.items()]
        ),
        over_time=pd.DataFrame(
            [{**cell._asdict(), **over_time(results[cell].timeline, run)} for cell, run in runs.items()]
        ),
        rank_correlation=_rank_correlation(table, opened.spec.objective),
        regret_percent=_regret(opened, {cell: results[cell] for cell in measured}, table),
    )


def split_error(
    run: Run, predicted: Mapping[str, float], cost_model: CostModel, host: HostTerm
) -> dict[str, dict[str, float]]:
    """Split measured − predicted of every metric into parts that sum to it.

    Let A be the recorded batches with their recorded durations (host and device), B the recorded batches under the
    cost model. *rest* = M − A (gaps and the clock), *cost* = A − B, *schedule* = B − P (other decisions).
    """
    iterations = run.records.iterations
    features = features_of_columns(iterations)
    usable, slo = run.num_gpu_blocks - 1, run.scenario.slo
    a = metrics(retime(run.records, iterations["host_s"], iterations["device_s"]), usable, slo)
    b = metrics(retime(run.records, host.hosts_s(features), cost_model.durations_s(features)), usable, slo)
    return {
        name: {
            "measured": run.metrics[name],
            "predicted": predicted[name],
            "rest": run.metrics[name] - a[name],
            "cost": a[name] - b[name],
            "schedule": b[name] - predicted[name],
        }
        for name in run.metrics
        if name in predicted
    }


def _metrics(sweep: Sweep) -> tuple[str, ...]:
    return METRICS if sweep.spec.objective in METRICS else (sweep.spec.objective, *METRICS)


def _rows(result: CellResult, repeats: Sequence[dict[str, float]], names: Sequence[str]) -> list[dict[str, object]]:
    rows = []
    for name in names:
        values = np.array([repeat[name] for repeat in repeats if name in repeat])  # an imported run may lack it
        median = float(np.median(values)) if len(values) else np.nan
        low, high = result.low.get(name, np.nan), result.high.get(name, np.nan)
        row: dict[str, object] = {
            **result.cell._asdict(),
            "metric": name,
            "predicted": result.metrics[name],
            "predicted_low": low,
            "predicted_high": high,
            "measured": median,
            "inside": np.nan if np.isnan((low, high, median)).any() else float(low <= median <= high),
            "error": result.metrics[name] - median,
            "error_percent": percent_error(result.metrics[name], median),
            "repeat_noise_percent": 50.0 * float(np.ptp(values)) / median if len(values) > 1 and median else np.nan,
            "num_repeats": len(values),
        }
        row |= {f"{null}_error_percent": percent_error(of[name], median) for null, of in result.nulls.items()}
        rows.append(row)
    return rows


def _summary(table: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for name, group in table.groupby("metric", sort=False):
        error, predicted = group["error_percent"], group["predicted"].replace(0.0, np.nan)
        row = {
            "metric": name,
            "num_cells": int(group["measured"].notna().sum()),
            "median_error_percent": error.abs().median(),
            "worst_error_percent": error.abs().max(),
            "bias_percent": error.mean(),
            "median_error": group["error"].abs().median(),
            "worst_error": group["error"].abs().max(),
            "interval_percent": (50.0 * (group["predicted_high"] - group["predicted_low"]) / predicted).median(),
            "coverage_percent": 100.0 * group["inside"].mean(),
            "repeat_noise_percent": group["repeat_noise_percent"].median(),
            "worst_repeat_noise_percent": group["repeat_noise_percent"].max(),
        }
        nulls = [column for column in group.columns if column.endswith("_error_percent")]
        row |= {
            f"{column.removesuffix('_error_percent')}_median_percent": group[column].abs().median() for column in nulls
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _median_run(sweep: Sweep, cell: Cell) -> Run | None:
    """The cell's median run by the objective; None if all were imported, without records."""
    runs = sweep.measured(cell)
    if not runs:
        return None
    return sorted(runs, key=lambda run: run.metrics[sweep.spec.objective])[(len(runs) - 1) // 2]


def _split_rows(sweep: Sweep, result: CellResult, run: Run) -> list[dict[str, object]]:
    model = sweep.profile.cost_model_for(result.cell.max_num_seqs, result.cell.max_num_batched_tokens)
    parts = split_error(run, result.metrics, model, sweep.profile.host)
    rows: list[dict[str, object]] = []
    for name in _metrics(sweep):
        own = parts[name]
        cancelled = hidden(own[part] for part in ("rest", "cost", "schedule"))
        rows.append({**result.cell._asdict(), "metric": name, **own, "hidden": cancelled})
    return rows


def _rank_correlation(table: pd.DataFrame, objective: str) -> float:
    rows = table[table["metric"] == objective].dropna(subset=["measured"])
    if len(rows) < MIN_RANKED:
        return float("nan")
    return float(rows["predicted"].rank().corr(rows["measured"].rank()))


def _regret(sweep: Sweep, measured: Mapping[Cell, CellResult], table: pd.DataFrame) -> dict[str, float]:
    objective = sweep.spec.objective
    rows = table[table["metric"] == objective].dropna(subset=["measured"])
    if rows.empty:
        return {}
    keys = zip(rows["policy"], rows["max_num_seqs"], rows["max_num_batched_tokens"], strict=True)
    value = {Cell(*key): float(v) for key, v in zip(keys, rows["measured"], strict=True)}
    best = max(value.values())

    def lost(cell: Cell) -> float:
        return 100.0 * (1.0 - value[cell] / best) if best else 0.0

    regret = {"predicted": lost(max(value, key=lambda cell: measured[cell].metrics[objective]))}
    for null in next(iter(measured.values())).nulls:
        regret[null] = lost(max(value, key=lambda cell: measured[cell].nulls[null][objective]))
    regret["random"] = float(np.mean([lost(cell) for cell in value]))
    default = default_cell(sweep.spec.scenario)
    if default in value:
        regret["vllm_default"] = lost(default)
    return regret

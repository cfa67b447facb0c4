"""What the figures and tables show, as plain matrices and frames. Nothing here draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..experiments.grid import Cell, CellResult
from ..experiments.intervals import METRICS, over_seeds
from ..experiments.recommend import KNOB, SLO_METRIC, dominant_bound
from ..scheduler.batch import Bound
from .labels import NULLS
from .results import Results

FloatMatrix = NDArray[np.float64]
Mask = NDArray[np.bool_]
Place = tuple[int, int]
"""(row, column) in a heatmap's matrices."""


@dataclass(frozen=True)
class HeatmapData:
    """One metric over both knobs: rows by ``max_num_seqs``, columns by ``max_num_batched_tokens``, both rising.

    NaN where there is nothing: not in the grid, not predicted yet, without a result, not measured.
    """

    metric: str
    policy: str
    max_num_seqs: tuple[int, ...]
    max_num_batched_tokens: tuple[int, ...]
    predicted: FloatMatrix
    measured: FloatMatrix
    """Median of the repeats."""
    error_percent: FloatMatrix
    noise_percent: FloatMatrix
    """Half the range of the repeats."""
    in_grid: Mask
    status: NDArray[np.object_]
    """``ok``, ``infeasible``, ``failed``, ``skipped`` or, if it is not predicted yet, empty."""
    reasons: NDArray[np.object_]
    """Why a cell has no result; empty where it has one."""
    preempting: Mask
    """Where the prediction preempts."""
    meets_slo: Mask
    """Where the predicted P99s meet the SLOs; nowhere if there are none."""
    default: Place | None
    """vLLM's default, if the grid has it."""
    recommended: Place | None

    @property
    def is_measured(self) -> bool:
        return bool(np.isfinite(self.measured).any())

    def key(self, at: Place) -> str:
        """The key of the cell at a place."""
        return Cell(self.policy, self.max_num_seqs[at[0]], self.max_num_batched_tokens[at[1]]).key


def policies(results: Results) -> list[str]:
    """The policies that the sweep covers."""
    return list(dict.fromkeys(cell.policy for cell in results.sweep.spec.cells))


def metric_names(results: Results) -> tuple[str, ...]:
    """The metrics that can be chosen: the sweep's objective and all that are compared."""
    return tuple(dict.fromkeys((results.sweep.spec.objective, *METRICS)))


def heatmap_data(
    results: Results,
    metric: str,
    policy: str | None = None,
    slo: Mapping[str, float] | None = None,
    recommended: Cell | None = None,
) -> HeatmapData:
    """Matrices of one metric for one policy (the recommended cell's if none is named) over the grid asked for; vLLM's
    default is in them only if it is part of that grid. SLOs (ms) and the recommended cell are the sweep's own if not
    given.
    """
    policy = policy or first_policy(results)
    spec = results.sweep.spec
    grid = [cell for cell in spec.grid if cell.policy == policy]
    rows = sorted({cell.max_num_seqs for cell in grid})
    columns = sorted({cell.max_num_batched_tokens for cell in grid})
    place = {cell: (rows.index(cell.max_num_seqs), columns.index(cell.max_num_batched_tokens)) for cell in grid}
    shape = (len(rows), len(columns))
    default = results.default(policy)
    chosen = recommended or (results.recommendation.cell if results.recommendation else None)
    return HeatmapData(
        metric=metric,
        policy=policy,
        max_num_seqs=tuple(rows),
        max_num_batched_tokens=tuple(columns),
        **_predicted_matrices(results, metric, place, shape, spec.scenario.slo if slo is None else slo),
        **_measured_matrices(results, metric, place, shape),
        default=place.get(default.cell) if default else None,
        recommended=place.get(chosen) if chosen else None,
    )


def _predicted_matrices(
    results: Results, metric: str, place: dict[Cell, Place], shape: Place, slo: Mapping[str, float]
) -> dict[str, Any]:
    predicted = np.full(shape, np.nan)
    in_grid, preempting, meets = (np.zeros(shape, dtype=bool) for _ in range(3))
    status, reasons = (np.full(shape, "", dtype=object) for _ in range(2))
    for at in place.values():
        in_grid[at] = True
    for result in results.cells:
        if (where := place.get(result.cell)) is not None:
            status[where], reasons[where] = result.status, result.reason
            preempting[where] = result.metrics.get("num_preemptions", 0) > 0
            predicted[where] = result.metrics.get(metric, np.nan)
            meets[where] = bool(slo) and meets_slo(result, slo)
    return {
        "predicted": predicted,
        "in_grid": in_grid,
        "status": status,
        "reasons": reasons,
        "preempting": preempting,
        "meets_slo": meets,
    }


def meets_slo(result: CellResult, slo: Mapping[str, float]) -> bool:
    """Whether a cell's predicted P99s are within every limit (ms): their means over the seeds, by which the
    recommendation goes too.
    """
    means = over_seeds(result) if result.metrics else {}
    return bool(means) and all(not means.get(SLO_METRIC[name], np.inf) > limit for name, limit in slo.items())


def _measured_matrices(results: Results, metric: str, place: dict[Cell, Place], shape: Place) -> dict[str, Any]:
    columns = {"measured": "measured", "error_percent": "error_percent", "noise_percent": "repeat_noise_percent"}
    matrices = {name: np.full(shape, np.nan) for name in columns}
    for cell, row in compared(results, metric).items():
        if (at := place.get(cell)) is not None:
            for name, column in columns.items():
                matrices[name][at] = row[column]
    return matrices


def heatmap_frame(data: HeatmapData) -> pd.DataFrame:
    """A heatmap's matrices, one row a cell of the grid."""
    rows = []
    for at in np.argwhere(data.in_grid).tolist():
        where = (at[0], at[1])
        rows.append(
            {
                "policy": data.policy,
                "max_num_seqs": data.max_num_seqs[where[0]],
                "max_num_batched_tokens": data.max_num_batched_tokens[where[1]],
                "status": data.status[where],
                f"{data.metric}_predicted": data.predicted[where],
                f"{data.metric}_measured": data.measured[where],
                "error_percent": data.error_percent[where],
                "repeat_noise_percent": data.noise_percent[where],
                "preempts": data.preempting[where],
                "meets_slo": data.meets_slo[where],
            }
        )
    return pd.DataFrame(rows)


def first_policy(results: Results) -> str:
    """The policy to show first: that of the recommended cell."""
    return results.recommendation.cell.policy if results.recommendation else policies(results)[0]


def compared(results: Results, metric: str) -> dict[Cell, dict[str, Any]]:
    """The comparison's row of every measured cell for one metric."""
    if results.comparison is None:
        return {}
    rows = results.comparison.cells
    found: list[dict[str, Any]] = rows[rows["metric"] == metric].to_dict("records")  # type: ignore[assignment]
    return {Cell(row["policy"], row["max_num_seqs"], row["max_num_batched_tokens"]): row for row in found}


def parity_data(results: Results, metric: str) -> pd.DataFrame:
    """One row a measured cell: the knobs, ``measured``, ``predicted``, ``error_percent``, half the range of the
    repeats (``noise``, in the metric's unit; NaN for a single one), the predicted load (``load_rho``) and what each
    null baseline predicted.
    """
    rows = []
    by_cell = results.by_cell
    for cell, row in compared(results, metric).items():
        nulls = {null: row["measured"] * (1 + row.get(f"{null}_error_percent", np.nan) / 100) for null in NULLS}
        rows.append(
            {
                **cell._asdict(),
                "measured": row["measured"],
                "predicted": row["predicted"],
                "error_percent": row["error_percent"],
                "noise": row["measured"] * row["repeat_noise_percent"] / 100,
                "load_rho": offered_load(by_cell[cell]),
                **nulls,
            }
        )
    names = [*Cell._fields, "measured", "predicted", "error_percent", "noise", "load_rho", *NULLS]
    return pd.DataFrame(rows, columns=names)


def offered_load(result: CellResult) -> float:
    """The load ρ of a cell: offered over capacity or, where that was not predicted, the busy time over the arrivals'
    span; NaN without a result.
    """
    return float(result.metrics.get("offered_rho", result.metrics.get("load_rho", np.nan)))


def table(results: Results) -> pd.DataFrame:
    """All there is, one row a cell: the knobs, ``status`` and ``reason``, ``num_gpu_blocks``, ``bound``, every
    predicted metric, the ends of its interval (``<metric>_low``, ``<metric>_high``), and where measured
    ``<metric>_measured``, ``…_error_percent``, ``…_repeat_noise_percent``.
    """
    rows: list[dict[str, Any]] = [_predicted_row(result) for result in results.cells]
    of = {result.cell: row for result, row in zip(results.cells, rows, strict=True)}
    for metric in metric_names(results):
        for cell, row in compared(results, metric).items():
            for suffix in ("measured", "error_percent", "repeat_noise_percent"):
                of[cell][f"{metric}_{suffix}"] = row[suffix]
    return pd.DataFrame(rows, columns=None if rows else [*Cell._fields, "status", "reason"])


def _predicted_row(result: CellResult) -> dict[str, Any]:
    about = {"status": result.status, "reason": result.reason, "num_gpu_blocks": result.num_gpu_blocks or np.nan}
    ends = {f"{name}_low": low for name, low in result.low.items()}
    ends |= {f"{name}_high": high for name, high in result.high.items()}
    return {**result.cell._asdict(), **about, "bound": bound_of(result), **result.metrics, **ends}


def bound_of(result: CellResult) -> str:
    """What held the cell back for most of its busy time, in words; empty if it is infeasible."""
    if not result.metrics:
        return ""
    bound = dominant_bound(result.metrics)
    return "nothing" if bound is Bound.NONE else KNOB[bound]

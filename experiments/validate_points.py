"""Published points of real servers beside their predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..scheduler.errors import BatchTwinError
from ..sim.cost.features import features_of_columns
from ..sim.cost_backend import CostModelBackend
from ..sim.metrics import metrics
from ..sim.world import simulate
from ..traces.errors import TraceError
from .point_setup import Setup, setup_point
from .point_tables import Tables
from .points import Point, Points, read_points

METRICS = {
    "output_tok_s": "output_throughput",
    "total_tok_s": "total_token_throughput",
    "request_s": "request_throughput",
    "mean_ttft_ms": "mean_ttft_ms",
    "median_ttft_ms": "median_ttft_ms",
    "p95_ttft_ms": "p95_ttft_ms",
    "p99_ttft_ms": "p99_ttft_ms",
    "mean_tpot_ms": "mean_tpot_ms",
    "median_tpot_ms": "median_tpot_ms",
    "p99_tpot_ms": "p99_tpot_ms",
    "mean_itl_ms": "mean_itl_ms",
    "p99_itl_ms": "p99_itl_ms",
    "mean_e2el_ms": "mean_e2el_ms",
    "p99_e2el_ms": "p99_e2el_ms",
}
THROUGHPUTS = ("output_tok_s", "total_tok_s", "request_s")


@dataclass(frozen=True, slots=True)
class Predicted:
    """One point and what was predicted for it; no metrics where it could not be, with the reason."""

    point: Point
    metrics: dict[str, float] | None
    assumed: tuple[str, ...]
    failed: str = ""
    extrapolated_share: float = 0.0
    flagged: str = ""
    """Why the published figures cannot be true as they stand."""

    def errors_percent(self) -> dict[str, float]:
        """Predicted against published, of every figure that was published."""
        if self.metrics is None:
            return {}
        out = {}
        for name, metric in METRICS.items():
            published = getattr(self.point, name)
            if published:
                out[name] = 100.0 * (self.metrics[metric] / published - 1.0)
        return out


@dataclass(frozen=True, slots=True)
class PointsValidation:
    """All points of a file."""

    points: Points
    predicted: list[Predicted]

    def median_errors(self) -> dict[str, tuple[float, float, int]]:
        """Median size and median of the signed error of each figure in per cent, and of how many points; those that
        were flagged as impossible are left out.
        """
        found: dict[str, list[float]] = {}
        for point in self.predicted:
            if not point.flagged:
                for name, error in point.errors_percent().items():
                    found.setdefault(name, []).append(error)
        return {
            name: (float(np.median(np.abs(errors))), float(np.median(errors)), len(errors))
            for name, errors in found.items()
        }


def validate_points(path: str | Path, profile: str | Path | None = None) -> PointsValidation:
    """Predict every point of a CSV, from the tables in ``profile`` where they are of the point's model and GPU, else
    by data sheet. Raises ``ExperimentError`` if the file cannot be read.
    """
    from .point_checks import implausible

    points = read_points(Path(path))
    tables = Tables(Path(path).parent, None if profile is None else Path(profile))
    old = {p.source for p in points.points if p.vllm_version is None and p.enable_chunked_prefill is False}
    predicted = [
        predict_point(p, tables, flagged=implausible(p) or "", before_v1=p.source in old) for p in points.points
    ]
    return PointsValidation(points, predicted)


def predict_point(point: Point, tables: Tables, *, flagged: str, before_v1: bool) -> Predicted:
    """One point; what cannot be predicted is said, and the others go on."""
    try:
        setup = setup_point(point, tables.of(point), before_v1=before_v1)
        values, beyond = _simulated(setup)
    except (BatchTwinError, TraceError) as error:
        return Predicted(point, None, (), failed=_short(str(error)), flagged=flagged)
    return Predicted(point, values, tuple(setup.assumed), extrapolated_share=beyond, flagged=flagged)


def _simulated(setup: Setup) -> tuple[dict[str, float], float]:
    config = setup.config
    model = setup.profile.cost_model_for(config.max_num_seqs, config.max_num_batched_tokens)
    backend = CostModelBackend(model, setup.host)
    records = simulate(setup.trace, config, setup.policy, [backend], clients=setup.clients)
    beyond = model.extrapolates(features_of_columns(records.iterations))
    return metrics(records, config.num_gpu_blocks - 1, {}), float(beyond.mean()) if len(beyond) else 0.0


def _short(message: str) -> str:
    """A message without the list of everything that is known."""
    return message.split("; known are", 1)[0].rstrip(".")

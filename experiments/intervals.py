"""How sure a prediction is: the same replay at both ends of what the calibration leaves open, and with other seeds.

The systematic part of an interval is what the metric becomes if every step is as fast, or as slow, as the profile
leaves possible at the level of ``sim.cost.spread.LEVEL``: the replays go through the scheduler, so that a queue that
grows with a slower device is in it. The sampling part, for requests that are drawn from a seed, is the uncertainty of
the mean over the seeds (Student's t). The two add in quadrature. No measured cell is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np

from ..scheduler.errors import BatchTwinError
from ..sim.cost.profile import Profile
from ..sim.cost.spread import LEVEL
from .errors import ExperimentError
from .grid import CellResult
from .replay import predict
from .scenario import Scenario

MIN_SEEDS = 3
"""Seeds on which a recommendation rests at least, unless the trace is a recorded one."""
METRICS = (
    "output_throughput",
    "request_throughput",
    "mean_ttft_ms",
    "median_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
    "mean_kv_usage",
    "peak_kv_usage",
    "peak_waiting",
    "num_preemptions",
)
"""What is compared, and has an interval."""
OTHER_OBJECTIVES = ("total_token_throughput", "request_goodput")


def both_ends(
    scenario: Scenario, profile: Profile, predicted: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """The lowest and the highest of each metric among the prediction, its fast and its slow end."""
    ends = [predict(scenario, profile, law, host=profile.host).metrics for law in profile.fast_and_slow]
    rows = [predicted, *ends]
    names = [name for name in (*METRICS, *OTHER_OBJECTIVES) if name in predicted]
    low = {name: float(np.min([row[name] for row in rows])) for name in names}
    high = {name: float(np.max([row[name] for row in rows])) for name in names}
    return low, high


def other_seeds(scenario: Scenario, profile: Profile, num_seeds: int) -> list[dict[str, float]]:
    """The metrics of the same scenario with each of the next seeds of its requests: ``num_seeds`` − 1 of them. Raises
    ``ExperimentError`` where the requests of such a seed cannot be served.
    """
    found = []
    for more in range(1, num_seeds):
        trace = scenario.trace.model_copy(update={"seed": scenario.trace.seed + more})
        try:
            metrics = predict(scenario.model_copy(update={"trace": trace}), profile).metrics
        except BatchTwinError as error:
            raise ExperimentError(
                f"With seed {trace.seed} of the requests: {error} (With seeds=1 only those of seed {trace.seed - more} "
                f"are looked at.)"
            ) from error
        found.append({name: metrics[name] for name in (*METRICS, *OTHER_OBJECTIVES) if name in metrics})
    return found


def values(result: CellResult, metric: str) -> list[float]:
    """The metric with every seed, the sweep's own first."""
    return [result.metrics[metric], *(row[metric] for row in result.seeds)]


def over_seeds(result: CellResult) -> dict[str, float]:
    """The metrics, those that every seed has as means over the seeds."""
    means = {name: float(np.mean(values(result, name))) for name in (result.seeds[0] if result.seeds else ())}
    return {**result.metrics, **means}


def interval(result: CellResult, metric: str) -> tuple[float, float]:
    """Around the mean over the seeds, and not below 0, which no metric is; NaN if the cell has no ends."""
    mean = float(np.mean(values(result, metric)))
    low, high = result.low.get(metric, np.nan), result.high.get(metric, np.nan)
    sampling, own = sampling_half(values(result, metric)), result.metrics[metric]
    below, above = sqrt((own - low) ** 2 + sampling**2), sqrt((high - own) ** 2 + sampling**2)
    return float(np.maximum(mean - below, 0.0)), mean + above


def lead_half(ahead: CellResult, behind: CellResult, metric: str) -> float:
    """Half the interval of ``ahead`` − ``behind``: their systematic parts as if they had nothing in common (they have,
    so this errs towards a tie), and the seeds' part of the difference seed by seed. NaN without an interval.
    """
    systematic = [(cell.high.get(metric, np.nan) - cell.low.get(metric, np.nan)) / 2.0 for cell in (ahead, behind)]
    leads = np.array(values(ahead, metric)) - np.array(values(behind, metric))
    return sqrt(sum(part**2 for part in systematic) + sampling_half(leads.tolist()) ** 2)


def sampling_half(drawn: Sequence[float]) -> float:
    """Half the interval (Student's t) of the mean of what was drawn with several seeds; 0 for one."""
    n = len(drawn)
    if n < 2:
        return 0.0
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, (1.0 + LEVEL) / 2.0)) * float(np.std(drawn, ddof=1)) / sqrt(n)

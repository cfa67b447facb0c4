"""Where errors hide: parts that cancel in a sum, and series that differ although their means agree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from .run import Run
from .timeline import SERIES, Timeline, mean_differences, means_at

CANCELS_FROM_PERCENT = 1.0
"""Of the E2E latency: what cancels is flagged from here on, if it is more than what shows."""


def hidden(parts: Iterable[float]) -> float:
    """How much of ``parts`` cancels in their sum: (Σ|part| − |Σ part|) / 2, which is 0 if all have one sign."""
    found = list(parts)
    return (sum(abs(part) for part in found) - abs(sum(found))) / 2.0


def percent_error(predicted: float, measured: float) -> float:
    """Of the measured value; NaN where that is 0 and the prediction is not."""
    if measured == 0:
        return 0.0 if predicted == 0 else math.nan
    return 100.0 * (predicted / measured - 1.0)


def latency_parts(predicted: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """The error of the mean E2E latency in per cent of it, and the two parts that sum to it: that of the first token,
    and that of all later ones together. ``hidden_percent`` of it cancels; ``cancels`` says whether that is at least
    ``CANCELS_FROM_PERCENT`` and more than what is left to be seen.
    """
    whole = measured["mean_e2el_ms"] or math.nan
    first = 100.0 * (predicted["mean_ttft_ms"] - measured["mean_ttft_ms"]) / whole
    total = 100.0 * (predicted["mean_e2el_ms"] - whole) / whole
    cancelled = hidden((first, total - first))
    return {
        "e2el_error_percent": total,
        "from_ttft_percent": first,
        "from_later_tokens_percent": total - first,
        "ttft_error_percent": percent_error(predicted["mean_ttft_ms"], measured["mean_ttft_ms"]),
        "tpot_error_percent": percent_error(predicted["mean_tpot_ms"], measured["mean_tpot_ms"]),
        "hidden_percent": cancelled,
        "cancels": bool(cancelled >= CANCELS_FROM_PERCENT and cancelled > abs(total)),
    }


def over_time(predicted: Timeline, run: Run) -> dict[str, float]:
    """Per series (``running``, ``waiting``, ``kv_usage``): the measured mean over time and the mean distance of the
    prediction from it, moment by moment. Empty for a prediction of before series were kept.
    """
    if not predicted:
        return {}
    usable = run.num_gpu_blocks - 1
    means = means_at(predicted, run.records, usable)
    distances = mean_differences(predicted, run.records, usable)
    return {f"{name}_{what}": of[name] for name in SERIES for what, of in (("mean", means), ("distance", distances))}

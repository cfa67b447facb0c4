"""Metrics, as ``vllm bench serve`` defines them, so that files can be laid side by side.

TTFT = first token − arrival. ITL = each gap between successive tokens of a request, pooled. TPOT = (last token −
first token) / (n − 1) per request, undefined for n = 1. E2E = last token − arrival. Queue time = first scheduled −
arrival. Throughputs are over (last finish − first arrival). Goodput = requests per second that meet every SLO.

Behind a router the requests' metrics and the counts are those of all replicas together. What describes a server is
that of *one* replica, so that it can be held against the knobs: means and shares are over the busy time of all,
peaks are those of the replica that had the highest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..scheduler.batch import Bound
from .records import Columns, FloatArray, Records

_PERCENTILES = (("median", 50), ("p90", 90), ("p95", 95), ("p99", 99))
SLO_NAMES = ("ttft_ms", "tpot_ms", "e2el_ms")


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Seconds per finished request, in trace order."""

    arrival_s: FloatArray
    gate_s: FloatArray
    queue_s: FloatArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    """NaN where a request has a single token."""
    e2el_s: FloatArray
    last_token_s: FloatArray
    num_prompt_tokens: NDArray[np.int64]
    num_output_tokens: NDArray[np.int64]


def request_times(records: Records) -> RequestTimes:
    """Times of the requests that finished."""
    columns = {name: values[records.requests["last_token_at"] >= 0] for name, values in records.requests.items()}
    start_s, end_s = records.iterations["start_s"], records.iterations["end_s"]
    arrival_s = columns["arrival_s"]
    first_s, last_s = end_s[columns["first_token_at"]], end_s[columns["last_token_at"]]
    num_output = columns["num_output_tokens"]
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot_s = np.where(num_output > 1, (last_s - first_s) / (num_output - 1), np.nan)
    return RequestTimes(
        arrival_s=arrival_s,
        gate_s=arrival_s - columns["due_s"],
        queue_s=start_s[columns["scheduled_at"]] - arrival_s,
        ttft_s=first_s - arrival_s,
        tpot_s=tpot_s,
        e2el_s=last_s - arrival_s,
        last_token_s=last_s,
        num_prompt_tokens=columns["num_prompt_tokens"],
        num_output_tokens=num_output,
    )


def itl_gaps(records: Records) -> tuple[FloatArray, NDArray[np.int64]]:
    """Every inter-token gap in seconds, and how many tokens had it."""
    end_s, previous = records.iterations["end_s"], records.iterations["previous_tick"]
    counted = (previous >= 0) & (records.iterations["num_itl"] > 0)
    regular = end_s[counted] - end_s[previous[counted]]
    single = end_s[records.gaps[:, 1]] - end_s[records.gaps[:, 0]]
    counts = np.concatenate((records.iterations["num_itl"][counted], np.ones(len(single), dtype=np.int64)))
    return np.concatenate((regular, single)), counts.astype(np.int64)


def weighted_percentile(values: FloatArray, counts: NDArray[np.int64], percent: float) -> float:
    """``numpy.percentile(np.repeat(values, counts), percent)`` without the repeating."""
    return weighted_percentiles(values, counts, (percent,))[0]


def weighted_percentiles(values: FloatArray, counts: NDArray[np.int64], percents: Sequence[float]) -> list[float]:
    """Several, for one sort."""
    if len(values) == 0:
        return [float("nan")] * len(percents)
    if counts.max() == counts.min() == 1:
        ordered, ends = np.sort(values), np.arange(1, len(values) + 1)
    else:
        order = np.argsort(values)  # which of equal values comes first is of no matter
        ordered, ends = values[order], np.cumsum(counts[order])
    found = []
    for percent in percents:
        position = percent / 100.0 * (ends[-1] - 1)
        low = int(np.floor(position))
        at_low = ordered[np.searchsorted(ends, low, side="right")]
        at_high = ordered[np.searchsorted(ends, min(low + 1, ends[-1] - 1), side="right")]
        found.append(float(at_low + (at_high - at_low) * (position - low)))
    return found


def metrics(records: Records, num_usable_blocks: int, slo: Mapping[str, float] | None = None) -> dict[str, float]:
    """All metrics of one replay; names are vLLM's where it has them. ``slo`` maps ``ttft_ms``, ``tpot_ms`` or
    ``e2el_ms`` to its limit. An empty replay has NaN for whatever is undefined.
    """
    times = request_times(records)
    num = len(times.e2el_s)
    first_s = float(times.arrival_s.min(initial=np.inf))
    duration_s = float(times.last_token_s.max(initial=-np.inf)) - first_s if num else float("nan")
    over_s = duration_s or float("nan")  # no rate over no time
    num_input, num_output = int(times.num_prompt_tokens.sum()), int(times.num_output_tokens.sum())
    out = {
        "num_requests": len(records.requests["arrival_s"]),
        "completed": num,
        "duration": duration_s,
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": num / over_s,
        "output_throughput": num_output / over_s,
        "total_token_throughput": (num_input + num_output) / over_s,
    }
    for name, values in (
        ("ttft", times.ttft_s),
        ("tpot", times.tpot_s[~np.isnan(times.tpot_s)]),
        ("e2el", times.e2el_s),
        ("queue", times.queue_s),
        ("gate", times.gate_s),
    ):
        out |= _summary(name, values, np.ones(len(values), dtype=np.int64))
    out |= _summary("itl", *itl_gaps(records))
    if slo:
        out["request_goodput"] = num_meeting(times, slo) / over_s
    busy_s = busy_times(records)
    return out | _load(records, times, first_s, busy_s) | _server(records.iterations, busy_s, num_usable_blocks)


def num_meeting(times: RequestTimes, slo: Mapping[str, float]) -> int:
    """Requests that meet every SLO given (limits in ms); a single token has no TPOT to miss."""
    met = np.ones(len(times.e2el_s), dtype=bool)
    for name, limit_ms in slo.items():
        values = getattr(times, name.removesuffix("_ms") + "_s")
        met &= ~(values * 1e3 > limit_ms)
    return int(met.sum())


def _summary(name: str, values_s: FloatArray, counts: NDArray[np.int64]) -> dict[str, float]:
    total = counts.sum()
    mean = float((values_s * counts).sum() / total) if total else float("nan")
    spread = float(np.sqrt(((values_s - mean) ** 2 * counts).sum() / total)) if total else float("nan")
    out = {f"mean_{name}_ms": mean * 1e3, f"std_{name}_ms": spread * 1e3}
    percentiles = weighted_percentiles(values_s, counts, [percent for _, percent in _PERCENTILES])
    out |= {f"{word}_{name}_ms": value * 1e3 for (word, _), value in zip(_PERCENTILES, percentiles, strict=True)}
    return out


def busy_times(records: Records) -> FloatArray:
    """[iterations] Seconds by which each kept its replica busy: from its launch or, if it was launched before the one
    before had ended (asynchronous scheduling), from that end.
    """
    end_s, replica = records.iterations["end_s"], records.iterations["replica"]
    before_s = np.full(len(end_s), -np.inf)
    same = replica[1:] == replica[:-1]
    before_s[1:][same] = end_s[:-1][same]
    return np.asarray(end_s - np.maximum(records.iterations["start_s"], before_s))


def _load(records: Records, times: RequestTimes, first_s: float, busy_s: FloatArray) -> dict[str, float]:
    """How loaded the servers were. ``load_rho`` is the busy time over the time in which requests arrived, a replica:
    above 1 the queue grows for as long as they do. Below 1 it is no offered load over capacity: one request at a time
    keeps a server as busy as sixty (``experiments.load``).
    """
    span_s = float(times.arrival_s.max(initial=-np.inf)) - first_s
    if not len(times.arrival_s) or span_s <= 0:
        return {"load_rho": float("inf"), "warmup_cut_s": 0.0, **_NO_STEADY_STATE}
    cut_s = WARMUP_SHARE * span_s
    rho = float(busy_s.sum()) / (records.num_replicas * span_s)
    window_s = (first_s + cut_s, first_s + span_s)
    return {"load_rho": rho, "warmup_cut_s": cut_s, **_steady(records, times, window_s)}


WARMUP_SHARE = 0.1
"""Share of the arrivals' span that is cut as warm-up."""
_NO_STEADY_STATE = {
    "drain_s": float("nan"),
    "steady_requests": 0,
    "steady_output_throughput": float("nan"),
    "steady_mean_ttft_ms": float("nan"),
    "steady_mean_tpot_ms": float("nan"),
    "steady_growth": float("nan"),
}


def _steady(records: Records, times: RequestTimes, window_s: tuple[float, float]) -> dict[str, float]:
    """What remains between warm-up and drain (all that follows the last arrival): the tokens of that time, the
    requests that arrive in it, and ``steady_growth``, the mean number of requests in the system over its second half
    as a multiple of that over its first. Around 1 it was a steady state, well above 1 the queue grew.
    """
    low_s, high_s = window_s
    inside = (records.iterations["end_s"] >= low_s) & (records.iterations["end_s"] <= high_s)
    arriving = times.arrival_s >= low_s
    tpot_s = times.tpot_s[arriving]
    tpot_s = tpot_s[~np.isnan(tpot_s)]
    first, second = (_in_system(times, *half) for half in _halves(low_s, high_s))
    return {
        "drain_s": float(times.last_token_s.max()) - high_s,
        "steady_requests": int(arriving.sum()),
        "steady_output_throughput": float(records.iterations["num_samples"][inside].sum()) / (high_s - low_s),
        "steady_mean_ttft_ms": float(times.ttft_s[arriving].mean()) * 1e3,
        "steady_mean_tpot_ms": float(tpot_s.mean()) * 1e3 if len(tpot_s) else float("nan"),
        "steady_growth": second / first if first else float("nan"),
    }


def _halves(low_s: float, high_s: float) -> tuple[tuple[float, float], tuple[float, float]]:
    middle_s = (low_s + high_s) / 2
    return (low_s, middle_s), (middle_s, high_s)


def _in_system(times: RequestTimes, low_s: float, high_s: float) -> float:
    """Request-seconds spent in the system (waiting or running) between two times."""
    spent_s = np.minimum(times.last_token_s, high_s) - np.maximum(times.arrival_s, low_s)
    return float(np.maximum(spent_s, 0.0).sum())


def _server(iterations: Columns, taken_s: FloatArray, num_usable_blocks: int) -> dict[str, float]:
    """What the iterations say; means are over the time that they took."""
    busy_s = float(taken_s.sum())
    usage = 1.0 - iterations["num_free_blocks"] / num_usable_blocks
    out = {
        "num_iterations": len(taken_s),
        "num_preemptions": int(iterations["num_preempted"].sum()),
        "recomputed_tokens": int(iterations["num_recomputed_tokens"].sum()),
        "cached_tokens": int(iterations["num_cached_tokens"].sum()),
        "padded_tokens": int(iterations["num_padded_tokens"].sum()),
        "mean_iteration_ms": busy_s / max(len(taken_s), 1) * 1e3,
        "mean_tokens_per_iteration": float(iterations["num_tokens"].mean()) if len(taken_s) else float("nan"),
        "peak_running": int(iterations["num_running"].max(initial=0)),
        "peak_waiting": int(iterations["num_waiting"].max(initial=0)),
        "peak_kv_usage": float(usage.max(initial=0.0)),
    }
    for name, values in (("mean_running", iterations["num_running"]), ("mean_kv_usage", usage)):
        out[name] = float((values * taken_s).sum() / busy_s) if busy_s else float("nan")
    for bound in Bound:
        share = float(taken_s[iterations["bound"] == bound].sum() / busy_s) if busy_s else float("nan")
        out[f"bound_{bound.name.lower()}_share"] = share
    return out

"""How a metric is called, what it is counted in, and whether less of it is better."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Label:
    """A metric for human eyes."""

    text: str
    unit: str = ""
    lower_is_better: bool | None = None
    """None where neither direction is better."""
    scale: float = 1.0
    """What the stored value is multiplied with to be in ``unit``."""
    short: str = ""
    """The name with its unit, where room is scarce."""

    @property
    def with_unit(self) -> str:
        return f"{self.text} ({self.unit})" if self.unit else self.text

    @property
    def brief(self) -> str:
        return self.short or (f"{self.text}, {self.unit}" if self.unit else self.text)


_TIMES = {
    "ttft": ("TTFT", True),
    "tpot": ("TPOT", True),
    "itl": ("ITL", True),
    "e2el": ("end-to-end latency", True),
    "queue": ("queue time", True),
    "gate": ("wait at the client", True),
}
_STATISTICS = {
    "mean": "Mean",
    "median": "Median",
    "std": "Std. dev. of",
    "p90": "P90",
    "p95": "P95",
    "p99": "P99",
}
LABELS: dict[str, Label] = {
    "output_throughput": Label("Output throughput", "tokens/s", False, short="Output tokens/s"),
    "steady_output_throughput": Label("Output throughput in steady state", "tokens/s", False),
    "total_token_throughput": Label("Total throughput", "tokens/s", False),
    "request_throughput": Label("Request throughput", "requests/s", False, short="Requests/s"),
    "request_goodput": Label("Goodput within the SLOs", "requests/s", False, short="Good requests/s"),
    "duration": Label("Duration", "s", True),
    "num_requests": Label("Requests", "requests"),
    "completed": Label("Completed", "requests"),
    "total_input_tokens": Label("Prompt tokens", "tokens"),
    "total_output_tokens": Label("Output tokens", "tokens"),
    "load_rho": Label("Busy time over arrivals' span"),
    "offered_rho": Label("Load ρ (offered / capacity)"),
    "capacity_request_throughput": Label("Capacity for these requests", "requests/s"),
    "warmup_cut_s": Label("Warm-up left out", "s"),
    "drain_s": Label("Drain left out", "s"),
    "steady_requests": Label("Requests of the steady window", "requests"),
    "steady_mean_ttft_ms": Label("Mean TTFT in steady state", "ms", True),
    "steady_mean_tpot_ms": Label("Mean TPOT in steady state", "ms", True),
    "steady_growth": Label("Growth of the requests in the system"),
    "num_iterations": Label("Iterations", "iterations"),
    "num_preemptions": Label("Preemptions", "", True),
    "recomputed_tokens": Label("Recomputed tokens", "tokens", True),
    "cached_tokens": Label("Prefix-cache hits", "tokens", False),
    "padded_tokens": Label("Padded tokens", "tokens", True),
    "mean_iteration_ms": Label("Mean iteration", "ms"),
    "mean_tokens_per_iteration": Label("Mean tokens per iteration", "tokens"),
    "mean_running": Label("Mean running", "requests"),
    "peak_running": Label("Peak running", "requests"),
    "peak_waiting": Label("Longest queue", "requests", True),
    "mean_kv_usage": Label("Mean KV usage", "%", None, 100.0),
    "peak_kv_usage": Label("Peak KV usage", "%", None, 100.0),
    "bound_none_share": Label("No bound active", "% of the busy time", None, 100.0),
    "bound_max_num_seqs_share": Label("max_num_seqs active", "% of the busy time", None, 100.0),
    "bound_max_num_batched_tokens_share": Label("max_num_batched_tokens active", "% of the busy time", None, 100.0),
    "bound_kv_blocks_share": Label("KV blocks active", "% of the busy time", None, 100.0),
} | {
    f"{statistic}_{time}_ms": Label(f"{prefix} {text}", "ms", lower)
    for time, (text, lower) in _TIMES.items()
    for statistic, prefix in _STATISTICS.items()
}
CHOOSERS = {
    "predicted": "BatchTwin's prediction",
    "constant": "A constant step time",
    "roofline_affine": "A roofline, scaled and shifted",
    "random": "A random cell (mean)",
    "vllm_default": "vLLM's default",
}
"""Who chooses a cell: the prediction, the null baselines, chance, vLLM."""
NULLS = {"constant": "Constant", "roofline_affine": "Roofline"}
"""The null baselines, in one word each: every step takes as long, or what a scaled and shifted roofline says."""


def label(name: str) -> Label:
    """The label of a metric; one that is not known yet is shown by its own name in words."""
    return LABELS.get(name) or Label(name.replace("_", " ").capitalize())


def number(value: float) -> str:
    """About three significant digits, thousands separated; a dash for what is undefined."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    digits = 0 if size >= 99.95 or value == int(value) else 1 if size >= 9.995 else 2
    return f"{value:,.{digits}f}".replace("-", "−")


def compact(value: float) -> str:
    """At most five characters below a billion, sign aside: for the inside of a heatmap's cell."""
    for limit, unit, letter in ((999.5e6, 1e9, "G"), (999.5e3, 1e6, "M"), (9_999.5, 1e3, "k")):
        if limit <= abs(value) < math.inf:
            return number(value / unit) + letter
    return number(value)


def percent(value: float, *, signed: bool = False) -> str:
    """``3.1 %``, or ``+3.1 %`` where the sign is news."""
    if math.isnan(value):
        return "–"
    rounded = round(value, 1) or 0.0
    return f"{'+' if signed and rounded > 0 else ''}{rounded:.1f} %".replace("-", "−")


def quantity(name: str, value: float) -> str:
    """A metric's value with its unit."""
    found = label(name)
    text = number(value * found.scale)
    return text if not found.unit or text == "–" else f"{text} {found.unit}"

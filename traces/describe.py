"""What a trace is like: rates, lengths, burstiness, shared prefixes. Data only; ``render`` draws it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .render import render

if TYPE_CHECKING:
    from .columns import FloatArray, IntArray
    from .trace import Trace

__all__ = ["LengthBin", "LengthSummary", "TraceDescription", "describe", "render"]

SECONDS_A_MINUTE = 60
RATE_SLICES = 48


@dataclass(frozen=True, slots=True)
class LengthBin:
    """How many requests have a length of ``low_tokens`` to ``high_tokens``, both included."""

    low_tokens: int
    high_tokens: int
    count: int


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """Lengths in tokens; percentiles are interpolated linearly, bins double in width."""

    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    max: int
    bins: tuple[LengthBin, ...]


@dataclass(frozen=True, slots=True)
class TraceDescription:
    """What ``describe`` finds.

    ``rate_per_s`` is one over the mean gap; ``interarrival_cv`` (burstiness: 1 for Poisson) is the standard deviation
    of the gaps over their mean; ``peak_minute_share`` is the share of requests in the busiest minute, minutes being
    counted from the first arrival. All three are None where everything arrives at once. ``shared_block_share`` (None
    without prefix blocks) is the share of prompt blocks that an unbounded prefix cache would already hold.
    """

    name: str
    source: str
    digest: str
    num_requests: int
    span_s: float
    rate_per_s: float | None
    interarrival_cv: float | None
    peak_minute_share: float | None
    prompt: LengthSummary
    output: LengthSummary
    shared_block_share: float | None
    arrivals_per_slice: tuple[int, ...]


def describe(trace: Trace) -> TraceDescription:
    """Everything ``batchtwin trace describe`` shows, as plain numbers."""
    gaps = np.diff(trace.arrival_s)
    mean_gap_s = float(gaps.mean()) if gaps.size else 0.0
    timed = mean_gap_s > 0
    return TraceDescription(
        name=trace.name,
        source=trace.source,
        digest=trace.digest(),
        num_requests=len(trace),
        span_s=trace.span_s,
        rate_per_s=1.0 / mean_gap_s if timed else None,
        interarrival_cv=float(gaps.std()) / mean_gap_s if timed else None,
        peak_minute_share=_peak_minute_share(trace.arrival_s) if timed else None,
        prompt=_summary(trace.num_prompt_tokens),
        output=_summary(trace.output_len),
        shared_block_share=_shared_block_share(trace),
        arrivals_per_slice=_arrivals_per_slice(trace) if timed else (),
    )


def _summary(lengths: IntArray) -> LengthSummary:
    p10, p50, p90, p99 = np.percentile(lengths, (10, 50, 90, 99)).tolist()
    return LengthSummary(float(lengths.mean()), p10, p50, p90, p99, int(lengths.max()), length_bins(lengths))


def length_bins(lengths: IntArray) -> tuple[LengthBin, ...]:
    """Counts per power of two (…, 64 to 127, 128 to 255, …), from the shortest length to the longest."""
    power = np.frexp(lengths.astype(np.float64))[1] - 1  # exact for integers, unlike a rounded logarithm
    counts = np.bincount(power)
    return tuple(
        LengthBin(2**exponent, 2 ** (exponent + 1) - 1, int(counts[exponent]))
        for exponent in range(int(power.min()), counts.size)
    )


def _peak_minute_share(arrival_s: FloatArray) -> float:
    _, counts = np.unique(arrival_s // SECONDS_A_MINUTE, return_counts=True)
    return float(counts.max()) / arrival_s.size


def _arrivals_per_slice(trace: Trace) -> tuple[int, ...]:
    counts, _ = np.histogram(trace.arrival_s, bins=RATE_SLICES, range=(0.0, trace.span_s))
    return tuple(counts.tolist())


def _shared_block_share(trace: Trace) -> float | None:
    """A block counts as shared if an earlier request had it and all blocks before it are shared as well."""
    if trace.prompt_blocks is None:
        return None
    seen: set[int] = set()
    shared = total = 0
    for ids in (blocks.tolist() for blocks in trace.prompt_blocks):
        shared += next((at for at, block in enumerate(ids) if block not in seen), len(ids))
        total += len(ids)
        seen.update(ids)
    return shared / total if total else 0.0

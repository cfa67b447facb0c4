"""Traces made from a seed: arrivals with a burstiness, lengths from distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .errors import TraceError
from .trace import Trace

if TYPE_CHECKING:
    from .columns import FloatArray
    from .lengths import LengthDistribution

MOST_REQUESTS = 10_000_000


def generate(
    n: int,
    rate_per_s: float,
    seed: int,
    *,
    burstiness: float = 1.0,
    prompt: LengthDistribution,
    output: LengthDistribution,
) -> Trace:
    """``n`` requests at a mean rate; the first arrives at 0, an infinite rate puts all of them there.

    ``burstiness`` means what it means to ``vllm bench serve``: the shape of gamma distributed gaps. 1 is a Poisson
    process, less is burstier (the gaps' coefficient of variation is 1/√burstiness), more is more regular. Arrivals,
    prompts and outputs draw from streams of their own, so changing one leaves the others as they were.
    """
    check_count(n, seed)
    if not rate_per_s > 0:
        raise TraceError(f"a request rate is above 0 per second (inf: all at once), not {rate_per_s:g}")
    arrivals, prompts, outputs = streams(seed, 3)
    with np.errstate(over="ignore"):  # infinite arrivals are refused by the trace
        arrival_s = np.cumsum(unit_gaps(arrivals, n, burstiness)) / rate_per_s
    return Trace(
        name="generated",
        arrival_s=arrival_s,
        num_prompt_tokens=prompt.sample(prompts, n),
        output_len=output.sample(outputs, n),
        source=f"generate(n={n}, rate_per_s={rate_per_s:g}, seed={seed}, burstiness={burstiness:g}, "
        f"prompt={prompt}, output={output})",
    )


def streams(seed: int, count: int) -> list[np.random.Generator]:
    """Independent generators from one seed."""
    return [np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(seed).spawn(count)]


def unit_gaps(rng: np.random.Generator, n: int, burstiness: float) -> FloatArray:
    """Seconds before each of ``n`` arrivals at one request a second; nothing stands before the first."""
    if not 0 < burstiness < np.inf:
        raise TraceError(f"burstiness is finite and above 0 (1 is Poisson), not {burstiness:g}")
    gaps = rng.gamma(burstiness, 1.0 / burstiness, n)
    gaps[0] = 0.0
    return gaps


def check_count(n: int, seed: int) -> None:
    """Raise unless so many requests can be made from this seed."""
    if not 1 <= n <= MOST_REQUESTS:
        raise TraceError(f"a trace of 1 to {MOST_REQUESTS:,} requests can be generated, not of {n:,}")
    if seed < 0:
        raise TraceError(f"a seed is 0 or more, not {seed}")

"""When a benchmark's client sends: the arrival process of ``vllm bench serve``, over the requests of any trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from .errors import TraceError
from .generate import streams, unit_gaps

if TYPE_CHECKING:
    from .columns import FloatArray

RampShape = Literal["linear", "exponential"]


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that rises (or falls) from the first request to the last, by the request's number, not by the clock:
    request i of n has ``start + (end − start) · i/(n−1)`` (linear) or ``start · (end/start)^(i/(n−1))`` (exponential)
    requests a second.
    """

    shape: RampShape
    start_rps: float
    end_rps: float

    def rates_per_s(self, n: int) -> FloatArray:
        """[n] The rate that each request's gap is drawn with."""
        progress = np.arange(n) / max(n - 1, 1)
        if self.shape == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        rates: FloatArray = self.start_rps * (self.end_rps / self.start_rps) ** progress
        return rates


def bench_arrivals_s(n: int, seed: int, rate: float | Ramp, burstiness: float = 1.0) -> FloatArray:
    """[n] Arrivals in s as ``vllm bench serve`` makes them (0.33, ``--request-rate``, ``--burstiness``,
    ``--ramp-up-strategy``): gaps are gamma distributed with shape ``burstiness`` around the mean 1/rate (1 is Poisson,
    less is burstier); at a fixed rate they are then stretched so that the whole sends at exactly that rate, on a ramp
    they stay as drawn.

    The first arrival is 0, as everywhere here; that client also waits a gap before its first request. Raises
    ``TraceError`` for a rate or burstiness that is not above 0.
    """
    ends = (rate.start_rps, rate.end_rps) if isinstance(rate, Ramp) else (rate,)
    for value in ends:
        if not 0 < value < np.inf:
            raise TraceError(f"a request rate is finite and above 0 per second, not {value:g}")
    gaps = unit_gaps(streams(seed, 1)[0], n, burstiness)
    if isinstance(rate, Ramp):
        return np.asarray(np.cumsum(gaps / rate.rates_per_s(n)))
    arrival_s = np.cumsum(gaps)
    return np.asarray(arrival_s * ((n - 1) / rate / arrival_s[-1])) if n > 1 else arrival_s

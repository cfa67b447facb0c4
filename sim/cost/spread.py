"""How wrong a calibrated law may be on a replay that it has not seen: the two worlds between which an interval lies.

A step's predicted time is wrong by something that all steps like it share (the law's form does not fit there; it does
not average out over a replay), by something of its own (which does), and by the drift of the device from one time to
another (which all steps share). The first is estimated from the cross-validated residuals of the calibration: batches
are put into regions of alike steps, and the variance *between* regions is told from the variance within them by the
method of moments of a one-way random-effects model (Searle, Casella, McCulloch, Variance Components, 1992, ch. 3). The
third is the spread of the calibration's rounds. Nothing here looks at a measured cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray

from .features import Features, FloatArray
from .models import CostModel

LEVEL = 0.9
"""Share of the measured figures that an interval should hold."""
Z = 1.6449
"""Standard normal quantile at (1 + LEVEL) / 2."""


@dataclass(frozen=True, slots=True)
class KindSpread:
    """Residuals ln(measured / predicted) of one kind of step."""

    mean: float
    systematic: float
    """Standard deviation of a region's mean, that of a new region: it includes the uncertainty of ``mean``."""
    num_batches: int
    num_regions: int


def spread_by_kind(features: Features, predicted_s: FloatArray, measured_s: FloatArray) -> dict[str, KindSpread]:
    """Spread of the held-out residuals of N calibration batches, ``decode`` (no prompt in the step) and ``prefill``."""
    residuals = np.log(measured_s / predicted_s)
    regions = _regions(features)
    has_prefill = np.asarray(features.num_prefills) > 0
    return {
        kind: _between(residuals[rows], regions[rows])
        for kind, rows in (("decode", ~has_prefill), ("prefill", has_prefill))
        if rows.any()
    }


def drift(times_s: Sequence[FloatArray]) -> float:
    """Standard deviation over the rounds of a round's mean ln(time / the batch's median): what all steps share of
    the device's coming and going. ``times_s`` holds [rounds] per batch.
    """
    table = np.log(np.array(times_s))
    rounds = (table - np.median(table, axis=1, keepdims=True)).mean(axis=0)
    return float(rounds.std(ddof=1)) if len(rounds) > 1 else 0.0


def _regions(features: Features) -> NDArray[np.int64]:
    """[N] A number a region: octaves of the tokens, and of four the query-context pairs."""
    tokens = np.log2(np.maximum(np.asarray(features.num_tokens, dtype=np.float64), 1.0))
    pairs = np.asarray(features.num_decode_kv_tokens) + np.asarray(features.prefill_attention_work)
    reach = np.log2(1.0 + np.asarray(pairs, dtype=np.float64)) / 2.0
    return np.asarray(tokens.astype(np.int64) * 1000 + reach.astype(np.int64))


def _between(residuals: FloatArray, regions: NDArray[np.int64]) -> KindSpread:
    """One-way random effects, unbalanced. Where every region holds one batch nothing can be told apart, and all of the
    variance counts as shared.
    """
    num = len(residuals)
    _, place = np.unique(regions, return_inverse=True)
    sizes = np.bincount(place).astype(np.float64)
    means = np.bincount(place, residuals) / sizes
    k, mean = len(sizes), float(residuals.mean())
    if k < 2 or num == k:
        variance = float(residuals.var(ddof=1)) if num > 1 else 0.0
        return KindSpread(mean, sqrt(variance * (1.0 + 1.0 / num)), num, k)
    within = float(((residuals - means[place]) ** 2).sum()) / (num - k)
    size = (num - float((sizes**2).sum()) / num) / (k - 1)
    between = float((sizes * (means - mean) ** 2).sum()) / (k - 1)
    shared = max(0.0, (between - within) / size)
    return KindSpread(mean, sqrt(shared * (1.0 + 1.0 / k) + within / num), num, k)


@dataclass(frozen=True, slots=True)
class Factors:
    """By what every step's time is multiplied, by kind of step."""

    decode: float
    prefill: float


def bounds(spreads: dict[str, KindSpread], drift_std: float) -> tuple[Factors, Factors]:
    """The fast and the slow end of the interval of ``LEVEL``: mean ± Z · √(systematic² + drift²) of the logarithms,
    both kinds at the same end at once (the widest case). The prediction itself lies inside.
    """
    of = {}
    for kind in Factors.__slots__:
        found = spreads.get(kind) or next(iter(spreads.values()))
        half = Z * sqrt(found.systematic**2 + drift_std**2)
        of[kind] = (min(1.0, exp(found.mean - half)), max(1.0, exp(found.mean + half)))
    low, high = (Factors(**{kind: ends[end] for kind, ends in of.items()}) for end in (0, 1))
    return low, high


@dataclass(frozen=True, slots=True)
class Scaled:
    """A cost model whose steps all take a factor longer or shorter."""

    inner: CostModel
    factors: Factors
    name: str = "scaled"

    def durations_s(self, features: Features) -> FloatArray:
        """[N] device seconds."""
        factor = np.where(np.asarray(features.num_prefills) > 0, self.factors.prefill, self.factors.decode)
        return self.inner.durations_s(features) * factor

    def duration_s(self, features: Features) -> float:
        """Device seconds."""
        factor = self.factors.prefill if features.num_prefills else self.factors.decode
        return self.inner.duration_s(features) * factor

    def steady_s(self, features: Features, num_steps: int) -> list[float]:
        """Device seconds of a stretch of pure decodes."""
        return [seconds * self.factors.decode for seconds in self.inner.steady_s(features, num_steps)]

"""Distributions of lengths, in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .columns import MAX_TOKENS, frozen
from .errors import TraceError

if TYPE_CHECKING:
    import numpy.typing as npt

    from .columns import FloatArray, IntArray


class LengthDistribution(Protocol):
    """Anything that draws lengths of at least one token; its ``str`` stands in the trace's provenance."""

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        """``n`` lengths in tokens, independent of each other."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same length."""

    tokens: int

    def __post_init__(self) -> None:
        _check_tokens("a fixed length", self.tokens)

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        return np.full(n, self.tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """A lognormal of given median, ``sigma`` being the standard deviation of the natural logarithm.

    Draws are rounded; what falls outside ``min_tokens`` to ``max_tokens`` is moved to the nearer end, as a server that
    truncates would.
    """

    median_tokens: float
    sigma: float
    min_tokens: int = 1
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        _check_tokens("the median of a lognormal", self.median_tokens)
        _check_tokens("min_tokens of a lognormal", self.min_tokens)
        _check_tokens("max_tokens of a lognormal", self.max_tokens)
        if not 0 <= self.sigma < np.inf:
            raise TraceError(f"sigma of a lognormal is 0 or more and finite, not {self.sigma:g}")
        if self.min_tokens > self.max_tokens:
            raise TraceError(f"min_tokens {self.min_tokens} of a lognormal exceeds its max_tokens {self.max_tokens}")

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        with np.errstate(over="ignore"):  # an infinite draw ends at max_tokens
            drawn = self.median_tokens * np.exp(self.sigma * rng.standard_normal(n))
        return np.clip(np.rint(drawn), self.min_tokens, self.max_tokens).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Empirical:
    """Observed lengths, drawn with replacement."""

    values: IntArray

    def __init__(self, values: npt.ArrayLike) -> None:
        array = frozen(values, np.int64, "values of Empirical")
        if not array.size:
            raise TraceError("an empirical length distribution needs at least one value")
        _check_tokens("the smallest empirical length", array.min())
        _check_tokens("the largest empirical length", array.max())
        object.__setattr__(self, "values", array)

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        return self.values[rng.integers(0, self.values.size, n)]

    def __str__(self) -> str:
        return f"Empirical({self.values.size} values, mean {self.values.mean():.1f})"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution given by some of its quantiles: straight lines between them."""

    probabilities: tuple[float, ...]
    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.probabilities) != len(self.tokens) or len(self.tokens) < 2:
            raise TraceError("quantiles are two or more probabilities and as many lengths")
        if not np.isfinite(self.probabilities).all() or (np.diff(self.probabilities) <= 0).any():
            raise TraceError("the probabilities of quantiles must increase")
        if self.probabilities[0] != 0 or self.probabilities[-1] != 1:
            raise TraceError("the probabilities of quantiles must run from 0 to 1")
        if (np.diff(self.tokens) < 0).any():
            raise TraceError("the lengths of quantiles must not decrease")
        _check_tokens("the first quantile", self.tokens[0])
        _check_tokens("the last quantile", self.tokens[-1])

    def at(self, probability: FloatArray) -> IntArray:
        """The lengths at given probabilities, rounded to whole tokens."""
        return np.rint(np.interp(probability, self.probabilities, self.tokens)).astype(np.int64)

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        return self.at(rng.random(n))

    def __str__(self) -> str:
        return f"Quantiles({len(self.tokens)} knots, {self.tokens[0]} to {self.tokens[-1]} tokens)"


def _check_tokens(what: str, tokens: float) -> None:
    if not 1 <= tokens <= MAX_TOKENS:
        raise TraceError(f"{what} lies between 1 and {MAX_TOKENS:,} tokens, not at {tokens:g}")

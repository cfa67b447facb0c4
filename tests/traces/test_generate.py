"""Generated traces: distributions compared with their analytic moments, and the same bytes from one seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from batchtwin.traces import Empirical, Fixed, Lognormal, Quantiles, TraceError, generate

N = 40_000


def gaps_of(burstiness: float, *, rate_per_s: float = 4.0) -> np.ndarray[Any, np.dtype[np.float64]]:
    trace = generate(N, rate_per_s, 5, burstiness=burstiness, prompt=Fixed(1), output=Fixed(1))
    return np.diff(trace.arrival_s)


def test_poisson_gaps_are_exponential() -> None:
    assert stats.kstest(gaps_of(1.0), stats.expon(scale=0.25).cdf).pvalue > 0.01


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 2.0, 16.0])
def test_burstiness_is_the_shape_of_gamma_gaps(burstiness: float) -> None:
    gaps = gaps_of(burstiness)
    assert stats.kstest(gaps, stats.gamma(burstiness, scale=0.25 / burstiness).cdf).pvalue > 0.01
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.03)


def test_the_first_request_arrives_at_zero_and_the_rate_scales_time_only() -> None:
    slow, fast = (generate(100, rate, 1, prompt=Fixed(1), output=Fixed(1)) for rate in (1.0, 4.0))
    assert slow.arrival_s[0] == 0.0
    assert np.array_equal(slow.arrival_s, fast.arrival_s * 4)


def test_an_infinite_rate_is_offline() -> None:
    trace = generate(10, math.inf, 1, prompt=Fixed(7), output=Fixed(3))
    assert trace.arrival_s.tolist() == [0.0] * 10
    assert trace.num_prompt_tokens.tolist() == [7] * 10
    assert trace.output_len.tolist() == [3] * 10


def test_a_lognormal_has_its_median_and_mean() -> None:
    lengths = Lognormal(500, 0.8).sample(np.random.default_rng(1), N)
    assert np.median(lengths) == pytest.approx(500, rel=0.02)
    assert lengths.mean() == pytest.approx(500 * math.exp(0.8**2 / 2), rel=0.03)
    assert np.log(lengths).std() == pytest.approx(0.8, rel=0.02)


def test_a_lognormal_stays_within_its_limits() -> None:
    lengths = Lognormal(500, 3.0, min_tokens=16, max_tokens=4096).sample(np.random.default_rng(1), 5000)
    assert (lengths.min(), lengths.max()) == (16, 4096)
    assert Lognormal(500, 1e9, max_tokens=800).sample(np.random.default_rng(1), 100).max() == 800


def test_empirical_lengths_come_in_the_observed_proportions() -> None:
    lengths = Empirical([10, 10, 10, 99]).sample(np.random.default_rng(1), N)
    assert set(lengths.tolist()) == {10, 99}
    assert (lengths == 99).mean() == pytest.approx(0.25, abs=0.01)


def test_quantiles_are_joined_by_straight_lines() -> None:
    distribution = Quantiles((0.0, 0.5, 1.0), (1, 101, 1001))
    assert distribution.at(np.array([0.0, 0.25, 0.5, 0.75, 1.0])).tolist() == [1, 51, 101, 551, 1001]
    assert np.median(distribution.sample(np.random.default_rng(1), N)) == pytest.approx(101, rel=0.03)


def test_one_seed_gives_the_same_trace_and_another_seed_another() -> None:
    def made(seed: int) -> str:
        return generate(300, 2.0, seed, prompt=Lognormal(300, 1.0), output=Lognormal(90, 1.0)).digest()

    assert made(1) == made(1) != made(2)


def test_changing_one_distribution_leaves_the_other_columns_as_they_were() -> None:
    one = generate(300, 2.0, 1, prompt=Lognormal(300, 1.0), output=Lognormal(90, 1.0))
    other = generate(300, 9.0, 1, burstiness=0.3, prompt=Fixed(5), output=Lognormal(90, 1.0))
    assert np.array_equal(one.output_len, other.output_len)
    assert not np.array_equal(one.arrival_s, other.arrival_s)


def test_prompt_and_output_are_drawn_independently() -> None:
    trace = generate(N, 1.0, 1, prompt=Lognormal(300, 1.0), output=Lognormal(300, 1.0))
    assert abs(stats.spearmanr(trace.num_prompt_tokens, trace.output_len).statistic) < 4 / math.sqrt(N)


def test_the_source_line_tells_how_to_make_the_trace_again() -> None:
    trace = generate(3, 2.0, 7, prompt=Fixed(5), output=Empirical([1, 2, 3]))
    assert trace.source == (
        "generate(n=3, rate_per_s=2, seed=7, burstiness=1, "
        "prompt=Fixed(tokens=5), output=Empirical(3 values, mean 2.0))"
    )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: generate(0, 1.0, 0, prompt=Fixed(1), output=Fixed(1)), "a trace of 1 to 10,000,000 requests"),
        (lambda: generate(5, 0.0, 0, prompt=Fixed(1), output=Fixed(1)), "a request rate is above 0 per second"),
        (lambda: generate(5, math.nan, 0, prompt=Fixed(1), output=Fixed(1)), "not nan"),
        (lambda: generate(5, 5e-324, 0, prompt=Fixed(1), output=Fixed(1)), "must be finite"),
        (lambda: generate(5, 1.0, -1, prompt=Fixed(1), output=Fixed(1)), "a seed is 0 or more, not -1"),
        (lambda: generate(5, 1.0, 0, burstiness=0, prompt=Fixed(1), output=Fixed(1)), "burstiness is finite and above"),
        (lambda: Fixed(0), "a fixed length lies between 1 and 1,000,000,000 tokens, not at 0"),
        (lambda: Lognormal(0.5, 1), "the median of a lognormal lies between"),
        (lambda: Lognormal(5, -1), "sigma of a lognormal is 0 or more and finite, not -1"),
        (lambda: Lognormal(5, 1, min_tokens=9, max_tokens=8), "min_tokens 9 of a lognormal exceeds its max_tokens 8"),
        (lambda: Empirical([]), "needs at least one value"),
        (lambda: Empirical([3, 0]), "the smallest empirical length lies between"),
        (lambda: Empirical([1.5]), "int64 values, not an array of float64"),
        (lambda: Quantiles((0.0, 1.0), (5,)), "as many lengths"),
        (lambda: Quantiles((0.0, 0.0, 1.0), (5, 6, 7)), "must increase"),
        (lambda: Quantiles((0.1, 1.0), (5, 6)), "run from 0 to 1"),
        (lambda: Quantiles((0.0, 1.0), (7, 6)), "must not decrease"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(TraceError, match=sentence):
        make()

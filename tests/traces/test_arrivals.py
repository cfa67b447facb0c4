"""The client of the public benchmark: rates, burstiness, ramps."""

from __future__ import annotations

import numpy as np
import pytest

from batchtwin.traces import Ramp, TraceError, bench_arrivals_s


def test_a_fixed_rate_is_met_exactly_whatever_the_burstiness() -> None:
    """999 gaps at 4 requests a second are 249.75 s."""
    for burstiness in (0.3, 1.0, 20.0):
        arrival_s = bench_arrivals_s(1000, 7, 4.0, burstiness)
        assert arrival_s[0] == 0.0
        assert arrival_s[-1] == pytest.approx(999 / 4)
        assert (np.diff(arrival_s) >= 0).all()


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_a_gamma_distribution_of_that_shape(burstiness: float) -> None:
    """A gamma distribution of shape k has the coefficient of variation 1/√k and the skewness 2/√k."""
    gaps = np.diff(bench_arrivals_s(40_000, 3, 10.0, burstiness))
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.03)
    skewness = ((gaps - gaps.mean()) ** 3).mean() / gaps.std() ** 3
    assert skewness == pytest.approx(2 * burstiness**-0.5, rel=0.12)


def test_a_linear_ramp_rises_by_the_number_of_the_request() -> None:
    """From 2 to 10 over 5 requests: 2, 4, 6, 8, 10 a second."""
    assert Ramp("linear", 2, 10).rates_per_s(5).tolist() == [2.0, 4.0, 6.0, 8.0, 10.0]


def test_an_exponential_ramp_multiplies() -> None:
    assert Ramp("exponential", 1, 16).rates_per_s(5) == pytest.approx([1.0, 2.0, 4.0, 8.0, 16.0])


def test_a_ramp_sends_at_its_rates() -> None:
    """Nearly regular gaps (burstiness 1e6): each is one over the rate of its request, and nothing is stretched."""
    ramp = Ramp("linear", 2, 10)
    gaps = np.diff(bench_arrivals_s(401, 0, ramp, 1e6))
    assert gaps == pytest.approx(1 / ramp.rates_per_s(401)[1:], rel=0.01)


def test_a_single_request_arrives_at_once() -> None:
    assert bench_arrivals_s(1, 0, 5.0).tolist() == [0.0]
    assert bench_arrivals_s(1, 0, Ramp("exponential", 1, 2)).tolist() == [0.0]


def test_arrivals_are_the_seeds() -> None:
    assert (bench_arrivals_s(50, 1, 5.0) == bench_arrivals_s(50, 1, 5.0)).all()
    assert (bench_arrivals_s(50, 1, 5.0) != bench_arrivals_s(50, 2, 5.0)).any()


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), Ramp("linear", 0.0, 3.0)])
def test_a_rate_that_is_none_is_refused(rate: float | Ramp) -> None:
    with pytest.raises(TraceError, match="a request rate is finite and above 0 per second"):
        bench_arrivals_s(10, 0, rate)

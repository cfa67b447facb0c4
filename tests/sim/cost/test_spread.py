"""What a calibration leaves open: variance components by hand, and an interval that holds what it says it holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from profiles import toy_profile
from sweeps import tiny_scenario

from batchtwin.experiments.intervals import both_ends
from batchtwin.experiments.replay import predict
from batchtwin.sim.cost.features import Features, stack
from batchtwin.sim.cost.profile import Profile, SpreadFacts
from batchtwin.sim.cost.spread import Factors, KindSpread, Scaled, bounds, drift, spread_by_kind


def _step(tokens: int, *, prefills: int = 0) -> Features:
    return Features(tokens, tokens, 0, prefills, 0, 0.0, tokens, 0, tokens)


def test_what_regions_share_is_told_from_what_is_a_batchs_own() -> None:
    """Residuals 0.10, 0.12 at 8 tokens and −0.10, −0.08 at 64. Within: Σ 4 · 0.01² / 2 = 2e-4. Between: 4 · 0.1² / 1
    = 0.04, over a region's 2 batches (0.04 − 2e-4) / 2 = 0.0199. A new region: 0.0199 · 1.5 + 2e-4 / 4."""
    features = stack([_step(8), _step(8), _step(64), _step(64)])
    measured_s = np.exp([0.10, 0.12, -0.10, -0.08])
    found = spread_by_kind(features, np.ones(4), measured_s)
    assert set(found) == {"decode"}
    assert (found["decode"].num_batches, found["decode"].num_regions) == (4, 2)
    assert found["decode"].mean == pytest.approx(0.01)
    assert found["decode"].systematic == pytest.approx(math.sqrt(0.0199 * 1.5 + 2e-4 / 4))


def test_noise_that_regions_do_not_share_averages_out() -> None:
    """The same ±0.1 in every region: nothing is systematic but the mean's own uncertainty, 0.1·√(8/6)/√8."""
    features = stack([_step(tokens) for tokens in (8, 8, 64, 64, 512, 512, 4096, 4096)])
    residuals = np.array([0.1, -0.1] * 4)
    found = spread_by_kind(features, np.ones(8), np.exp(residuals))["decode"]
    within = 8 * 0.01 / 4
    assert found.systematic == pytest.approx(math.sqrt(within / 8))


def test_kinds_of_steps_are_kept_apart() -> None:
    features = stack([_step(8), _step(9), _step(8, prefills=1), _step(9, prefills=1)])
    found = spread_by_kind(features, np.ones(4), np.exp([0.0, 0.0, 0.2, 0.2]))
    assert found["decode"].mean == pytest.approx(0.0)
    assert found["prefill"].mean == pytest.approx(0.2)


def test_drift_is_what_all_batches_share_from_round_to_round() -> None:
    """Rounds 10 % faster, as usual, 10 % slower (in logarithms), whatever the batch: a standard deviation of 0.1."""
    rounds = np.exp([-0.1, 0.0, 0.1])
    assert drift([0.002 * rounds, 0.05 * rounds]) == pytest.approx(0.1)
    shuffled = [0.002 * rounds, 0.05 * rounds[::-1]]
    assert drift(shuffled) == pytest.approx(0.0, abs=1e-12)


def test_bounds_are_mean_plus_and_minus_both_parts_in_quadrature() -> None:
    """√(0.03² + 0.04²) = 0.05; 1.6449 · 0.05 = 0.0822 around a mean of 0.02."""
    low, high = bounds({"decode": KindSpread(0.02, 0.03, 9, 3)}, 0.04)
    assert low.decode == low.prefill == pytest.approx(math.exp(0.02 - 0.082245))
    assert high.decode == high.prefill == pytest.approx(math.exp(0.02 + 0.082245))


def test_the_prediction_itself_is_always_within_its_bounds() -> None:
    low, high = bounds({"decode": KindSpread(0.2, 0.01, 9, 3), "prefill": KindSpread(-0.2, 0.01, 9, 3)}, 0.0)
    assert low.decode == 1.0 < high.decode
    assert low.prefill < 1.0 == high.prefill


def test_a_scaled_law_gives_the_same_bits_one_by_one_at_once_and_in_a_stretch() -> None:
    law = Scaled(toy_profile().cost_model, Factors(1.07, 0.93))
    steps = [Features(5, 5, 100 + 5 * i, 0, 0, 0.0, 5, 0, 5) for i in range(4)]
    one_by_one = [law.duration_s(step) for step in steps]
    assert law.steady_s(steps[0], 4) == one_by_one
    assert law.durations_s(stack(steps)).tolist() == one_by_one
    chunk = Features(40, 1, 100, 1, 39, 900.0, 2, 0, 2)
    assert law.duration_s(chunk) == toy_profile().cost_model.duration_s(chunk) * 0.93


def _with_spread(systematic: float) -> Profile:
    kinds = {kind: KindSpread(0.0, systematic, 40, 10) for kind in ("decode", "prefill")}
    profile = toy_profile()
    fit = profile.fit.model_copy(update={"spread": SpreadFacts(kinds=kinds, drift=0.0)})
    return profile.model_copy(update={"fit": fit})


def test_intervals_hold_about_nine_in_ten_devices_that_err_as_the_calibration_says() -> None:
    """Two hundred devices whose law is off by a factor of exp(N(0, 0.06²)); throughput, TTFT and TPOT."""
    profile = _with_spread(0.06)
    scenario = tiny_scenario(trace={"source": "azure-conv-like:30", "output_scale": 0.1})
    predicted = predict(scenario, profile).metrics
    low, high = both_ends(scenario, profile, predicted)
    factors = np.exp(np.random.default_rng(5).normal(0.0, 0.06, 200))
    inside = []
    for factor in factors.tolist():
        device = Scaled(profile.cost_model, Factors(factor, factor))
        measured = predict(scenario, profile, device, host=profile.host).metrics
        inside += [low[m] <= measured[m] <= high[m] for m in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms")]
    assert 0.85 <= np.mean(inside) <= 0.95


def test_a_profile_that_kept_no_spread_has_the_p90_of_its_held_out_error() -> None:
    fast, slow = toy_profile().fast_and_slow
    assert slow.factors == Factors(1.06, 1.06)
    assert fast.factors.decode == pytest.approx(1 / 1.06)


def test_the_hash_of_a_profile_of_before_is_what_it_was() -> None:
    """A spread that is absent is no part of the content, so sweeps made with that profile can be resumed."""
    profile = toy_profile()
    assert profile.hash() == Profile.model_validate(profile.model_dump(exclude_none=True)).hash()
    assert "spread" not in profile.model_dump_json(exclude_none=True)
    assert profile.hash() != _with_spread(0.06).hash()
    assert Profile.model_validate_json(_with_spread(0.06).model_dump_json()) == _with_spread(0.06)

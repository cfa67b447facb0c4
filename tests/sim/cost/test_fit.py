"""Fitting: a law that is known is found again, and what cannot be known is said to be wrong by how much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from batchtwin.sim.cost.features import Features, stack
from batchtwin.sim.cost.fit import (
    fit,
    fit_constant,
    fit_host,
    fit_roofline,
    held_out_predictions,
    null_errors,
    summarize,
)
from batchtwin.sim.cost.models import Fitted, HostTerm, Roofline

TRUTH = Fitted(
    fixed_s=2e-3,
    token_knots=(1, 2, 8, 32, 128, 512),
    token_slopes_s=(5e-5, 1e-4, 2e-4, 1e-4, 1.2e-4, 9e-5),
    per_decode_s=3e-5,
    per_decode_kv_token_s=2e-7,
    per_prefill_s=1e-4,
    per_prefill_token_s=4e-5,
    per_attention_pair_s=3e-8,
    per_sample_s=6e-5,
)
ROOFLINE = Roofline(20e6, 4096.0, 8e6, 2e6, 4096.0, 1e10, 5e10)


def independent(count: int, seed: int) -> Features:
    """Columns that vary independently, as no real batches do, so that every coefficient can be known."""
    rng = np.random.default_rng(seed)
    tokens = np.rint(np.exp(rng.uniform(0, np.log(1800), count)))
    names = {"num_decode_kv_tokens": 40_000, "prefill_attention_work": 200_000}
    columns = {name: rng.uniform(0, names.get(name, 100), count) for name in Features._fields}
    return Features(**{**columns, "num_tokens": tokens})


def realistic(count: int, seed: int) -> Features:
    """Batches as a server forms them: decodes and, in half of them, a chunk beside."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        decodes = int(np.exp(rng.uniform(0, np.log(128))))
        chunk, start = (
            (int(np.exp(rng.uniform(0.7, 6.2))), int(rng.integers(0, 1000))) if rng.random() < 0.5 else (0, 0)
        )
        contexts = int(rng.integers(20, 1500, decodes).sum())
        work = chunk * (start + chunk / 2)
        samples = decodes + bool(chunk and rng.random() < 0.5)
        rows.append(
            Features(decodes + chunk, decodes, contexts, int(chunk > 0), chunk, work, samples, 0, decodes + (chunk > 0))
        )
    return stack(rows)


def test_a_known_law_is_recovered_coefficient_by_coefficient() -> None:
    features = independent(300, seed=1)
    found = fit(features, TRUTH.durations_s(features))
    assert found.token_knots == TRUTH.token_knots
    assert found.token_slopes_s == pytest.approx(TRUTH.token_slopes_s, rel=1e-6)
    for name in ("fixed_s", *(name for name in Fitted.__dataclass_fields__ if name.startswith("per_"))):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=1e-6), name


def test_a_known_law_predicts_batches_it_has_not_seen() -> None:
    """Real batches leave some coefficients undetermined (T is decodes plus prefill tokens), never the predictions."""
    features = realistic(240, seed=2)
    seconds = TRUTH.durations_s(features)
    fresh = realistic(200, seed=3)
    error = summarize(fit(features, seconds).durations_s(fresh), TRUTH.durations_s(fresh))
    assert error.worst_percent < 0.01
    assert summarize(held_out_predictions(features, seconds), seconds).median_percent < 0.01


def test_the_held_out_error_is_the_noise_and_far_below_the_baselines() -> None:
    """Noise of 2 % (standard deviation) has a median size of 1.35 %."""
    features = realistic(240, seed=4)
    noise = np.random.default_rng(5).normal(1.0, 0.02, 240)
    seconds = TRUTH.durations_s(features) * noise
    error = summarize(held_out_predictions(features, seconds), seconds)
    assert 1.0 < error.median_percent < 2.0
    assert abs(error.bias_percent) < 0.5
    for name, null in null_errors(features, seconds, ROOFLINE).items():
        assert null.median_percent > 3 * error.median_percent, name


def test_no_coefficient_is_negative_whatever_was_measured() -> None:
    rng = np.random.default_rng(6)
    features = realistic(60, seed=6)
    found = fit(features, rng.uniform(1e-3, 1e-1, 60))
    coefficients = [found.fixed_s, *found.token_slopes_s]
    coefficients += [getattr(found, name) for name in Fitted.__dataclass_fields__ if name.startswith("per_")]
    assert min(coefficients) >= 0
    assert max(coefficients) > 0


def test_a_short_step_counts_as_much_as_a_long_one() -> None:
    """Half of the steps take 1 ms, half 100 ms, all with the same features: least squares of relative residuals gives
    Σ(1/t) / Σ(1/t²) = 1.0099 ms · …, close to the short ones, where ordinary least squares gives 50.5 ms."""
    features = stack([Features(4, 4, 10, 0, 0, 0.0, 4, 0, 4)] * 20)
    seconds = np.array([1e-3, 1e-1] * 10)
    expected = (1 / seconds).sum() / (1 / seconds**2).sum()
    assert fit(features, seconds).durations_s(features) == pytest.approx(expected)
    assert expected < 1.02e-3


@pytest.mark.parametrize("num_tokens", [1, 300, 5000])
def test_batches_of_a_single_size_can_be_fitted(num_tokens: int) -> None:
    features = stack([Features(num_tokens, num_tokens, 10, 0, 0, 0.0, 1, 0, num_tokens)] * 6)
    assert fit(features, np.full(6, 0.02)).durations_s(features) == pytest.approx(0.02)


def test_the_constant_is_the_median() -> None:
    features = realistic(5, seed=7)
    assert fit_constant(features, np.array([1.0, 2.0, 3.0, 4.0, 100.0])).seconds == 3.0


def test_alpha_and_beta_of_a_roofline_are_recovered() -> None:
    features = realistic(80, seed=8)
    truth = replace(ROOFLINE, alpha=1.7, launch_s=3e-3)
    found = fit_roofline(ROOFLINE, features, truth.durations_s(features))
    assert (found.alpha, found.launch_s) == pytest.approx((1.7, 3e-3))
    assert found.name == "roofline_affine"


def test_the_host_line_is_recovered_and_nothing_is_no_host() -> None:
    num_seqs = np.array([1.0, 2.0, 5.0, 9.0])
    found = fit_host(num_seqs, 1e-4 + 3e-6 * num_seqs)
    assert (found.fixed_s, found.per_seq_s) == pytest.approx((1e-4, 3e-6))
    assert fit_host(np.empty(0), np.empty(0)) == HostTerm(0.0, 0.0)


def test_errors_are_relative_to_what_was_measured() -> None:
    """−50, 0, +10 and +20 %: sizes 0, 10, 20, 50; the 90th percentile lies at 20 + 0.7 · 30."""
    error = summarize(np.array([0.5, 1.0, 1.1, 1.2]), np.ones(4))
    assert (error.median_percent, error.p90_percent, error.worst_percent, error.bias_percent) == pytest.approx(
        (15.0, 41.0, 50.0, -5.0)
    )


STAIRCASE = replace(TRUTH, capture_sizes=(1, 2, 4, 8, 16, 24, 32), eager_s=4e-3)


def decodes_and_mixed(count: int, seed: int) -> Features:
    """Half of them decodes alone (up to 40 sequences), half with a chunk beside them."""
    rng = np.random.default_rng(seed)
    seqs = rng.integers(1, 41, count).astype(float)
    mixed = np.arange(count) % 2 == 1
    chunk = np.where(mixed, np.rint(np.exp(rng.uniform(0, 7, count))) + 1, 0)
    return Features(
        num_tokens=seqs + chunk,
        num_decodes=seqs,
        num_decode_kv_tokens=np.rint(seqs * rng.uniform(10, 2000, count)),
        num_prefills=mixed.astype(float),
        num_prefill_tokens=chunk,
        prefill_attention_work=chunk * rng.uniform(0, 900, count),
        num_samples=seqs + mixed,
        num_blocks_swapped=np.zeros(count),
        num_seqs=seqs + mixed,
    )


def test_a_step_of_decodes_costs_as_much_as_the_size_it_is_padded_to() -> None:
    def decodes(n: int, prefills: int = 0) -> float:
        return STAIRCASE.duration_s(Features(n, n, 0, prefills, 0, 0.0, 0, 0, n))

    per_decode = STAIRCASE.per_decode_s
    # By hand: 5 … 8 tokens are computed as 8. Fixed 2 ms, 1 token at 50 µs, 6 at 100 µs.
    assert decodes(5) == pytest.approx(2e-3 + 5e-5 + 6e-4 + 5 * per_decode)
    assert decodes(8) - decodes(5) == pytest.approx(3 * per_decode)
    assert decodes(9) - decodes(8) == pytest.approx(8 * 2e-4 + per_decode)
    # Beyond the last size, and beside a chunk, at its own size and 4 ms later.
    assert decodes(33) == pytest.approx(2e-3 + 5e-5 + 6e-4 + 24 * 2e-4 + 1e-4 + 4e-3 + 33 * per_decode)
    assert decodes(5, prefills=1) == pytest.approx(2e-3 + 5e-5 + 3 * 1e-4 + 4e-3 + 5 * per_decode + 1e-4)


def test_the_staircase_is_the_same_one_by_one_and_in_columns() -> None:
    features = decodes_and_mixed(200, 1)
    one_by_one = [STAIRCASE.duration_s(Features(*(int(c[i]) for c in features))) for i in range(200)]
    columns = Features(*(np.trunc(c) for c in features))
    assert STAIRCASE.durations_s(columns).tolist() == one_by_one
    start = Features(30, 30, 5000, 0, 0, 0.0, 30, 0, 30)
    steady = [STAIRCASE.duration_s(start._replace(num_decode_kv_tokens=5000 + 30 * i)) for i in range(5)]
    assert STAIRCASE.steady_s(start, 5) == steady


def test_a_staircase_is_found_again_where_a_line_is_far_off() -> None:
    train, unseen = decodes_and_mixed(300, 2), decodes_and_mixed(300, 3)
    law = fit(train, STAIRCASE.durations_s(train), capture_sizes=STAIRCASE.capture_sizes)
    assert law.eager_s == pytest.approx(STAIRCASE.eager_s, rel=1e-3)
    assert summarize(law.durations_s(unseen), STAIRCASE.durations_s(unseen)).worst_percent < 0.2
    plain = fit(train, STAIRCASE.durations_s(train))
    assert summarize(plain.durations_s(unseen), STAIRCASE.durations_s(unseen)).worst_percent > 10

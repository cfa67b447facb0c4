"""Which batches are measured when time is short, and the curve of error against time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from batchtwin.executor.design import calibration_batches
from batchtwin.experiments.active import ActiveChoice, error_curve
from batchtwin.sim.cost.features import Features, FloatArray, features_of, stack
from batchtwin.sim.cost.fit import fit, summarize
from batchtwin.sim.cost.models import Fitted

TRUTH = Fitted(
    fixed_s=2e-3,
    token_knots=(1, 32),
    token_slopes_s=(2e-4, 1e-4),
    per_decode_s=3e-5,
    per_decode_kv_token_s=2e-7,
    per_prefill_s=1e-4,
    per_attention_pair_s=3e-8,
    per_sample_s=6e-5,
)


@pytest.fixture(scope="module")
def candidates() -> Features:
    batches = calibration_batches(64, 1024, 1024, block_size=16, num_gpu_blocks=2000)
    return stack([features_of(batch) for batch in batches])


def _take(features: Features, rows: list[int]) -> Features:
    return Features(*(np.asarray(column)[rows] for column in features))


def _noisy(features: Features, seed: int) -> FloatArray:
    times = TRUTH.durations_s(features)
    return times * np.random.default_rng(seed).lognormal(0, 0.05, len(times))


def _chosen(features: Features, count: int, seed: int = 0) -> list[int]:
    choose, known, times = ActiveChoice(features), dict[int, float](), _noisy(features, seed)
    while len(known) < count:
        i = choose(known)
        assert i is not None
        known[i] = float(times[i])
    return list(known)


def test_every_candidate_comes_once_and_then_none(candidates: Features) -> None:
    count = len(candidates.num_tokens)
    chosen = _chosen(candidates, count)
    assert sorted(chosen) == list(range(count))
    assert ActiveChoice(candidates)(dict.fromkeys(range(count), 1.0)) is None


def test_all_kinds_come_early_and_the_same_every_time(candidates: Features) -> None:
    first = _chosen(candidates, 9)
    third = len(candidates.num_tokens) // 3
    assert {i // third for i in first} == {0, 1, 2}
    assert _chosen(candidates, 24) == _chosen(candidates, 24)


def test_chosen_batches_teach_more_than_as_many_drawn_at_random(candidates: Features) -> None:
    """Of 20 noisy measurements each: the worst error on all candidates, over 12 draws of the noise."""
    truth_s = TRUTH.durations_s(candidates)
    active, random = [], []
    for seed in range(12):
        times = _noisy(candidates, seed)
        drawn = np.random.default_rng(100 + seed).permutation(len(times))[:20].tolist()
        for rows, errors in ((_chosen(candidates, 20, seed), active), (drawn, random)):
            law = fit(_take(candidates, rows), times[rows])
            errors.append(summarize(law.durations_s(candidates), truth_s).worst_percent)
    assert np.median(active) < 0.8 * np.median(random)


def test_the_curve_falls_as_noise_is_averaged_away(candidates: Features) -> None:
    rng = np.random.default_rng(5)
    truth_s = TRUTH.durations_s(candidates)
    times = [(t * rng.lognormal(0, 0.3, 40)).tolist() for t in truth_s]
    at = [(np.arange(40) * 10.0 + i / 100).tolist() for i in range(len(truth_s))]
    curve = error_curve(candidates, times, at)
    assert [point.num_measurements for point in curve] == sorted(point.num_measurements for point in curve)
    assert curve[-1].num_measurements == 40 * len(truth_s)
    assert curve[-1].minutes == pytest.approx(390.71 / 60, abs=1e-3)
    assert curve[-1].median_percent < 0.8 * curve[0].median_percent


def test_a_curve_of_too_few_batches_is_empty(candidates: Features) -> None:
    few = _take(candidates, list(range(6)))
    assert error_curve(few, [[1.0]] * 6, [[1.0]] * 6) == ()


def test_a_staircase_counts_in_the_choice(candidates: Features) -> None:
    law = replace(TRUTH, capture_sizes=(1, 8, 64), eager_s=3e-3)
    choose = ActiveChoice(candidates, law.capture_sizes)
    known = {i: float(t) for i, t in enumerate(law.durations_s(candidates)) if i % 2}
    assert choose(known) in range(0, len(candidates.num_tokens), 2)

"""Iterations as bins of time: held against hand-made iterations and a plain sum over a fine grid of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import toy_profile
from sweeps import tiny_scenario

from batchtwin.dashboard.iteration_data import (
    BOUNDS,
    MOST_EXACT,
    Series,
    around,
    chunk_bars,
    preempted_requests,
    series,
    shifted,
    timeline,
    zoomed,
)
from batchtwin.experiments.inspect import batches
from batchtwin.experiments.replay import predict
from batchtwin.experiments.run import Run
from batchtwin.scheduler import Bound

PRESSED = {"num_gpu_blocks": 18, "max_num_seqs": 8, "trace": {"rate_scale": 4000.0, "output_scale": 0.3}}


def by_hand(begin_s: list[float], end_s: list[float], **columns: list[int]) -> Series:
    count = len(end_s)
    values = {"decode_tokens": [1] * count, "prefill_tokens": [0] * count, "running": [1] * count, **columns}
    ints = {
        name: np.array(values.get(name, [0] * count), dtype=np.int64)
        for name in ("decode_tokens", "prefill_tokens", "running", "waiting", "preemptions", "bound")
    }
    begin, end = np.array(begin_s, dtype=float), np.array(end_s, dtype=float)
    return Series(
        first=100, begin_s=begin, end_s=end, step_ms=1e3 * (end - begin), kv_percent=10.0 * ints["running"], **ints
    )


def many(count: int = 2 * MOST_EXACT, gap_s: float = 0.0) -> Series:
    """As many iterations of 1 s, each followed by a pause."""
    begin = np.arange(count) * (1 + gap_s)
    cycle = [i % 4 for i in range(count)]
    return by_hand(
        begin.tolist(),
        (begin + 1).tolist(),
        decode_tokens=[4] * count,
        prefill_tokens=[10 * (i % 2) for i in range(count)],
        running=[2 + (i % 2) for i in range(count)],
        preemptions=[int(i == 5) for i in range(count)],
        bound=cycle,
    )


@pytest.fixture(scope="module")
def pressed() -> Run:
    return predict(tiny_scenario(**PRESSED), toy_profile())


def test_few_iterations_have_a_bin_each() -> None:
    made = by_hand([0.0, 1.0, 5.0], [1.0, 3.0, 6.0], decode_tokens=[1, 2, 3], prefill_tokens=[7, 0, 0], bound=[2, 0, 3])
    data = timeline(made)
    assert data.is_exact
    assert data.first.tolist() == [100, 101, 102]
    assert data.step_ms.tolist() == [1000.0, 2000.0, 1000.0]
    assert data.peak_tokens.tolist() == [8, 2, 3]
    assert data.bound_share[0].tolist() == [0, 1, 0, 0]  # max_num_batched_tokens, in the order of BOUNDS
    assert data.bound_share[1].tolist() == [0, 0, 0, 1]
    assert data.bound_share[2].tolist() == [0, 0, 1, 0]


def test_a_window_shows_the_iterations_that_take_some_of_it() -> None:
    made = by_hand([0.0, 1.0, 5.0], [1.0, 3.0, 6.0])
    assert timeline(made, (2.0, 5.5)).first.tolist() == [101, 102]
    assert timeline(made, (1.0, 3.0)).first.tolist() == [101]
    assert len(timeline(made, (3.5, 4.5)).first) == 0  # nothing runs there


def test_pixels_of_many_iterations_by_hand() -> None:
    """Iterations of 1 s by turns with 4 and 14 tokens, 2 and 3 running; a pixel of 2 s holds one of each."""
    made = many()
    data = timeline(made, num_pixels=MOST_EXACT)
    assert not data.is_exact
    np.testing.assert_allclose(data.decode_tokens, 4.0)
    np.testing.assert_allclose(data.prefill_tokens, 5.0)
    np.testing.assert_allclose(data.peak_tokens, 14.0)
    np.testing.assert_allclose(data.running, 2.5)
    np.testing.assert_allclose(data.step_ms, 1000.0)
    assert data.num_iterations.tolist() == [2] * MOST_EXACT
    assert data.preemptions.tolist() == [0, 0, 1, *[0] * (MOST_EXACT - 3)]
    np.testing.assert_allclose(data.bound_share[0], [0.5, 0, 0, 0.5])  # iterations 0 and 1: none, max_num_seqs
    np.testing.assert_allclose(data.bound_share[1], [0, 0.5, 0.5, 0])


def test_idle_time_lowers_a_state_but_not_a_mean_of_iterations() -> None:
    data = timeline(many(gap_s=1.0), num_pixels=1)
    span_s = 2.0 * 2 * MOST_EXACT - 1
    assert data.decode_tokens[0] == pytest.approx(4.0)
    assert data.running[0] == pytest.approx(2.5 * 2 * MOST_EXACT / span_s)
    assert data.bound_share[0].sum() == pytest.approx(2 * MOST_EXACT / span_s)


def test_a_pixel_in_which_nothing_runs_has_no_mean() -> None:
    made = by_hand(
        [float(i) for i in range(400)] + [1000.0 + i for i in range(400)],
        [i + 1.0 for i in range(400)] + [1001.0 + i for i in range(400)],
    )
    data = timeline(made, num_pixels=14)  # of 100 s: pixels 4 to 9 are idle
    idle = np.isnan(data.decode_tokens)
    assert np.flatnonzero(idle).tolist() == list(range(4, 10))
    assert np.isnan(data.peak_tokens[idle]).all()
    assert data.running[idle].tolist() == [0.0] * 6
    assert data.num_iterations[idle].tolist() == [0] * 6


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 60))
def test_pixels_keep_integrals_and_peaks(seed: int, num_pixels: int) -> None:
    """Against a plain sum over 200,000 points of time."""
    rng = np.random.default_rng(seed)
    count = MOST_EXACT + 1 + int(rng.integers(200))
    begin = np.cumsum(rng.exponential(1.0, count) + rng.choice([0.0, 3.0], count, p=[0.9, 0.1]))
    end = np.minimum(begin + rng.exponential(0.5, count), np.append(begin[1:], np.inf))
    tokens, running = rng.integers(0, 50, count), rng.integers(0, 9, count)
    made = by_hand(
        begin.tolist(),
        end.tolist(),
        decode_tokens=tokens.tolist(),
        running=running.tolist(),
        bound=(tokens % 4).tolist(),
    )
    data = timeline(made, num_pixels=num_pixels)
    points = np.linspace(*made.span_s, 200_001)[:-1] + (made.span_s[1] - made.span_s[0]) / 400_000
    at = np.searchsorted(begin, points, side="right") - 1
    runs = points < end[at]
    pixel = np.minimum((np.arange(200_000) * num_pixels) // 200_000, num_pixels - 1)
    busy = np.bincount(pixel, runs, num_pixels)
    share = np.bincount(pixel, runs * running[at], num_pixels) / np.bincount(pixel, minlength=num_pixels)
    np.testing.assert_allclose(data.running, share, atol=0.05)
    some = busy > 200
    means = np.bincount(pixel, runs * tokens[at], num_pixels)[some] / busy[some]
    np.testing.assert_allclose(data.decode_tokens[some], means, rtol=0.05, atol=0.3)
    idle = 1 - data.bound_share.sum(axis=1)
    np.testing.assert_allclose(idle, 1 - busy / np.bincount(pixel, minlength=num_pixels), atol=0.01)
    assert np.nanmax(data.peak_tokens) == tokens[end > begin].max()


def test_a_runs_series_are_its_columns(pressed: Run) -> None:
    made, columns = series(pressed), pressed.records.iterations
    np.testing.assert_array_equal(made.decode_tokens + made.prefill_tokens, columns["num_tokens"])
    np.testing.assert_array_equal(made.running, columns["num_running"])
    assert made.preemptions.sum() == pressed.metrics["num_preemptions"] > 0
    np.testing.assert_allclose(made.kv_percent.max(), 100 * pressed.metrics["peak_kv_usage"])
    busy = (made.end_s - made.begin_s).sum()
    for bound in BOUNDS:
        share = (made.end_s - made.begin_s)[made.bound == bound].sum() / busy
        assert share == pytest.approx(pressed.metrics[f"bound_{bound.name.lower()}_share"])


def test_iterations_of_asynchronous_scheduling_follow_each_other() -> None:
    made = series(predict(tiny_scenario(async_scheduling=True, trace={"rate_scale": 2000.0}), toy_profile()))
    assert (made.begin_s[1:] >= made.end_s[:-1]).all()
    assert (made.step_ms / 1e3 > made.end_s - made.begin_s + 1e-9).any()  # launched before the one before had ended


def test_each_replica_has_its_own_iterations() -> None:
    run = predict(tiny_scenario(num_replicas=2, trace={"rate_scale": 500.0}), toy_profile())
    one, two = series(run, 0), series(run, 1)
    assert len(one) + len(two) == len(run.records.iterations["end_s"])
    assert (one.first, two.first) == (0, len(one))
    assert two.at(len(one) + 3) == 3
    assert two.at(0) == 0  # an iteration of the other replica: the nearest


def test_chunks_stand_on_what_was_served_before_them(pressed: Run) -> None:
    found = batches(pressed, 0, len(pressed.records.iterations["end_s"]))
    bars = chunk_bars(found)
    columns = pressed.records.iterations
    sums = np.bincount(bars.bin, bars.num_tokens, minlength=len(found))
    np.testing.assert_array_equal(sums, columns["num_prefill_tokens"])
    tops: dict[int, int] = {}
    for i, base, tokens in zip(bars.bin.tolist(), bars.base_tokens.tolist(), bars.num_tokens.tolist(), strict=True):
        assert base == tops.get(i, columns["num_decodes"][i])
        tops[i] = base + tokens
    first = bars.request == 0
    assert bars.start[first][0] == 0


def test_who_is_preempted_is_named(pressed: Run) -> None:
    found = batches(pressed, 0, len(pressed.records.iterations["end_s"]))
    named = preempted_requests(found)
    assert [bool(text) for text in named] == (pressed.records.iterations["num_preempted"] > 0).tolist()
    assert any(text.startswith("request ") for text in named)


def test_windows_move_and_grow_within_the_run() -> None:
    span = (0.0, 100.0)
    assert zoomed((40.0, 50.0), span, 4.0) == (25.0, 65.0)
    assert zoomed((0.0, 10.0), span, 4.0) == (0.0, 25.0)
    assert zoomed((20.0, 80.0), span, 4.0) is None  # all of it
    assert shifted((40.0, 50.0), span, 0.5) == (45.0, 55.0)
    assert shifted((92.0, 98.0), span, 0.5) == (94.0, 100.0)
    assert shifted((2.0, 8.0), span, -0.5) == (0.0, 6.0)


def test_around_an_iteration_is_the_time_of_its_neighbours() -> None:
    made = many()
    low, high = around(made, 100 + 300, 80)
    assert (low, high) == (260.0, 340.0)
    assert around(made, 0, 80) == (0.0, 80.0)
    assert around(made, 10**9, 80)[1] == made.span_s[1]


def test_bounds_are_told_apart() -> None:
    assert set(BOUNDS) == set(Bound)

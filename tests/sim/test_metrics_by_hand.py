"""The definitions of the metrics, on schedules that are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import play_constant

from batchtwin.sim.metrics import metrics, weighted_percentile
from batchtwin.sim.records import Recorder

# Every step takes 1 s. A (prompt 10, 3 tokens) arrives at 0, B (prompt 4, 1 token) at 0.5, C (prompt 5, 2 tokens) at 9.
#
#   step      0     1     2     3      4
#   starts    0     1     2     9     10
#   ends      1     2     3    10     11
#   tokens    A1  A2 B1   A3    C1    C2
#
#          arrival  scheduled  first  last   TTFT  queue  E2E   TPOT
#   A         0         0        1      3     1      0     3     1
#   B         0.5       1        2      2     1.5    0.5   1.5   –
#   C         9         9       10     11     1      0     2     1
REQUESTS = [(0.0, 10, 3), (0.5, 4, 1), (9.0, 5, 2)]
EXPECTED = {
    "num_requests": 3,
    "completed": 3,
    "duration": 11.0,
    "total_input_tokens": 19,
    "total_output_tokens": 6,
    "request_throughput": 3 / 11,
    "output_throughput": 6 / 11,
    "total_token_throughput": 25 / 11,
    "mean_ttft_ms": 3500 / 3,
    "median_ttft_ms": 1000.0,
    "p99_ttft_ms": 1000 + 0.98 * 500,
    "std_ttft_ms": 1000 * (0.5 / 3) * 2**0.5,
    "mean_queue_ms": 500 / 3,
    "mean_e2el_ms": 6500 / 3,
    "median_e2el_ms": 2000.0,
    "p90_e2el_ms": 2000 + 0.8 * 1000,
    "mean_tpot_ms": 1000.0,
    "mean_itl_ms": 1000.0,
    "std_itl_ms": 0.0,
    "mean_gate_ms": 0.0,
    "num_iterations": 5,
    "num_preemptions": 0,
    "recomputed_tokens": 0,
    "padded_tokens": 0,
    "mean_iteration_ms": 1000.0,
    "mean_tokens_per_iteration": (10 + 5 + 1 + 5 + 1) / 5,
    "peak_running": 2,
    "mean_running": (1 + 2 + 1 + 1 + 1) / 5,
    "peak_waiting": 0,
    "bound_none_share": 1.0,
    "load_rho": 5 / 9,
    "warmup_cut_s": 0.9,
    "steady_output_throughput": 4 / 8.1,
    "steady_requests": 1,  # C
    "steady_mean_ttft_ms": 1000.0,
    "steady_mean_tpot_ms": 1000.0,
    "steady_growth": 0.0,  # A and B are there for 2.1 + 1.1 s of the first half (0.9 to 4.95), nobody in the second
    "drain_s": 2.0,
}


def test_every_metric_of_a_small_schedule_is_as_worked_out_by_hand() -> None:
    found = metrics(play_constant(1.0, REQUESTS).records, num_usable_blocks=4095)
    assert {name: found[name] for name in EXPECTED} == pytest.approx(EXPECTED)


def test_kv_usage_is_blocks_held_over_usable_blocks() -> None:
    """Blocks of 16: step 0 holds 1 of 4, step 1 holds 2, the others 1."""
    found = metrics(play_constant(1.0, REQUESTS, num_gpu_blocks=5).records, num_usable_blocks=4)
    assert (found["peak_kv_usage"], found["mean_kv_usage"]) == pytest.approx((0.5, 1.5 / 5))


def test_goodput_counts_requests_that_meet_every_slo() -> None:
    """TTFT ≤ 1.2 s fails B, E2E ≤ 2.5 s fails A; C meets both."""
    records = play_constant(1.0, REQUESTS).records
    for slo, num in (
        ({"ttft_ms": 1200.0}, 2),
        ({"e2el_ms": 2500.0}, 2),
        ({"ttft_ms": 1200.0, "e2el_ms": 2500.0}, 1),
        ({"ttft_ms": 1500.0}, 3),
        ({"ttft_ms": 1.0}, 0),
    ):
        assert metrics(records, 4095, slo)["request_goodput"] == pytest.approx(num / 11), slo


def test_a_request_of_one_token_has_no_tpot_and_none_to_miss() -> None:
    """B is left out of the mean of TPOT, and meets any TPOT limit; A and C have 1 s."""
    records = play_constant(1.0, REQUESTS).records
    assert metrics(records, 4095, {"tpot_ms": 999.0})["request_goodput"] == pytest.approx(1 / 11)
    alone = metrics(play_constant(1.0, [(0.0, 4, 1)]).records, 4095)
    assert np.isnan(alone["mean_tpot_ms"])
    assert np.isnan(alone["mean_itl_ms"])
    assert np.isnan(alone["p99_itl_ms"])


def test_itl_pools_the_gaps_of_all_requests_and_tpot_averages_each_request_first() -> None:
    """Under prefill_first a prompt makes decodes stand still for a step. A (2 tokens) and D (12 tokens) start at 0, E
    (1 token) arrives at 4.5. A's gap is 1 s; D's eleven are 1 s but for the one of 2 s over E's prefill.
    """
    played = play_constant(1.0, [(0.0, 4, 2), (0.0, 4, 12), (4.5, 4, 1)], policy="prefill_first")
    found = metrics(played.records, 4095)
    assert found["mean_itl_ms"] == pytest.approx(1000 * (11 + 2) / 12)
    assert found["p99_itl_ms"] == pytest.approx(1000 * (1 + 0.89))
    assert found["mean_tpot_ms"] == pytest.approx(1000 * (1 + 12 / 11) / 2)


def test_a_queue_that_grows_is_told_from_a_steady_state() -> None:
    """Steps of 1 s, one token each, one at a time. Arrivals every 0.5 s, 21 of them, the window from 1 s to 10 s. By t
    seconds ⌊2t⌋ + 1 have come (2t + 0.5 on average) and ⌊t⌋ are served (t − 0.5), so t + 1 are in the system: 4.25 on
    average from 1 to 5.5 s, 8.75 from there.
    """
    crowd = [(0.5 * i, 4, 1) for i in range(21)]
    grown = metrics(play_constant(1.0, crowd, max_num_seqs=1).records, 4095)
    assert grown["steady_growth"] == pytest.approx(8.75 / 4.25, rel=0.02)
    assert grown["drain_s"] == pytest.approx(11.0)
    calm = metrics(play_constant(0.25, crowd, max_num_seqs=1).records, 4095)
    assert calm["steady_growth"] == pytest.approx(1.0, abs=0.15)
    assert calm["steady_requests"] == 19


def test_offline_load_has_no_steady_window() -> None:
    found = metrics(play_constant(1.0, [(0.0, 4, 4), (0.0, 4, 12)]).records, 4095)
    assert found["load_rho"] == float("inf")
    assert found["warmup_cut_s"] == 0
    assert np.isnan(found["steady_output_throughput"])


def test_a_replay_in_which_nothing_happened_has_no_metrics_but_no_error_either() -> None:
    found = metrics(Recorder(0).records(), 4095, {"ttft_ms": 1.0})
    assert (found["completed"], found["num_iterations"], found["num_preemptions"]) == (0, 0, 0)
    for name in ("output_throughput", "request_goodput", "mean_ttft_ms", "mean_running", "duration"):
        assert np.isnan(found[name]), name


def test_no_rate_is_stated_over_no_time() -> None:
    found = metrics(play_constant(0.0, [(0.0, 4, 1)]).records, 4095)
    assert found["duration"] == 0
    assert np.isnan(found["output_throughput"])


@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.integers(1, 9)), min_size=1, max_size=30),
    st.floats(0, 100) | st.sampled_from((0.0, 50.0, 90.0, 99.0, 100.0)),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_weighted_percentile_is_that_of_the_repeated_values(pairs: list[tuple[float, int]], percent: float) -> None:
    values, counts = np.array([v for v, _ in pairs]), np.array([c for _, c in pairs])
    expected = np.percentile(np.repeat(values, counts), percent)
    assert weighted_percentile(values, counts, percent) == pytest.approx(expected, rel=1e-12, abs=1e-12)

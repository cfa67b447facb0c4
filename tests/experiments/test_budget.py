"""Errors that hide: parts that cancel, series that differ although their means agree."""

from __future__ import annotations

import numpy as np
import pytest
from profiles import toy_profile
from sweeps import tiny_scenario

from batchtwin.experiments.budget import hidden, latency_parts, over_time
from batchtwin.experiments.replay import predict
from batchtwin.experiments.timeline import NUM_POINTS, state_at, timeline


def figures(ttft: float, tpot: float, later_tokens: int = 100) -> dict[str, float]:
    return {"mean_ttft_ms": ttft, "mean_tpot_ms": tpot, "mean_e2el_ms": ttft + later_tokens * tpot}


def test_what_cancels_is_the_smaller_side() -> None:
    assert hidden((5.0, -3.0, 1.0)) == 3.0
    assert hidden((5.0, 3.0)) == 0.0
    assert hidden((-4.0, 4.0)) == 4.0


def test_ttft_ten_per_cent_high_and_tpot_eight_low_are_flagged_where_e2e_looks_right() -> None:
    """Measured 800 + 100 · 10 = 1,800 ms; predicted 880 + 100 · 9.2 = 1,800 ms: 80 ms, 4.4 % of it, hide."""
    found = latency_parts(figures(880, 9.2), figures(800, 10))
    assert found["e2el_error_percent"] == pytest.approx(0.0)
    assert found["ttft_error_percent"] == pytest.approx(10.0)
    assert found["tpot_error_percent"] == pytest.approx(-8.0)
    assert found["hidden_percent"] == pytest.approx(100 * 80 / 1800)
    assert found["cancels"] is True


def test_errors_of_one_sign_or_of_no_weight_are_not_flagged() -> None:
    assert latency_parts(figures(880, 11), figures(800, 10))["cancels"] is False
    no_weight = latency_parts(figures(11, 9.2), figures(10, 10))
    assert no_weight["ttft_error_percent"] == pytest.approx(10.0)
    assert no_weight["cancels"] is False, "TTFT is 1 % of E2E, which is 7.8 % low"


def test_parts_sum_to_the_error_of_e2e() -> None:
    found = latency_parts(figures(700, 11), figures(800, 10))
    assert found["from_ttft_percent"] + found["from_later_tokens_percent"] == pytest.approx(found["e2el_error_percent"])


def test_a_timeline_is_the_state_of_the_iteration_under_way_and_nothing_when_idle() -> None:
    """Two requests, the second long after the first has ended."""
    run = predict(tiny_scenario(trace={"num_requests": 2, "rate_scale": 1e-3}), toy_profile())
    its = run.records.iterations
    middles_s = (its["start_s"] + its["end_s"]) / 2
    seen = state_at(run.records, 199, middles_s)
    assert seen["running"].tolist() == its["num_running"].tolist()
    assert seen["kv_usage"] == pytest.approx(1 - its["num_free_blocks"] / 199)
    gap = int(np.argmax(its["start_s"][1:] - its["end_s"][:-1]))
    idle = state_at(run.records, 199, np.array([its["end_s"][gap] + 1e-3]))
    assert idle["running"].tolist() == idle["kv_usage"].tolist() == [0.0]


def test_a_run_is_nowhere_from_itself_and_somewhere_from_a_slower_one() -> None:
    scenario = tiny_scenario()
    run = predict(scenario, toy_profile())
    line = timeline(run.records, run.num_gpu_blocks - 1)
    assert len(line["time_s"]) == NUM_POINTS
    same = over_time(line, run)
    assert {same[f"{name}_distance"] for name in ("running", "waiting", "kv_usage")} == {0.0}
    slower = predict(scenario, toy_profile(), toy_profile().fast_and_slow[1])
    assert over_time(line, slower)["running_distance"] > 0
    assert over_time({}, run) == {}

"""Recorded decisions under another clock."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from replays import Workload, play, play_constant, workloads

from batchtwin.sim.metrics import metrics
from batchtwin.sim.retime import retime

QUICK = settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@given(workloads() | workloads(closed=True))
@QUICK
def test_recorded_times_give_the_recording_back_bit_for_bit_while_the_server_is_busy(workload: Workload) -> None:
    """Offline nobody is waited for; online a step starts with its first admission at the earliest."""
    records = play(workload).records
    steps = records.iterations
    again = retime(records, steps["host_s"], steps["device_s"]).iterations
    if all(arrival_s == 0 for arrival_s, _, _ in workload.requests) and not workload.think_s:
        assert again["end_s"].tolist() == steps["end_s"].tolist()
    assert (again["end_s"] <= steps["end_s"]).all()
    assert (np.diff(again["end_s"]) >= 0).all()


@given(workloads(offline=True))
@QUICK
def test_offline_recordings_come_back_bit_for_bit(workload: Workload) -> None:
    records = play(workload).records
    again = retime(records, records.iterations["host_s"], records.iterations["device_s"])
    assert again.iterations["start_s"].tolist() == records.iterations["start_s"].tolist()
    assert again.iterations["end_s"].tolist() == records.iterations["end_s"].tolist()


@given(workloads(policies=("vllm_v1",), offline=True, asynchronous=True))
@QUICK
def test_recordings_with_two_batches_in_flight_come_back_bit_for_bit(workload: Workload) -> None:
    steps = play(workload).records.iterations
    again = retime(play(workload).records, steps["host_s"], steps["device_s"]).iterations
    assert again["start_s"].tolist() == steps["start_s"].tolist()
    assert again["end_s"].tolist() == steps["end_s"].tolist()


def test_a_step_waits_for_the_arrivals_it_admits() -> None:
    """Steps of 1 s: A (2 tokens) at 0, B (1 token) at 5. With steps of 3 s (1 of them the host's) the first two end at
    3 and 6, and B's begins then; with steps of 0.5 s they end at 0.5 and 1, and B's still begins at 5.
    """
    records = play_constant(1.0, [(0.0, 4, 2), (5.0, 4, 1)]).records
    slow = retime(records, np.ones(3), np.full(3, 2.0)).iterations
    assert (slow["start_s"].tolist(), slow["end_s"].tolist()) == ([0.0, 3.0, 6.0], [3.0, 6.0, 9.0])
    fast = retime(records, np.zeros(3), np.full(3, 0.5)).iterations
    assert (fast["start_s"].tolist(), fast["end_s"].tolist()) == ([0.0, 0.5, 5.0], [0.5, 1.0, 5.5])


def test_decisions_and_counts_stay_as_they_were_recorded() -> None:
    records = play_constant(1.0, [(0.0, 4, 3), (1.5, 9, 2)]).records
    slow = retime(records, np.zeros(4), np.full(4, 2.0))
    assert slow.requests is records.requests
    assert slow.gaps is records.gaps
    assert slow.iterations["num_tokens"].tolist() == records.iterations["num_tokens"].tolist()
    assert records.iterations["end_s"].tolist() == [1.0, 2.0, 3.0, 4.0], "the recording itself is not touched"


def test_offline_twice_as_slow_is_twice_every_latency() -> None:
    records = play_constant(1.0, [(0.0, 4, 3), (0.0, 9, 7), (0.0, 5, 2)]).records
    steps = records.iterations
    before, after = metrics(records, 4095), metrics(retime(records, steps["host_s"], 2 * steps["device_s"]), 4095)
    for name in ("mean_ttft_ms", "p99_e2el_ms", "mean_itl_ms", "std_e2el_ms", "duration"):
        assert after[name] == 2 * before[name], name
    assert after["output_throughput"] == before["output_throughput"] / 2

"""Closed loops: so many clients, each of which waits for its answer before it asks again."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from replays import Workload, play, workloads

from batchtwin.scheduler import SchedulerConfig
from batchtwin.sim.cost.models import Constant, HostTerm
from batchtwin.sim.metrics import metrics, request_times

QUICK = settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
CONFIG = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64)


def _times(workload: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Due, sent and ended (s), in order of the trace."""
    records = play(workload).records
    rows = records.requests
    return rows["due_s"], rows["arrival_s"], records.iterations["end_s"][rows["last_token_at"]]


@given(workloads(closed=True))
@QUICK
def test_never_more_requests_are_in_flight_than_there_are_clients(workload: Workload) -> None:
    _, sent_s, ended_s = _times(workload)
    for moment_s in sent_s:
        assert ((sent_s <= moment_s) & (moment_s < ended_s)).sum() <= workload.num_clients


@given(workloads(closed=True))
@QUICK
def test_a_request_is_sent_in_order_and_never_before_it_is_due(workload: Workload) -> None:
    due_s, sent_s, _ = _times(workload)
    assert due_s.tolist() == [arrival_s for arrival_s, _, _ in workload.requests]
    assert (sent_s >= due_s).all()
    if workload.num_clients == 1:
        assert (np.diff(sent_s) >= 0).all()


@given(workloads(closed=True))
@QUICK
def test_a_client_thinks_between_an_answer_and_its_next_request(workload: Workload) -> None:
    """The k-th request after the first N is sent by a client that was answered at least ``think_s`` before: so at
    most N + (answers older than ``think_s``) requests have been sent by then."""
    _, sent_s, ended_s = _times(workload)
    for rank, moment_s in enumerate(np.sort(sent_s)):
        free = (ended_s + workload.think_s <= moment_s).sum()
        assert rank < workload.num_clients + free


def test_one_client_sends_at_the_later_of_due_and_answer_plus_think_time() -> None:
    """Steps of 1 s, 2 tokens each, 0.5 s of thinking. Due at 0, 1, 2 and 20: sent at 0, 2.5, 5 and 20; the wait at the
    gate (0, 1.5, 3, 0) is told apart and no part of TTFT (1 s for all)."""
    requests = ((0.0, 4, 2), (1.0, 4, 2), (2.0, 4, 2), (20.0, 4, 2))
    workload = Workload("vllm_v1", CONFIG, requests, num_clients=1, think_s=0.5)
    records = play(workload, Constant(1.0), HostTerm()).records
    times = request_times(records)
    assert times.arrival_s.tolist() == [0.0, 2.5, 5.0, 20.0]
    assert times.gate_s.tolist() == [0.0, 1.5, 3.0, 0.0]
    assert times.ttft_s.tolist() == [1.0] * 4
    assert metrics(records, 4095)["mean_gate_ms"] == 1000 * 4.5 / 4


def test_a_client_without_think_time_asks_again_at_once() -> None:
    workload = Workload("vllm_v1", CONFIG, ((0.0, 4, 1),) * 3, num_clients=1)
    records = play(workload, Constant(1.0), HostTerm()).records
    assert records.requests["arrival_s"].tolist() == [0.0, 1.0, 2.0]
    assert records.iterations["end_s"].tolist() == [1.0, 2.0, 3.0]


def test_with_as_many_clients_as_requests_a_closed_loop_is_an_open_one() -> None:
    requests = ((0.0, 9, 5), (0.001, 4, 2), (0.004, 30, 7))
    closed = play(Workload("vllm_v1", CONFIG, requests, num_clients=3)).records
    opened = play(Workload("vllm_v1", CONFIG, requests)).records
    assert closed.iterations["end_s"].tolist() == opened.iterations["end_s"].tolist()
    assert closed.requests["last_token_at"].tolist() == opened.requests["last_token_at"].tolist()

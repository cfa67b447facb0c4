"""The iteration loop: rule 5 of the design, arrivals at the edges of steps, and what stops it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from replays import HOST, LAW, Workload, play, play_constant, workloads

from batchtwin.scheduler import BatchTwinError, Policy, Request, RequestRefused, Scheduler, SchedulerConfig, Step
from batchtwin.sim.clients import open_loop
from batchtwin.sim.clock import Clock, WallClock
from batchtwin.sim.cost.models import Constant, HostTerm
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.sim.records import Recorder
from batchtwin.sim.replica import Replica

QUICK = settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@given(workloads() | workloads(closed=True))
@QUICK
def test_rule_5_the_clock_never_goes_back_and_everybody_gets_the_tokens_asked_for(workload: Workload) -> None:
    played = play(workload)
    rows, steps = played.records.requests, played.records.iterations
    assert (np.diff(steps["end_s"]) >= 0).all()
    assert (steps["end_s"] >= steps["start_s"]).all()
    assert (steps["start_s"][1:] >= steps["end_s"][:-1]).all(), "one batch at a time"
    assert (steps["end_s"][rows["first_token_at"]] >= rows["arrival_s"]).all()
    assert (steps["start_s"][rows["scheduled_at"]] >= rows["arrival_s"]).all()
    assert (rows["scheduled_at"] <= rows["first_token_at"]).all()
    assert (rows["first_token_at"] <= rows["last_token_at"]).all()
    for produced, (_, prompt, output) in zip(rows["num_output_tokens"].tolist(), workload.requests, strict=True):
        assert produced == min(output, workload.config.max_model_len - prompt)


@given(workloads())
@QUICK
def test_open_loop_requests_arrive_exactly_when_the_trace_says(workload: Workload) -> None:
    rows = play(workload).records.requests
    assert rows["arrival_s"].tolist() == [arrival_s for arrival_s, _, _ in workload.requests]
    assert rows["due_s"].tolist() == rows["arrival_s"].tolist()


@given(workloads(policies=("vllm_v1", "prefill_first")))
@QUICK
def test_a_step_takes_the_host_and_then_the_device(workload: Workload) -> None:
    steps = play(workload).records.iterations
    assert (steps["start_s"] + steps["host_s"] + steps["device_s"]).tolist() == steps["end_s"].tolist()


@pytest.mark.parametrize("step_s", [1.0, 0.1, 1 / 3, 0.007])
def test_an_arrival_at_the_very_end_of_a_step_is_seen_by_the_next_one(step_s: float) -> None:
    """Step 2 ends at step_s added three times, whatever that is in binary; who arrives then is in step 3, who arrives
    one representable moment later is in step 4."""
    end_s = step_s + step_s + step_s
    later_s = float(np.nextafter(end_s, np.inf))
    rows = play_constant(step_s, [(0.0, 4, 20), (end_s, 4, 1), (later_s, 4, 1)]).records.requests
    assert rows["scheduled_at"].tolist() == [0, 3, 4]


def test_requests_that_arrive_together_at_an_idle_server_are_served_together() -> None:
    rows = play_constant(1.0, [(0.0, 4, 1), (5.0, 4, 1), (5.0, 4, 1), (5.0, 4, 1)]).records.requests
    assert rows["scheduled_at"].tolist() == [0, 1, 1, 1]


def test_an_idle_server_starts_when_the_next_request_comes() -> None:
    steps = play_constant(1.0, [(0.0, 4, 1), (7.25, 4, 2)]).records.iterations
    assert steps["start_s"].tolist() == [0.0, 7.25, 8.25]
    assert steps["end_s"].tolist() == [1.0, 8.25, 9.25]


def test_the_host_comes_before_the_device_in_every_step() -> None:
    """Host 0.25 s and 0.125 s a sequence, device 1 s: two sequences take 1.5 s a step."""
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64)
    played = play(Workload("vllm_v1", config, ((0.0, 4, 2), (0.0, 4, 2))), Constant(1.0), HostTerm(0.25, 0.125))
    assert played.records.iterations["end_s"].tolist() == [1.5, 3.0]


class Idler(Policy):
    """A policy that never serves anybody."""

    name = "idler"

    def schedule(self, step: Step) -> None:
        pass


def _replica(clock: Clock, policy: Policy | str = "vllm_v1", num_requests: int = 2) -> Replica:
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64)
    return Replica(clock, Scheduler(config, policy), CostModelBackend(LAW, HOST), Recorder(num_requests))


def test_a_policy_that_makes_no_progress_is_an_error_and_no_endless_loop() -> None:
    clock = Clock()
    replica = _replica(clock, Idler())
    open_loop(clock, replica, [Request("first", 4, 1)])
    with pytest.raises(BatchTwinError, match=r"Nothing can run .*\(head: first\): the policy 'idler' made no progress"):
        clock.run()


def test_a_request_that_can_never_be_served_stops_the_replay_with_its_reason() -> None:
    clock = Clock()
    open_loop(clock, _replica(clock), [Request("a", 4, 1), Request("b", 80, 1, index=1)])
    with pytest.raises(RequestRefused, match="'b' has a prompt of 80 tokens, but max_model_len is 64"):
        clock.run()


def test_an_aborted_request_has_ended_for_who_waits_for_it_and_is_no_finished_request() -> None:
    clock = Clock()
    replica = _replica(clock)
    gone, stays = Request("gone", 4, 50), Request("stays", 4, 3, index=1)
    heard: list[float] = []

    def client():  # type: ignore[no-untyped-def]
        ended = replica.finished(gone)
        replica.submit(gone)
        replica.submit(stays)
        yield clock.at(0.0015)
        replica.abort("gone")
        yield ended
        heard.append(clock.now)

    clock.process(client())
    clock.run()
    assert heard == [0.0015]
    rows = replica.recorder.records().requests
    assert (rows["last_token_at"] >= 0).tolist() == [False, True]
    assert rows["num_output_tokens"].tolist() == [-1, 3]
    replica.scheduler.check_integrity()
    assert replica.scheduler.pool.num_free == replica.scheduler.config.num_usable_blocks


def test_the_wall_clock_lets_simulated_seconds_take_real_ones() -> None:
    clock = WallClock(strict=False)
    replica = _replica(clock)
    began_s = time.monotonic()
    open_loop(clock, replica, [Request("a", 4, 1), Request("b", 4, 1, arrival_s=0.08, index=1)])
    clock.run()
    assert time.monotonic() - began_s >= 0.08
    assert replica.recorder.records().requests["arrival_s"].tolist() == [0.0, 0.08]

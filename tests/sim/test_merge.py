"""Records of several replicas as one, written out by hand, and taken apart again."""

from __future__ import annotations

import numpy as np
import pytest
from records_digest import digest
from replays import HOST, LAW

from batchtwin.scheduler import Request, Scheduler, SchedulerConfig
from batchtwin.sim.clock import Clock
from batchtwin.sim.cost.models import Constant
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.sim.merge import merge, split
from batchtwin.sim.metrics import busy_times, metrics
from batchtwin.sim.records import Recorder, Records
from batchtwin.sim.replica import Replica
from batchtwin.sim.retime import retime

CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, num_gpu_blocks=5)


def _replica(
    index: int, requests: list[tuple[int, float, int, int]], num: int, law: object = None, **knobs: object
) -> Records:
    """One replica's own replay of (row, arrival in s, prompt, output), each step 1 s unless a law is given."""
    clock, recorder = Clock(), Recorder(num, index)
    config = CONFIG.with_(**knobs)
    depth = 2 if config.async_scheduling else 1
    backend = CostModelBackend(Constant(1.0)) if law is None else CostModelBackend(LAW, HOST)
    replica = Replica(clock, Scheduler(config), backend, recorder, depth=depth, index=index)
    for row, at, prompt, output in requests:
        clock.at(at).callbacks.append(
            lambda _, row=row, prompt=prompt, output=output: replica.submit(
                Request(str(row), prompt, output, index=row)
            )
        )
    clock.run()
    return recorder.records()


# Replica 0 serves request 0 (3 tokens from 0 s), replica 1 requests 1 (2 tokens from 0.5 s) and 2 (2 tokens from 1 s).
#
#   replica 0: 0–1 A1, 1–2 A2, 2–3 A3
#   replica 1: 0.5–1.5 B1, 1.5–2.5 B2 C1, 2.5–3.5 C2
def _both() -> tuple[Records, Records]:
    return _replica(0, [(0, 0.0, 4, 3)], 3), _replica(1, [(1, 0.5, 20, 2), (2, 1.0, 5, 2)], 3)


def test_iterations_stand_replica_after_replica_and_requests_point_to_theirs() -> None:
    merged = merge(_both())
    assert merged.num_replicas == 2
    assert merged.iterations["replica"].tolist() == [0, 0, 0, 1, 1, 1]
    assert merged.iterations["end_s"].tolist() == [1.0, 2.0, 3.0, 1.5, 2.5, 3.5]
    assert merged.iterations["previous_tick"].tolist() == [-1, -1, 1, -1, -1, 4]
    assert merged.requests["replica"].tolist() == [0, 1, 1]
    assert merged.requests["scheduled_at"].tolist() == [0, 3, 4]
    assert merged.requests["first_token_at"].tolist() == [0, 3, 4]
    assert merged.requests["last_token_at"].tolist() == [2, 4, 5]
    assert sorted(map(tuple, merged.gaps.tolist())) == [(0, 1), (3, 4)]


def test_metrics_of_two_replicas_are_as_worked_out_by_hand() -> None:
    """3 requests, 7 tokens, from 0 to 3.5 s; arrivals span 1 s, and both replicas are busy for 3 s. Of 4 usable blocks
    of 16 the first replica holds 1, the second 2 (B), 3 (B and C) and 1 (C).
    """
    found = metrics(merge(_both()), 4, {"ttft_ms": 1200.0})
    expected = {
        "completed": 3,
        "duration": 3.5,
        "request_throughput": 3 / 3.5,
        "output_throughput": 7 / 3.5,
        "request_goodput": 2 / 3.5,
        "mean_ttft_ms": 1000 * (1 + 1 + 1.5) / 3,
        "mean_queue_ms": 1000 * 0.5 / 3,
        "mean_itl_ms": 1000.0,
        "load_rho": 6 / (2 * 1.0),
        "num_iterations": 6,
        "mean_iteration_ms": 1000.0,
        "peak_running": 2,
        "mean_running": 7 / 6,
        "peak_kv_usage": 3 / 4,
        "mean_kv_usage": (3 * 1 + 2 + 3 + 1) / 4 / 6,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_split_gives_back_each_replicas_own_records() -> None:
    parts = _both()
    for replica, (part, again) in enumerate(zip(parts, split(merge(parts)), strict=True)):
        mine = part.requests["replica"] == replica
        own = Records({name: values[mine] for name, values in part.requests.items()}, part.iterations, part.gaps)
        assert digest(again) == digest(own)


def test_a_replica_that_got_nothing_has_empty_records() -> None:
    idle = split(merge([_replica(0, [], 1), _replica(1, [(0, 0.0, 4, 2)], 1), _replica(2, [], 1)]))
    assert [len(part.iterations["end_s"]) for part in idle] == [0, 2, 0]
    assert [len(part.requests["arrival_s"]) for part in idle] == [0, 1, 0]
    assert metrics(idle[0], 4)["completed"] == 0


def test_merged_records_are_retimed_replica_by_replica() -> None:
    """With their own durations both replicas keep their times, bit for bit: neither waits for the other."""
    parts = [
        _replica(0, [(0, 0.0, 40, 9), (3, 0.004, 9, 5)], 4, LAW),
        _replica(1, [(1, 0.001, 30, 9), (2, 0.1, 7, 20)], 4, LAW),
    ]
    merged = merge(parts)
    again = retime(merged, merged.iterations["host_s"], merged.iterations["device_s"])
    for name in ("start_s", "end_s"):
        np.testing.assert_array_equal(again.iterations[name], merged.iterations[name])


def test_overlapped_launches_are_not_busy_twice() -> None:
    """Asynchronous scheduling launches a step while the one before runs: four tokens at 1 s each are 4 s of work."""
    records = _replica(0, [(0, 0.0, 4, 4)], 1, async_scheduling=True)
    with_token = records.iterations["num_samples"] > 0
    starts, ends = records.iterations["start_s"][with_token], records.iterations["end_s"][with_token]
    assert ends.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert (ends - starts).sum() > 4.5, "they do overlap"
    assert busy_times(records)[with_token].tolist() == [1.0] * 4

"""Rule 8: stepping = leaping. The same records, bit for bit, for every policy that can be leapt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiles import toy_profile

from batchtwin.scheduler import POLICIES, Request, Scheduler, SchedulerConfig
from batchtwin.sim.clients import closed_loop, open_loop
from batchtwin.sim.clock import ARRIVAL, Clock
from batchtwin.sim.cost.models import Fitted, HostTerm
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.sim.records import Recorder, Records
from batchtwin.sim.replica import Replica

PROFILE = toy_profile()
LEAPT = tuple(name for name, policy in POLICIES.items() if policy.can_leap)
QUICK = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Load:
    policy: str
    config: SchedulerConfig
    requests: tuple[tuple[float, int, int, int], ...]
    """(arrival in s, prompt, output, priority)."""
    aborts: tuple[tuple[float, int], ...]
    num_clients: int | None
    cost_model: str


@st.composite
def loads(draw: st.DrawFn) -> Load:
    config = SchedulerConfig(
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=128,
        max_model_len=128,
        block_size=draw(st.sampled_from((1, 4, 16))),
        num_gpu_blocks=draw(st.sampled_from((140, 200, 600))),
        enable_prefix_caching=draw(st.booleans()),
        prefill_schedule_interval=draw(st.sampled_from((1, 1, 3))),
        watermark=draw(st.sampled_from((0.0, 0.1))),
    )
    time_s = st.integers(0, 4000).map(lambda units: units * 1e-4)
    request = st.tuples(time_s, st.integers(1, 60), st.integers(1, 67), st.integers(0, 2))
    requests = sorted(draw(st.lists(request, min_size=1, max_size=12)))
    aborts = draw(st.lists(st.tuples(time_s, st.integers(0, len(requests) - 1)), max_size=2))
    clients = draw(st.none() | st.integers(1, 4))
    model = draw(st.sampled_from(("fitted", "slow", "constant", "roofline_affine")))
    return Load(draw(st.sampled_from(LEAPT)), config, tuple(requests), tuple(aborts), clients, model)


def _play(load: Load, *, leap: bool) -> tuple[Records, int]:
    clock = Clock()
    named = {"fitted": PROFILE.cost_model, "slow": PROFILE.fast_and_slow[1], "quarter": Fitted(fixed_s=0.25)}
    host = HostTerm() if load.cost_model == "quarter" else PROFILE.host
    model = named.get(load.cost_model) or PROFILE.null(load.cost_model)
    requests = [
        Request(str(i), prompt, output, arrival_s=at, priority=priority, index=i)
        for i, (at, prompt, output, priority) in enumerate(load.requests)
    ]
    recorder = Recorder(len(requests))
    scheduler = Scheduler(load.config, load.policy)
    replica = Replica(clock, scheduler, CostModelBackend(model, host), recorder, leap=leap)
    if load.num_clients is None:
        open_loop(clock, replica, requests)
    else:
        closed_loop(clock, replica, requests, num_clients=load.num_clients)
    for at, index in load.aborts:
        event = clock.at(at, ARRIVAL)
        event.callbacks.append(lambda _, index=index: replica.abort(str(index)))
    clock.run()
    scheduler.check_integrity()
    return recorder.records(), scheduler.num_steps


def _assert_equal(load: Load) -> None:
    stepped, num_stepped = _play(load, leap=False)
    leapt, num_leapt = _play(load, leap=True)
    assert num_leapt == num_stepped
    for name, column in stepped.iterations.items():
        np.testing.assert_array_equal(leapt.iterations[name], column, err_msg=name)
    for name, column in stepped.requests.items():
        np.testing.assert_array_equal(leapt.requests[name], column, err_msg=name)
    np.testing.assert_array_equal(leapt.gaps, stepped.gaps)


@given(loads())
@QUICK
def test_rule_8_leaping_gives_the_records_of_stepping(load: Load) -> None:
    _assert_equal(load)


@pytest.mark.full
@given(loads())
@settings(QUICK, max_examples=4000)
def test_rule_8_over_many_examples(load: Load) -> None:
    _assert_equal(load)


def test_rule_8_something_is_leapt() -> None:
    """One long request alone: its 60 decodes are taken in few wake-ups."""
    clock = Clock()
    recorder = Recorder(1)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=128))
    replica = Replica(clock, scheduler, CostModelBackend(PROFILE.cost_model), recorder)
    replica.submit(Request("0", 10, 60))
    wakes = 0
    while clock.peek() < float("inf"):
        clock.step()
        wakes += 1
    assert len(recorder.records().iterations["end_s"]) == 60
    assert wakes < 15


def test_rule_8_who_queues_up_behind_a_blocked_head_does_not_end_a_leap(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may run. While the first decodes, others arrive: at a step's very end (seen by the next step), in between,
    and in the last step of all.
    """
    arrivals = [(0.0, 4, 12, 0), (0.0, 4, 3, 0), (1.25, 4, 2, 0), (1.3, 4, 2, 0), (2.9, 4, 2, 0)]
    config = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=16, max_model_len=64, num_gpu_blocks=64)
    load = Load("vllm_v1", config, tuple(arrivals), (), None, "quarter")
    scheduled = []
    plain = Scheduler.schedule
    monkeypatch.setattr(Scheduler, "schedule", lambda self: scheduled.append(self.num_steps) or plain(self))
    records, _ = _play(load, leap=True)
    assert scheduled[:3] == [0, 1, 12]  # its prompt, the step that finds the second blocked, the second's prompt
    waiting = records.iterations["num_waiting"][:13].tolist()
    assert waiting == [
        1,
        1,
        1,
        1,
        1,
        2,
        3,
        3,
        3,
        3,
        3,
        3,
        3,
    ]  # the last arrives in step 11, whose end admits the second
    _assert_equal(load)

"""The client of the public benchmark: a gate in front of arrivals, leaping under it, and refusals."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import simpy
from profiles import toy_profile
from sweeps import tiny_scenario

from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.replay import predict
from batchtwin.experiments.scenario import make_scenario
from batchtwin.experiments.world import run_scenario
from batchtwin.scheduler import Request, Scheduler
from batchtwin.sim.clients import closed_loop
from batchtwin.sim.clock import ARRIVAL, Clock
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.sim.records import Recorder, Records
from batchtwin.sim.replica import Replica

PROFILE = toy_profile()
TRACE = {"source": "azure-conv-like:40", "output_scale": 0.2}
RAMP = {"ramp_up_strategy": "exponential", "ramp_up_start_rps": 20.0, "ramp_up_end_rps": 400.0}


def _with_a_semaphore(gate: int, trace: dict[str, Any]) -> Records:
    """As that client has it: every request waits until it is due, then for one of ``gate`` permits, in order."""
    scenario = tiny_scenario(trace={**TRACE, **trace})
    clock, requests = Clock(), scenario.trace.load().requests()
    recorder = Recorder(len(requests))
    replica = Replica(
        clock, Scheduler(scenario.config(200)), CostModelBackend(PROFILE.cost_model, PROFILE.host), recorder
    )
    permits = simpy.Resource(clock, gate)

    def send(request: Request) -> Generator[Any, Any, None]:
        due_s = request.arrival_s
        yield clock.at(due_s, ARRIVAL)
        with permits.request() as permit:
            yield permit
            ended = replica.finished(request)
            replica.submit(request, due_s=due_s)
            yield ended

    for request in requests:
        clock.process(send(request))
    clock.run()
    return recorder.records()


@pytest.mark.parametrize(
    "trace", [{"rate_scale": 1.0, "request_rate": 60.0, "burstiness": 0.5}, RAMP], ids=["rate", "ramp"]
)
@pytest.mark.parametrize("gate", [1, 3, 7])
def test_max_concurrency_is_a_semaphore_in_front_of_arrivals(gate: int, trace: dict[str, Any]) -> None:
    expected = _with_a_semaphore(gate, trace)
    found = predict(tiny_scenario(trace={**TRACE, **trace}, max_concurrency=gate), PROFILE).records
    for name in ("due_s", "arrival_s", "last_token_at"):
        np.testing.assert_array_equal(found.requests[name], expected.requests[name], err_msg=name)
    assert (found.requests["arrival_s"] > found.requests["due_s"]).any(), "somebody waits at the gate"


@pytest.mark.parametrize("gate", [None, 2, 5])
@pytest.mark.parametrize("trace", [{"request_rate": 50.0, "burstiness": 0.3}, RAMP], ids=["rate", "ramp"])
def test_rule_8_leaping_under_a_client_changes_no_bit(gate: int | None, trace: dict[str, Any]) -> None:
    scenario = tiny_scenario(trace={**TRACE, **trace, "output_scale": 0.5}, max_concurrency=gate)
    stepped, leapt = (
        run_scenario(scenario, 200, CostModelBackend(PROFILE.cost_model, PROFILE.host), leap=leap)
        for leap in (False, True)
    )
    for table in ("iterations", "requests"):
        for name, column in getattr(stepped, table).items():
            np.testing.assert_array_equal(getattr(leapt, table)[name], column, err_msg=name)


def test_the_gate_is_no_part_of_ttft() -> None:
    """One at a time, all due at once: the gate grows with the place in the line, nobody queues at the server."""
    requests = {"source": "azure-conv-like:6", "prompt_scale": 0.02, "output_scale": 0.03, "offline": True}
    run = predict(make_scenario(trace=requests, max_model_len=256, max_concurrency=1), PROFILE)
    rows, its = run.records.requests, run.records.iterations
    ends_s = its["end_s"][rows["last_token_at"]]
    assert rows["arrival_s"].tolist() == [0.0, *ends_s[:-1]], "each is sent when the one before has ended"
    assert run.metrics["mean_queue_ms"] == 0.0
    assert run.metrics["mean_gate_ms"] == pytest.approx(1e3 * ends_s[:-1].sum() / 6)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_concurrency": 2, "num_clients": 2}, "give num_clients or max_concurrency, not both"),
        ({"max_concurrency": 2, "think_s": 1.0}, "think_s is that of num_clients"),
        ({"trace": {"burstiness": 0.5}}, "burstiness is that of a client: give request_rate"),
        ({"trace": {"request_rate": 5.0, "offline": True}}, "offline sends all requests at once"),
        (
            {"trace": {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0}},
            "needs ramp_up_start_rps and ramp_up_end",
        ),
        ({"trace": {"ramp_up_end_rps": 1.0}}, "need a ramp_up_strategy"),
        ({"trace": {**RAMP, "request_rate": 5.0}}, "give request_rate or a ramp_up_strategy, not both"),
        ({"trace": {"request_rate": 0.0}}, "trace.request_rate is 0.0, but it must be above 0"),
    ],
)
def test_clients_that_contradict_themselves_are_refused_in_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExperimentError, match=sentence):
        make_scenario(**fields)


def test_more_clients_than_requests_cost_nothing() -> None:
    clock, sent = Clock(), []

    class Nobody:
        def submit(self, request: Request, *, due_s: float | None = None) -> None:
            sent.append(request.request_id)

        def finished(self, request: Request) -> simpy.Event:
            return clock.timeout(1.0)

    closed_loop(clock, Nobody(), [Request(str(i), 1, 1) for i in range(3)], num_clients=10**30)  # type: ignore[arg-type]
    clock.run()
    assert sent == ["0", "1", "2"]

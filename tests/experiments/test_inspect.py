"""The batches of a run, formed again: held against what another recorder saw while the run was made."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from profiles import toy_profile
from sweeps import measured_stand_in, tiny_scenario

from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.inspect import batches
from batchtwin.experiments.replay import predict
from batchtwin.experiments.run import Run, load_run
from batchtwin.experiments.scenario import Scenario
from batchtwin.experiments.world import run_scenario
from batchtwin.scheduler import Batch, forward_shapes
from batchtwin.sim.backend import Execution
from batchtwin.sim.cost_backend import CostModelBackend

PRESSED = {"num_gpu_blocks": 18, "max_num_seqs": 8, "trace": {"rate_scale": 4000.0, "output_scale": 0.3}}
"""A pool too small for everybody: requests are preempted."""


class Witness:
    """Leaves the times to a cost model and keeps every batch when it is launched, with its arrays as they were then."""

    def __init__(self, block_size: int) -> None:
        profile = toy_profile()
        self._inner = CostModelBackend(profile.cost_model, profile.host)
        self._block_size = block_size
        self.seen: list[tuple[Batch, bytes]] = []

    def launch(self, batch: Batch, now_s: float) -> Execution:
        self.seen.append((batch, arrays(batch, self._block_size)))
        return self._inner.launch(batch, now_s)

    def wait(self, ticket: Execution) -> Execution:
        return ticket

    def host(self, seconds: float) -> None:
        pass


def arrays(batch: Batch, block_size: int) -> bytes:
    shapes = forward_shapes(batch, block_size)
    parts = (shapes.input_tokens, shapes.positions, shapes.query_start_loc, shapes.block_tables, shapes.slot_mapping)
    return b"|".join(part.tobytes() for part in parts)


def witnessed(scenario: Scenario) -> list[tuple[Batch, bytes]]:
    witnesses = [Witness(scenario.block_size) for _ in range(scenario.num_replicas)]
    run_scenario(scenario, scenario.num_gpu_blocks or 0, *witnesses, leap=False)
    return [seen for witness in witnesses for seen in witness.seen]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        PRESSED,
        {"num_clients": 3, "think_s": 0.01},
        {"async_scheduling": True, "trace": {"rate_scale": 2000.0}},
        {"num_replicas": 2, "router": "least_outstanding", "trace": {"rate_scale": 500.0}},
        {"policy": "static_batch", "num_gpu_blocks": 400, "max_num_batched_tokens": 2048},
    ],
    ids=["open loop", "preempting", "closed loop", "asynchronous", "two replicas", "static"],
)
def test_batches_of_a_predicted_run_are_those_that_were_launched(fields: dict[str, object]) -> None:
    scenario = tiny_scenario(**fields)
    run = predict(scenario, toy_profile())
    seen = witnessed(scenario)
    count = len(run.records.iterations["end_s"])
    assert count == len(seen)
    replicas = run.records.iterations["replica"]
    if scenario.num_replicas == 2:
        assert set(replicas.tolist()) == {0, 1}
    for first in range(0, count, 7):
        found = batches(run, first, first + 7)
        expected = [i for i in range(first, min(first + 7, count)) if replicas[i] == replicas[first]]
        assert [arrays(batch, scenario.block_size) for batch in found] == [seen[i][1] for i in expected]
        for batch, i in zip(found, expected, strict=True):
            assert [r.index for r in batch.preempted] == [r.index for r in seen[i][0].preempted]


def test_the_preempting_case_preempts() -> None:
    assert predict(tiny_scenario(**PRESSED), toy_profile()).metrics["num_preemptions"] > 0


def test_batches_of_a_measured_run_add_up_to_its_records(tmp_path: Path) -> None:
    """A measured run has no law: only its recorded times lead to its batches."""
    scenario = tiny_scenario(trace={"rate_scale": 2000.0})
    measured_stand_in(scenario, toy_profile(), seed=3, gap_s=1e-4).save(tmp_path / "run")
    run = load_run(tmp_path / "run")
    columns = run.records.iterations
    found = batches(run, 0, len(columns["end_s"]))
    for name in ("num_tokens", "num_seqs", "num_waiting", "num_prefill_tokens", "num_free_blocks", "bound"):
        np.testing.assert_array_equal([getattr(batch, name) for batch in found], columns[name], err_msg=name)


def test_an_iteration_that_is_not_there_is_one_sentence() -> None:
    run = predict(tiny_scenario(), toy_profile())
    for first, stop in ((-1, 4), (10**6, 10**6 + 1), (3, 3)):
        with pytest.raises(ExperimentError, match=rf"There is no iteration {first}: the run has \d+"):
            batches(run, first, stop)


@pytest.mark.parametrize("changes", [{"max_num_seqs": 2}, {"max_num_batched_tokens": 4}, {"num_gpu_blocks": 999}])
def test_a_run_whose_scenario_was_changed_is_refused(changes: dict[str, int]) -> None:
    """The recorded sums tell: other knobs, other batches. More blocks than ever needed change none."""
    run = predict(tiny_scenario(trace={"rate_scale": 4000.0}), toy_profile())
    count = len(run.records.iterations["end_s"])
    other = dataclasses.replace(run, scenario=run.scenario.with_(**changes))
    if "num_gpu_blocks" in changes:
        assert len(batches(other, 0, count)) == count
        return
    with pytest.raises(ExperimentError, match=r"cannot be looked into: at iteration \d+ .* run it again"):
        batches(other, 0, count)


def test_a_run_that_lost_its_end_is_refused() -> None:
    run = predict(tiny_scenario(), toy_profile())
    records = run.records
    longer = {name: np.append(values, values[-1:]) for name, values in records.iterations.items()}
    broken = Run(run.scenario, run.kind, dataclasses.replace(records, iterations=longer), 200, {})
    count = len(longer["end_s"])
    with pytest.raises(ExperimentError, match="the replay ends before it"):
        batches(broken, count - 1, count)

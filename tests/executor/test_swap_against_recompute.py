"""One workload under KV pressure, its victims swapped or computed anew, predicted and measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from profiles import toy_profile

from batchtwin.executor import DeviceBackend, Engine, load_model
from batchtwin.scheduler import Batch, Request, Scheduler, SchedulerConfig
from batchtwin.sim.backend import Backend, Execution
from batchtwin.sim.clients import open_loop
from batchtwin.sim.clock import Clock
from batchtwin.sim.cost.features import features_of_columns
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.sim.records import Recorder, Records
from batchtwin.sim.replica import Replica

BLOCK_SIZE, BLOCK_SWAP_S = 8, 0.004
MODES = {"recompute": {}, "swap": {"preemption_mode": "swap", "num_cpu_blocks": 80}}
CONFIG = SchedulerConfig(
    max_num_seqs=8, max_num_batched_tokens=48, max_model_len=128, num_gpu_blocks=28, block_size=BLOCK_SIZE
)
LAW = toy_profile().law.model_copy(update={"per_swapped_block_s": BLOCK_SWAP_S})
PROFILE = toy_profile(law=LAW)


def _requests() -> list[Request]:
    rng = np.random.default_rng(2)
    prompts, outputs = rng.integers(5, 60, 14).tolist(), rng.integers(8, 40, 14).tolist()
    return [Request(f"r{i}", prompts[i], outputs[i], index=i) for i in range(14)]


class Auditor(Recorder):
    """A recorder that checks the blocks of both pools after every step and keeps what the step decided."""

    def __init__(self, num_requests: int, scheduler: Scheduler) -> None:
        super().__init__(num_requests)
        self._scheduler = scheduler
        self._kept_on_host: set[int] = set()
        self.batches: list[tuple[object, ...]] = []
        self.num_out = self.num_in = 0

    def completed(self, batch: Batch, launched_s: float, execution: Execution, finished: list[Request]) -> None:
        scheduler = self._scheduler
        scheduler.check_integrity()
        held = sum(len(request.block_table) for request in scheduler.running())
        assert held + scheduler.pool.num_free == scheduler.config.num_usable_blocks
        self._follow_host(batch)
        assert len(self._kept_on_host) + scheduler.host_pool.num_free == scheduler.config.num_cpu_blocks
        rows = tuple((row.request.request_id, row.start, row.num_tokens, *row.block_table) for row in batch.order())
        self.batches.append((rows, tuple(batch.copies_out), tuple(batch.copies_in)))
        super().completed(batch, launched_s, execution, finished)

    def _follow_host(self, batch: Batch) -> None:
        """The host's blocks by the copies alone: what comes back was there, what goes out does not overwrite it."""
        incoming = {host_block for _, host_block in batch.copies_in}
        outgoing = {host_block for _, host_block in batch.copies_out}
        assert not outgoing & self._kept_on_host
        assert incoming <= self._kept_on_host | outgoing
        self._kept_on_host = (self._kept_on_host | outgoing) - incoming
        self.num_out += len(batch.copies_out)
        self.num_in += len(batch.copies_in)


@dataclass
class Served:
    """One replay of the workload."""

    auditor: Auditor
    records: Records
    outputs: dict[str, list[int]] = field(default_factory=dict)

    def total(self, column: str) -> int:
        return int(self.records.iterations[column].sum())


def _play(mode: str, backend: Backend, *, measured: bool) -> Served:
    clock, requests = Clock(), _requests()
    scheduler = Scheduler(CONFIG.with_(**MODES[mode]))
    auditor = Auditor(len(requests), scheduler)
    host_clock = time.perf_counter if measured else None
    replica = Replica(clock, scheduler, backend, auditor, leap=False, host_clock=host_clock)
    open_loop(clock, replica, requests)
    clock.run()
    assert scheduler.pool.num_free == CONFIG.num_usable_blocks
    assert scheduler.host_pool.num_free == scheduler.config.num_cpu_blocks
    return Served(auditor, auditor.records())


@pytest.fixture(scope="module")
def predicted() -> dict[str, Served]:
    return {mode: _play(mode, CostModelBackend(PROFILE.cost_model), measured=False) for mode in MODES}


@pytest.fixture(scope="module")
def measured() -> dict[str, Served]:
    loaded = load_model("tiny-llama")
    served = {}
    for mode in MODES:
        engine = Engine(loaded, num_gpu_blocks=CONFIG.num_gpu_blocks, block_size=BLOCK_SIZE, threads=1)
        served[mode] = _play(mode, DeviceBackend(engine), measured=True)
        served[mode].outputs = {request.request_id: engine.outputs(request.request_id) for request in _requests()}
    return served


@pytest.fixture(params=["predicted", "measured"])
def world(request: pytest.FixtureRequest) -> dict[str, Served]:
    served: dict[str, Served] = request.getfixturevalue(request.param)
    return served


def test_swapping_recomputes_nothing_and_recomputing_swaps_nothing(world: dict[str, Served]) -> None:
    swap, recompute = world["swap"], world["recompute"]
    assert swap.total("num_preempted") > 3
    assert recompute.total("num_preempted") > 3
    assert swap.total("num_recomputed_tokens") == 0 < recompute.total("num_recomputed_tokens")
    assert recompute.total("num_blocks_swapped") == 0 < swap.total("num_blocks_swapped")
    assert swap.auditor.num_out + swap.auditor.num_in == swap.total("num_blocks_swapped")


def test_what_was_swapped_out_comes_back_once(world: dict[str, Served]) -> None:
    assert world["swap"].auditor.num_out == world["swap"].auditor.num_in > 0


def test_without_recomputing_every_token_is_computed_once(world: dict[str, Served]) -> None:
    """A request computes its prompt and all its outputs but the last."""
    once = sum(request.num_prompt_tokens + request.output_len - 1 for request in _requests())
    assert world["swap"].total("num_tokens") == once
    again = world["recompute"].total("num_recomputed_tokens")
    assert world["recompute"].total("num_tokens") == once + again


def test_everybody_gets_the_same_tokens_swapped_or_recomputed(measured: dict[str, Served]) -> None:
    outputs = measured["swap"].outputs
    assert outputs == measured["recompute"].outputs
    assert {name: len(tokens) for name, tokens in outputs.items()} == {r.request_id: r.output_len for r in _requests()}
    assert len({token for tokens in outputs.values() for token in tokens}) > 60, "too uniform to show an error"


@pytest.mark.parametrize("mode", MODES)
def test_prediction_and_measurement_swap_the_same_blocks(
    mode: str, predicted: dict[str, Served], measured: dict[str, Served]
) -> None:
    for i, (ours, theirs) in enumerate(
        zip(predicted[mode].auditor.batches, measured[mode].auditor.batches, strict=True)
    ):
        assert ours == theirs, f"batch {i}"


def test_a_predicted_step_takes_its_swaps_longer(predicted: dict[str, Served]) -> None:
    """Device time less what the same steps take under the law without swaps is blocks times a block's time."""
    iterations = predicted["swap"].records.iterations
    without = PROFILE.law.model_copy(update={"per_swapped_block_s": 0.0})
    free_s = PROFILE.model_copy(update={"law": without}).cost_model.durations_s(features_of_columns(iterations))
    extra_s = iterations["device_s"] - free_s
    np.testing.assert_allclose(extra_s, BLOCK_SWAP_S * iterations["num_blocks_swapped"], atol=1e-12)
    assert (extra_s[iterations["num_blocks_swapped"] > 0] >= BLOCK_SWAP_S * 0.999).all()


def test_where_swapping_is_dear_recomputing_is_predicted_to_be_faster_and_the_other_way_round(
    predicted: dict[str, Served],
) -> None:
    """The end of the replay, with a block's swap at 4 ms and at nothing."""
    free = PROFILE.law.model_copy(update={"per_swapped_block_s": 0.0})
    cheap = _play("swap", CostModelBackend(PROFILE.model_copy(update={"law": free}).cost_model), measured=False)

    def end_s(served: Served) -> float:
        return float(served.records.iterations["end_s"][-1])

    assert end_s(cheap) < end_s(predicted["recompute"]) < end_s(predicted["swap"])

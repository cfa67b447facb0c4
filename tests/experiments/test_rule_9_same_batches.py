"""Rule 9: offline, the batches of a prediction and of a measurement are equal, batch for batch, block for block."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from profiles import toy_profile

from batchtwin.executor import DeviceBackend, Engine, load_model
from batchtwin.scheduler import Batch, Request, Scheduler, SchedulerConfig
from batchtwin.sim.backend import Backend, Execution
from batchtwin.sim.clients import open_loop
from batchtwin.sim.clock import Clock
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.sim.records import Recorder
from batchtwin.sim.replica import Replica
from batchtwin.traces import Trace, read_trace

AZURE = "data/azure_llm_2023/AzureLLMInferenceTrace_conv.csv"
NUM_REQUESTS = 220


class Witness(Recorder):
    """A recorder that also keeps what every batch was."""

    def __init__(self, num_requests: int) -> None:
        super().__init__(num_requests)
        self.batches: list[tuple[object, ...]] = []

    def completed(self, batch: Batch, launched_s: float, execution: Execution, finished: list[Request]) -> None:
        rows = tuple(
            (row.request.request_id, row.start, row.num_tokens, row.samples, tuple(row.block_table))
            for row in batch.order()
        )
        preempted = tuple(request.request_id for request in batch.preempted)
        self.batches.append((rows, preempted, tuple(request.request_id for request in finished)))
        super().completed(batch, launched_s, execution, finished)


def _play(trace: Trace, config: SchedulerConfig, policy: str, backend: Backend, *, measured: bool) -> Witness:
    clock, witness = Clock(), Witness(len(trace))
    depth = 2 if config.async_scheduling else 1
    scheduler = Scheduler(config, policy)
    host_clock = time.perf_counter if measured else None
    replica = Replica(clock, scheduler, backend, witness, depth=depth, leap=False, host_clock=host_clock)
    open_loop(clock, replica, trace.requests())
    clock.run()
    scheduler.check_integrity()
    return witness


def _both(trace: Trace, config: SchedulerConfig, policy: str) -> tuple[Witness, Witness]:
    engine = Engine(
        load_model("tiny-llama"), num_gpu_blocks=config.num_gpu_blocks, block_size=config.block_size, threads=1
    )
    predicted = _play(trace, config, policy, CostModelBackend(toy_profile().cost_model), measured=False)
    return predicted, _play(trace, config, policy, DeviceBackend(engine), measured=True)


@pytest.fixture(scope="module")
def trace(shared_path: Callable[[str], Path]) -> Trace:
    """The head of the real trace, lengths scaled to the small model."""
    return read_trace(shared_path(AZURE)).head(NUM_REQUESTS).scale_lengths(0.04, 0.06, 160, 40).offline()


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("vllm_v1", {}),
        ("vllm_v1", {"async_scheduling": True, "enable_prefix_caching": True}),
        ("prefill_first", {"max_num_batched_tokens": 256}),
    ],
)
def test_rule_9_real_trace_under_kv_pressure(trace: Trace, policy: str, knobs: dict[str, int]) -> None:
    config = SchedulerConfig(
        **{"max_num_seqs": 48, "max_num_batched_tokens": 160, "max_model_len": 256, "num_gpu_blocks": 100, **knobs}
    )
    predicted, measured = _both(trace, config, policy)
    for i, (ours, theirs) in enumerate(zip(predicted.batches, measured.batches, strict=False)):
        assert ours == theirs, f"batch {i}"
    assert len(predicted.batches) == len(measured.batches)
    iterations = measured.records().iterations
    assert iterations["num_preempted"].sum() > 5, "there was no pressure"
    assert (measured.records().requests["last_token_at"] >= 0).all()


def test_rule_9_static_batching(trace: Trace) -> None:
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=256, num_gpu_blocks=200)
    predicted, measured = _both(trace.head(60), config, "static_batch")
    assert predicted.batches == measured.batches
    assert measured.records().iterations["num_padded_tokens"].sum() > 0

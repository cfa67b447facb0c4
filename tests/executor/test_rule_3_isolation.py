"""Rule 3 while blocks change hands: before every forward all that no resident may read is NaN.

What a place holds is followed here, apart from scheduler and cache: a slot may be read once a step has written it, for
as long as its block stands in a resident's table or is cached for a later prompt. Everything else (the null block,
blocks given back, tails that nobody has filled, the targets of a swap before they are filled) is poisoned anew for
every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from batchtwin.executor.engine import Engine, Step
from batchtwin.executor.models import LoadedModel, load_model
from batchtwin.scheduler.batch import Batch
from batchtwin.scheduler.blocks import PrefixCachingPool
from batchtwin.scheduler.config import SchedulerConfig
from batchtwin.scheduler.policies import Policy
from batchtwin.scheduler.request import Request
from batchtwin.scheduler.scheduler import Scheduler
from batchtwin.scheduler.shapes import forward_shapes

from .turns import MakesWayAfter, MakesWayBefore

BLOCK_SIZE, NUM_HOST_BLOCKS = 8, 64
CONFIG = SchedulerConfig(
    max_num_seqs=6, max_num_batched_tokens=40, max_model_len=160, num_gpu_blocks=26, block_size=BLOCK_SIZE
)
SHARING = {"enable_prefix_caching": True}
SWAPPING = {"preemption_mode": "swap", "num_cpu_blocks": NUM_HOST_BLOCKS}
ABORTS = ((4, "r1"), (9, "r3"), (13, "r5"), (20, "r8"))
"""(step, request): somebody who waits, prefills, decodes or was preempted."""


def _requests() -> list[Request]:
    """Twelve, most of which begin with the same 27 tokens (three whole blocks and a part of the fourth). Six are there
    from the beginning, the others come every third step.
    """
    rng = np.random.default_rng(8)
    own, outputs = rng.integers(1, 50, 12).tolist(), rng.integers(6, 24, 12).tolist()
    shared = [0 if i % 4 == 3 else 27 for i in range(12)]
    return [
        Request(
            f"r{i}",
            shared[i] + own[i],
            outputs[i],
            prompt=[("system", 0, shared[i]), (f"p:r{i}", 0, own[i])],
            arrival_s=float(max(3 * (i - 5), 0)),
            priority=-i if i > 6 else 0,
            index=i,
        )
        for i in range(12)
    ]


@dataclass
class Counts:
    """What happened on the way, so that a case cannot pass without its subject."""

    preempted: int = 0
    recomputed: int = 0
    cached: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    both_ways: int = 0
    aborted: list[str] = field(default_factory=list)


class Poisoner:
    """Takes the place of the cache's ``swap_out``, the first thing an engine does with a batch: what is to be copied
    to the host is copied, then all that this step may not read becomes NaN.
    """

    def __init__(self, engine: Engine, scheduler: Scheduler) -> None:
        self._cache, self._scheduler = engine.cache, scheduler
        self._swap_out = engine.cache.swap_out
        self._written = np.zeros((engine.cache.num_blocks, BLOCK_SIZE), dtype=bool)
        self._written_on_host = np.zeros((NUM_HOST_BLOCKS + 1, BLOCK_SIZE), dtype=bool)
        self._copies_in: Sequence[tuple[int, int]] = ()
        self.num_poisoned_slots = 0

    def __call__(self, copies_out: Sequence[tuple[int, int]]) -> None:
        self._swap_out(copies_out)
        for block, host_block in copies_out:
            self._written_on_host[host_block] = self._written[block]
        kept = {block for request in self._scheduler.running() for block in request.block_table}
        if isinstance(self._scheduler.pool, PrefixCachingPool):
            kept |= {block for stretch in self._scheduler.pool._idle for block in stretch.blocks}
        gone = np.array([block not in kept for block in range(self._cache.num_blocks)])
        self._written[gone] = False
        for block, _ in self._copies_in:
            self._written[block] = False
        unwritten = torch.from_numpy(~self._written)
        self._cache._data[:, :, unwritten] = float("nan")
        self.num_poisoned_slots += int(unwritten.sum())

    def expect(self, batch: Batch) -> None:
        """``batch`` is launched next."""
        self._copies_in = batch.copies_in

    def ran(self, batch: Batch) -> None:
        """``batch`` was launched: what it brought back and wrote may be read from now on."""
        for block, host_block in batch.copies_in:
            self._written[block] = self._written_on_host[host_block]
        self._written.reshape(-1)[forward_shapes(batch, BLOCK_SIZE).slot_mapping] = True


def _serve(
    loaded: LoadedModel,
    config: SchedulerConfig,
    monkeypatch: pytest.MonkeyPatch,
    *,
    policy: str = "vllm_v1",
    aborts: Sequence[tuple[int, str]] = (),
    poisoned: bool,
) -> tuple[dict[str, list[int]], Counts]:
    """All requests through the real scheduler and engine; the outputs of everybody, as far as they came."""
    engine = Engine(loaded, num_gpu_blocks=config.num_gpu_blocks, block_size=BLOCK_SIZE, seed=3)
    scheduler, counts = Scheduler(config, TURNS[policy]() if policy in TURNS else policy), Counts()
    poisoner = Poisoner(engine, scheduler)
    if poisoned:
        monkeypatch.setattr(engine.cache, "swap_out", poisoner)
    requests = _requests()
    coming = deque(requests)
    depth = 2 if config.async_scheduling else 1
    in_flight: deque[tuple[Batch, Step]] = deque()
    while coming or scheduler.has_work or in_flight:
        while coming and (coming[0].arrival_s <= scheduler.num_steps or not scheduler.has_work):
            scheduler.add(coming.popleft())
        if scheduler.has_work and len(in_flight) < depth:
            _abort(scheduler, requests, aborts, counts)
            batch = scheduler.schedule()
            scheduler.check_integrity()
            poisoner.expect(batch)
            in_flight.append((batch, engine.launch(batch)))
            poisoner.ran(batch)
            _count(counts, batch)
            if len(in_flight) < depth:
                continue
        done, step = in_flight.popleft()
        engine.finish(step)
        scheduler.complete(done)
    assert scheduler.pool.num_free == config.num_usable_blocks
    assert scheduler.host_pool.num_free == config.num_cpu_blocks
    assert (poisoner.num_poisoned_slots > 0) == poisoned
    return {request.request_id: engine.outputs(request.request_id) for request in requests}, counts


def _abort(scheduler: Scheduler, requests: list[Request], aborts: Sequence[tuple[int, str]], counts: Counts) -> None:
    alive = {request.request_id for request in (*scheduler.waiting, *scheduler.running())}
    for step, request_id in aborts:
        if step == scheduler.num_steps and request_id in alive:
            scheduler.abort(request_id)
            counts.aborted.append(request_id)


def _count(counts: Counts, batch: Batch) -> None:
    counts.preempted += len(batch.preempted)
    counts.recomputed += batch.num_recomputed_tokens
    counts.cached += batch.num_cached_tokens
    counts.swapped_out += len(batch.copies_out)
    counts.swapped_in += len(batch.copies_in)
    counts.both_ways += bool(batch.copies_out and batch.copies_in)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model("tiny-llama")


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> dict[str, list[int]]:
    """What each request produces with nobody beside it, on an engine of its own."""
    outputs: dict[str, list[int]] = {}
    for request in _requests():
        engine = Engine(loaded, num_gpu_blocks=40, block_size=BLOCK_SIZE, seed=3)
        scheduler = Scheduler(CONFIG.with_(num_gpu_blocks=40))
        scheduler.add(request)
        while scheduler.has_work:
            batch = scheduler.schedule()
            engine.run(batch)
            scheduler.complete(batch)
        outputs[request.request_id] = engine.outputs(request.request_id)
    assert len({token for tokens in outputs.values() for token in tokens}) > 60, "too uniform to show an error"
    return outputs


TURNS: dict[str, type[Policy]] = {"out before in": MakesWayBefore, "in before out": MakesWayAfter}
CASES: dict[str, tuple[dict[str, Any], str, Sequence[tuple[int, str]]]] = {
    "recompute": ({}, "vllm_v1", ()),
    "recompute, with aborts": ({}, "vllm_v1", ABORTS),
    "prefix sharing with room": (SHARING | {"num_gpu_blocks": 90}, "vllm_v1", ()),
    "prefix sharing and recompute, with aborts": (SHARING, "vllm_v1", ABORTS),
    "swapping": (SWAPPING, "vllm_v1", ()),
    "swapping and prefix sharing, with aborts": (SWAPPING | SHARING, "vllm_v1", ABORTS),
    "swapping, a host too small for all": (SWAPPING | {"num_cpu_blocks": 8}, "vllm_v1", ()),
    "swapping by priority": (SWAPPING, "priority", ABORTS),
    "swapping in turns, out before in": (SWAPPING, "out before in", ABORTS),
    "swapping in turns, in before out": (SWAPPING, "in before out", ABORTS),
    "two batches in flight, prefix sharing": (SHARING | {"async_scheduling": True}, "vllm_v1", ()),
}


@pytest.mark.parametrize("case", CASES)
def test_rule_3_nobody_reads_what_is_not_his(
    case: str, loaded: LoadedModel, alone: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs, policy, aborts = CASES[case]
    config = CONFIG.with_(**knobs)
    plain, _ = _serve(loaded, config, monkeypatch, policy=policy, aborts=aborts, poisoned=False)
    found, counts = _serve(loaded, config, monkeypatch, policy=policy, aborts=aborts, poisoned=True)
    assert found == plain
    for request_id, tokens in found.items():
        whole = alone[request_id]
        assert tokens == (whole[: len(tokens)] if request_id in counts.aborted else whole), request_id
    _check_subject(config, counts, with_aborts=bool(aborts))
    assert (counts.both_ways > 0) == (policy in TURNS)


def _check_subject(config: SchedulerConfig, counts: Counts, *, with_aborts: bool) -> None:
    """The case was about what its name says."""
    assert (counts.preempted > 0) == (config.num_gpu_blocks < 90)
    assert (counts.cached > 0) == config.enable_prefix_caching
    assert (counts.swapped_out > 0) == (counts.swapped_in > 0) == (config.preemption_mode == "swap")
    if config.preemption_mode == "swap":
        assert (counts.recomputed > 0) == (config.num_cpu_blocks < NUM_HOST_BLOCKS)
    elif config.num_gpu_blocks < 90:
        assert counts.recomputed > 0
    assert (len(counts.aborted) >= 3) == with_aborts


def test_a_poisoned_slot_that_is_read_shows(loaded: LoadedModel) -> None:
    """One slot of one block that a row reads: its token changes, its neighbour's does not."""
    engine = Engine(loaded, num_gpu_blocks=26, block_size=BLOCK_SIZE, seed=3)
    scheduler = Scheduler(CONFIG)
    first, second, *_ = _requests()
    for request in (first, second):
        scheduler.add(request)
    while scheduler.prefilling or scheduler.waiting:
        batch = scheduler.schedule()
        engine.run(batch)
        scheduler.complete(batch)
    batch = scheduler.schedule()
    before = engine.cache._data.clone()
    expected = engine.run(batch)
    engine.cache._data.copy_(before)
    engine.cache._data[:, :, first.block_table[1], 3] = float("nan")
    seen = engine.run(batch)
    assert seen[first.request_id] != expected[first.request_id]
    assert seen[second.request_id] == expected[second.request_id]

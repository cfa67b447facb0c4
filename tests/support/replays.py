"""Replays in the simulated world with everything written down, and random workloads for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from batchtwin.scheduler import (
    POLICIES,
    Batch,
    ConfigError,
    Policy,
    Request,
    Scheduler,
    SchedulerConfig,
    Step,
    load_policy,
)
from batchtwin.scheduler.batch import Row
from batchtwin.sim.backend import Execution
from batchtwin.sim.clients import closed_loop, open_loop
from batchtwin.sim.clock import Clock
from batchtwin.sim.cost.features import Features
from batchtwin.sim.cost.models import Constant, CostModel, Fitted, HostTerm
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.sim.records import Recorder, Records
from batchtwin.sim.replica import Replica

LAW = Fitted(
    fixed_s=1e-3,
    token_knots=(1, 8),
    token_slopes_s=(1e-5, 3e-5),
    per_decode_s=2e-5,
    per_decode_kv_token_s=1e-6,
    per_prefill_s=1e-4,
    per_prefill_token_s=1e-6,
    per_attention_pair_s=1e-7,
    per_sample_s=1e-5,
)
HOST = HostTerm(1e-4, 1e-6)


class Slices(Policy):
    """Admits prompts in slices of four tokens, so that an unfinished prompt may stand before decodes and its next
    slice may leave them no budget: they stall.
    """

    name = "slices"

    def schedule(self, step: Step) -> None:
        step.advance_running()
        while not step.num_preempted and step.waiting and step.budget_tokens > 0:
            left = step.budget_tokens
            step.budget_tokens = min(left, 4)
            if not step.admit_next():
                break
            step.budget_tokens += max(left - 4, 0)


@dataclass(frozen=True)
class Workload:
    """What to replay: ``requests`` are (arrival in s, prompt tokens, output tokens)."""

    policy: str
    config: SchedulerConfig
    requests: tuple[tuple[float, int, int], ...]
    num_clients: int | None = None
    think_s: float = 0.0


@dataclass
class Iteration:
    """One batch, copied out of the scheduler when it was launched."""

    batch: Batch
    launched_s: float
    rows: list[Row]
    padding_tokens: int
    num_resident: int
    num_waiting: int
    num_blocks_held: int
    end_s: float = float("nan")


@dataclass
class Played:
    """A replay: what the recorder kept, and what was seen by walking every batch."""

    records: Records
    requests: list[Request]
    due_s: list[float]
    iterations: list[Iteration]
    scheduler: Scheduler


class Witness:
    """A backend that leaves the times to another one and writes every batch down."""

    def __init__(self, inner: CostModelBackend, scheduler: Scheduler) -> None:
        self._inner = inner
        self._scheduler = scheduler
        self.iterations: list[Iteration] = []

    def launch(self, batch: Batch, now_s: float) -> tuple[Execution, Iteration]:
        residents = self._scheduler.running()
        seen = Iteration(
            batch,
            now_s,
            list(batch.order()),
            sum(chunk.num_tokens for chunk in batch.padding),
            len(residents),
            len(list(self._scheduler.waiting)),
            sum(len(request.block_table) for request in residents),
        )
        self.iterations.append(seen)
        return self._inner.launch(batch, now_s), seen

    def wait(self, ticket: tuple[Execution, Iteration]) -> Execution:
        execution, seen = ticket
        seen.end_s = execution.end_s
        return execution

    def host(self, seconds: float) -> None:
        self._inner.host(seconds)


def play(workload: Workload, cost_model: CostModel = LAW, host: HostTerm = HOST) -> Played:
    """Replay ``workload`` to its end, with two batches in flight if its scheduling is asynchronous."""
    clock = Clock()
    depth = 2 if workload.config.async_scheduling else 1
    policy = Slices() if workload.policy == "slices" else workload.policy
    scheduler = Scheduler(workload.config, policy)
    requests = [
        Request(str(i), prompt, output, arrival_s=arrival_s, index=i)
        for i, (arrival_s, prompt, output) in enumerate(workload.requests)
    ]
    due_s = [request.arrival_s for request in requests]
    witness = Witness(CostModelBackend(cost_model, host), scheduler)
    recorder = Recorder(len(requests))
    replica = Replica(clock, scheduler, witness, recorder, depth=depth)
    if workload.num_clients is None:
        open_loop(clock, replica, requests)
    else:
        closed_loop(clock, replica, requests, num_clients=workload.num_clients, think_s=workload.think_s)
    clock.run()
    scheduler.check_integrity()
    return Played(recorder.records(), requests, due_s, witness.iterations, scheduler)


def play_constant(
    seconds: float, requests: Sequence[tuple[float, int, int]], policy: str = "vllm_v1", **knobs: int
) -> Played:
    """A replay in which every step takes ``seconds``, with room for everybody."""
    config = SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64, **knobs})
    return play(Workload(policy, config, tuple(requests)), Constant(seconds), HostTerm())


@st.composite
def workloads(
    draw: st.DrawFn,
    policies: tuple[str, ...] = (*POLICIES, "slices"),
    *,
    offline: bool = False,
    closed: bool = False,
    asynchronous: bool = False,
) -> Workload:
    """Small workloads that can be served; the KV pool is often too small for all, so that preemptions happen."""
    policy = draw(st.sampled_from(policies))
    seqs = draw(st.integers(1, 6))
    block_size = draw(st.sampled_from((1, 2, 4, 16)))
    max_model_len = draw(st.integers(8, 48))
    for_one = -(-max_model_len // block_size)
    most = 12 if policy == "slices" else 40
    budget, blocks = draw(st.integers(max(seqs, 4), most)), draw(st.integers(for_one + 1, 3 * for_one + 1))
    if policy == "static_batch":  # whatever batch forms must fit
        budget, blocks = seqs * max_model_len, 2 * seqs * for_one + 1
    request = st.tuples(
        st.just(0.0) if offline else st.integers(0, 40).map(lambda step: step * 0.0013),
        st.integers(1, max_model_len - 1),
        st.integers(1, 30),
    )
    config = SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        block_size=block_size,
        num_gpu_blocks=blocks,
        scheduler_reserve_full_isl=draw(st.booleans()),
        async_scheduling=asynchronous,
    )
    return Workload(
        policy,
        config if _works(policy, config) else config.with_(max_num_batched_tokens=budget + max_model_len),
        tuple(sorted(draw(st.lists(request, min_size=1, max_size=14)))),
        num_clients=draw(st.integers(1, 5)) if closed else None,
        think_s=draw(st.sampled_from((0.0, 0.004))) if closed else 0.0,
    )


def _works(policy: str, config: SchedulerConfig) -> bool:
    """Whether the policy can do with these knobs: some never chunk a prompt."""
    try:
        if policy != "slices":
            load_policy(policy).check(config)
    except ConfigError:
        return False
    return True


@dataclass
class Noisy:
    """A cost model whose every step takes a random factor more or less."""

    inner: CostModel
    seed: int = 0
    sigma: float = 0.2
    bias: float = 1.1
    name: str = "noisy"
    _rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def duration_s(self, features: Features) -> float:
        factor = float(self._rng.lognormal(0.0, self.sigma))
        return self.inner.duration_s(features) * self.bias * factor


class StandInDevice:
    """A backend that stands in for a real device: it runs one step at a time, and no law says how long it takes.
    After every step ``gap_s`` pass that neither host nor device account for.
    """

    def __init__(
        self, cost_model: CostModel, host: HostTerm, *, seed: int = 0, bias: float = 1.1, gap_s: float = 0.0
    ) -> None:
        self._inner = CostModelBackend(Noisy(cost_model, seed, bias=bias), host)  # type: ignore[arg-type]
        self._gap_s = gap_s

    def launch(self, batch: Batch, now_s: float) -> Execution:
        return self._inner.launch(batch, now_s)

    def wait(self, ticket: Execution) -> Execution:
        return ticket._replace(end_s=ticket.end_s + self._gap_s)

    def host(self, seconds: float) -> None:
        pass

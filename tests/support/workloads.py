"""Random configurations and requests, and a loop that checks the scheduler's rules at every step."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from batchtwin.scheduler import Batch, ConfigError, Request, RequestRefused, Scheduler, SchedulerConfig


@dataclass(frozen=True)
class Workload:
    policy: str
    config: SchedulerConfig
    requests: tuple[tuple[int, int, int], ...]
    """(arrival step, prompt tokens, output tokens)."""
    aborts: tuple[tuple[int, int], ...] = ()
    """(step, index of the request)."""


@dataclass
class Outcome:
    batches: list[Batch] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)


@st.composite
def workloads(draw: st.DrawFn, policies: tuple[str, ...] = ("vllm_v1", "prefill_first")) -> Workload:
    policy = draw(st.sampled_from(policies))
    max_model_len = draw(st.integers(8, 96))
    seqs = draw(st.integers(1, 8))
    chunked = policy == "vllm_v1" and draw(st.booleans())
    least = seqs if chunked else max(seqs, max_model_len)
    block_size = draw(st.sampled_from((1, 2, 3, 4, 8, 16, 32)))
    blocks_for_one = -(-max_model_len // block_size)
    config = SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(least, least + 64)),
        max_model_len=max_model_len,
        block_size=block_size,
        num_gpu_blocks=draw(st.integers(2, 4 * blocks_for_one + 2)),
        enable_chunked_prefill=chunked,
        scheduler_reserve_full_isl=draw(st.booleans()),
        max_num_active_seqs=draw(st.none() | st.integers(1, seqs)),
    )
    request = st.tuples(st.integers(0, 30), st.integers(1, max_model_len + 2), st.integers(1, 40))
    requests = draw(st.lists(request, min_size=1, max_size=20))
    aborts = draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, len(requests) - 1)), max_size=3))
    return Workload(policy, config, tuple(sorted(requests)), tuple(aborts))


def run(workload: Workload, *, max_steps: int = 20_000) -> Outcome:
    """Play a workload to its end, checking rules 1, 2, 4, 5 and 6 at every step."""
    scheduler = Scheduler(workload.config, workload.policy)
    outcome = Outcome()
    pending = list(enumerate(workload.requests))
    t = 0
    while pending or scheduler.has_work:
        while pending and pending[0][1][0] <= t:
            index, (_, prompt, output) = pending.pop(0)
            try:
                scheduler.add(Request(str(index), prompt, output, arrival_s=float(t), index=index))
            except RequestRefused:
                outcome.refused.append(str(index))
        for _, index in [abort for abort in workload.aborts if abort[0] == t]:
            outcome.aborted |= {str(index)} & {r.request_id for r in (*scheduler.waiting, *scheduler.running())}
            scheduler.abort(str(index))
        if scheduler.has_work:
            _check_step(scheduler, workload, outcome)
        t += 1
        assert t < max_steps, "starved for ever"
    scheduler.check_integrity()
    assert scheduler.pool.num_free == workload.config.num_usable_blocks
    return outcome


def _check_step(scheduler: Scheduler, workload: Workload, outcome: Outcome) -> None:
    config = workload.config
    computed = {r.request_id: r.num_computed_tokens for r in scheduler.running()}
    batch = scheduler.schedule()
    scheduler.check_integrity()
    outcome.batches.append(batch)
    rows = list(batch.order())
    assert batch.num_tokens == sum(row.num_tokens for row in rows)
    assert batch.num_tokens + batch.num_padded_tokens <= config.max_num_batched_tokens
    assert batch.num_running <= config.max_num_seqs
    assert batch.num_decode_kv_tokens == sum(r.start for r in rows if r.num_tokens == 1 and r.start > 0)
    assert batch.num_tokens or batch.preempted, "work-conserving: somebody could have run"
    for row in rows:
        if row.request.request_id in computed:
            assert row.start == computed[row.request.request_id]
        assert len(row.block_table) * config.block_size >= row.start + row.num_tokens
    for request in batch.samples():
        outcome.tokens[request.request_id] = outcome.tokens.get(request.request_id, 0) + 1
    outcome.finished += scheduler.complete(batch)
    scheduler.check_integrity()


def check_outcome(workload: Workload, outcome: Outcome) -> None:
    """Nobody lost or duplicated, everybody got exactly what was asked for."""
    ended = [request.request_id for request in outcome.finished]
    assert len(ended) == len(set(ended))
    assert len(ended) + len(outcome.refused) + len(outcome.aborted) == len(workload.requests)
    for request in outcome.finished:
        _, prompt, output = workload.requests[request.index]
        expected = min(output, workload.config.max_model_len - prompt)
        assert outcome.tokens[request.request_id] == expected == request.num_output_tokens


def feasible_config(**knobs: object) -> SchedulerConfig | None:
    try:
        return SchedulerConfig(**knobs)  # type: ignore[arg-type]
    except ConfigError:
        return None

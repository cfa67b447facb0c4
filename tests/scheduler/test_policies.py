"""What each policy decides, on small cases worked out by hand."""

from __future__ import annotations

import pytest

from batchtwin.scheduler import (
    Bound,
    ConfigError,
    InfeasibleBatch,
    Policy,
    Request,
    Scheduler,
    SchedulerConfig,
    Step,
    UnknownPolicy,
    load_policy,
)


def _scheduler(policy: str, requests: list[tuple[int, int]], **knobs: object) -> Scheduler:
    config = SchedulerConfig(**{"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64, **knobs})
    scheduler = Scheduler(config, policy)
    for i, (prompt, output) in enumerate(requests):
        scheduler.add(Request(str(i), prompt, output))
    return scheduler


def test_vllm_v1_serves_decodes_beside_a_chunk() -> None:
    scheduler = _scheduler("vllm_v1", [(10, 5)], max_num_batched_tokens=16)
    scheduler.complete(scheduler.schedule())
    scheduler.add(Request("new", 40, 2))
    batch = scheduler.schedule()
    assert (batch.num_decodes, batch.num_prefill_tokens, batch.bound) == (1, 15, Bound.MAX_NUM_BATCHED_TOKENS)


def test_prefill_first_makes_decodes_stand_still_for_a_waiting_prompt() -> None:
    scheduler = _scheduler("prefill_first", [(10, 5)])
    scheduler.complete(scheduler.schedule())
    scheduler.add(Request("new", 40, 2))
    prefill = scheduler.schedule()
    assert (prefill.num_decodes, prefill.num_prefill_tokens) == (0, 40)
    scheduler.complete(prefill)
    decode = scheduler.schedule()
    assert (decode.num_decodes, decode.num_prefills) == (2, 0)


def test_prefill_first_refuses_a_budget_that_cannot_hold_a_prompt() -> None:
    with pytest.raises(ConfigError, match="never chunks"):
        _scheduler("prefill_first", [], max_num_batched_tokens=32)


def test_static_batch_pads_to_its_longest_prompt_and_computes_finished_rows_on() -> None:
    """Prompts 3, 5 and 8 in a batch of three: 24 slots, 8 of them padding. Outputs 1, 3 and 2: after the prefill step
    row 0 has finished and is computed on in two decode steps, row 2 in one."""
    scheduler = _scheduler("static_batch", [(3, 1), (5, 3), (8, 2)], max_num_seqs=3)
    prefill = scheduler.schedule()
    assert (prefill.num_tokens, prefill.num_padded_tokens, prefill.num_padded_decodes) == (16, 8, 0)
    assert [r.request_id for r in scheduler.complete(prefill)] == ["0"]
    scheduler.add(Request("late", 4, 1))
    first = scheduler.schedule()
    assert (first.num_decodes, first.num_padded_tokens, first.num_padded_kv_tokens) == (2, 1, 3)
    assert first.num_running == 3
    assert [r.request_id for r in scheduler.complete(first)] == ["2"]
    second = scheduler.schedule()
    assert (second.num_decodes, second.num_padded_decodes, second.num_padded_kv_tokens) == (1, 2, 4 + 9)
    assert [r.request_id for r in scheduler.complete(second)] == ["1"]
    assert scheduler.pool.num_free == scheduler.config.num_usable_blocks
    assert [c.request.request_id for c in scheduler.schedule().chunks] == ["late"]


def test_static_batch_over_the_budget_is_infeasible() -> None:
    scheduler = _scheduler("static_batch", [(30, 1), (5, 3), (8, 2)], max_num_seqs=3)
    with pytest.raises(InfeasibleBatch, match=r"3 prompts padded to 30 tokens is 90 slots"):
        scheduler.schedule()


def test_static_batch_that_outgrows_its_blocks_is_infeasible() -> None:
    scheduler = _scheduler("static_batch", [(8, 16), (8, 16)], num_gpu_blocks=7, block_size=4)
    with pytest.raises(InfeasibleBatch, match="outgrew its 6 KV blocks"):  # noqa: PT012  (the step is not known)
        for _ in range(20):
            scheduler.complete(scheduler.schedule())


def test_static_batch_releases_its_rows_when_the_last_runner_is_aborted() -> None:
    scheduler = _scheduler("static_batch", [(3, 1), (5, 9)])
    scheduler.complete(scheduler.schedule())
    scheduler.abort("1")
    assert scheduler.pool.num_free == scheduler.config.num_usable_blocks
    assert not scheduler.has_work


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(UnknownPolicy, match="orca, prefill_first, priority, reserve, sjf, srtf, static_batch, vllm_v1"):
        load_policy("fastest")
    with pytest.raises(UnknownPolicy, match="cannot be loaded"):
        load_policy("no_such_module:Policy")
    with pytest.raises(UnknownPolicy, match="not a subclass"):
        load_policy("json:JSONDecoder")


class OneAtATime(Policy):
    """A user's own policy, as it would stand in a module of theirs."""

    name = "one_at_a_time"

    def schedule(self, step: Step) -> None:
        step.advance_running()
        if not step.num_running and step.waiting:
            step.admit_next()


def test_a_policy_of_the_users_own_drives_the_scheduler() -> None:
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64), OneAtATime())
    for i in range(3):
        scheduler.add(Request(str(i), 10, 3))
    running = []
    while scheduler.has_work:
        batch = scheduler.schedule()
        running.append(batch.num_running)
        scheduler.complete(batch)
    assert running == [1] * 9

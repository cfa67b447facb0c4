"""Corners of ``long_prefill_token_threshold`` and ``prefill_schedule_interval`` in which vLLM 0.33.0 was run."""

from __future__ import annotations

from typing import Any

from batchtwin.scheduler import Batch, Request, Scheduler, SchedulerConfig


def _scheduler(**knobs: Any) -> Scheduler:
    return Scheduler(SchedulerConfig(num_gpu_blocks=100, block_size=4, max_model_len=64, max_num_seqs=4, **knobs))


def _step(scheduler: Scheduler) -> list[tuple[str, int]]:
    """Run one step; (request, tokens) in scheduling order."""
    batch = scheduler.schedule()
    scheduler.complete(batch)
    return _served(batch)


def _served(batch: Batch) -> list[tuple[str, int]]:
    return [(row.request.request_id, row.num_tokens) for row in batch.order()]


def test_adaptive_threshold_of_zero_caps_nothing() -> None:
    scheduler = _scheduler(max_num_batched_tokens=40, long_prefill_token_threshold_adaptive=True)
    scheduler.add(Request("a", 30, 5))
    scheduler.add(Request("b", 30, 5))
    assert _step(scheduler) == [("a", 30), ("b", 10)]  # a fair share would be 20 and 20


def test_adaptive_threshold_is_at_least_the_fair_share_of_the_budget() -> None:
    scheduler = _scheduler(
        max_num_batched_tokens=40, long_prefill_token_threshold=3, long_prefill_token_threshold_adaptive=True
    )
    scheduler.add(Request("a", 30, 5))
    scheduler.add(Request("b", 30, 5))
    assert _step(scheduler) == [("a", 20), ("b", 20)]


def test_prompt_of_one_token_does_not_begin_an_interval() -> None:
    scheduler = _scheduler(max_num_batched_tokens=8, prefill_schedule_interval=4)
    scheduler.add(Request("a", 1, 9))
    assert _step(scheduler) == [("a", 1)]
    scheduler.add(Request("b", 5, 9))
    assert _step(scheduler) == [("a", 1), ("b", 5)]


def test_last_token_of_a_chunked_prompt_is_held_as_any_chunk() -> None:
    """a decodes; b gets 7 of its 8 tokens in step 1, so its last one waits out the two held steps of interval 3."""
    scheduler = _scheduler(max_num_batched_tokens=8, prefill_schedule_interval=3)
    scheduler.add(Request("a", 1, 9))
    assert _step(scheduler) == [("a", 1)]
    scheduler.add(Request("b", 8, 9))
    assert [_step(scheduler) for _ in range(4)] == [
        [("a", 1), ("b", 7)],
        [("a", 1)],
        [("a", 1)],
        [("a", 1), ("b", 1)],
    ]


def test_leaping_forgets_like_stepping_that_somebody_was_left_waiting() -> None:
    """b is left waiting for budget in step 0, which opens the steps after it, and is then aborted; once a step has
    found the queue empty, the interval of step 0 counts again and holds c.
    """
    found = []
    for leaps in (False, True):
        scheduler = _scheduler(max_num_batched_tokens=8, prefill_schedule_interval=6)
        scheduler.add(Request("a", 8, 30))
        scheduler.add(Request("b", 5, 9))
        batch = scheduler.schedule()
        scheduler.complete(batch)
        scheduler.abort("b")
        if leaps:
            assert scheduler.num_steady_steps(batch) >= 1
            scheduler.leap(1)
        else:
            _step(scheduler)
        scheduler.add(Request("c", 5, 9))
        found.append([_step(scheduler) for _ in range(5)])
    assert found[0] == found[1] == [[("a", 1)]] * 4 + [[("a", 1), ("c", 5)]]

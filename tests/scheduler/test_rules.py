"""Rules 1, 2, 4, 5, 6 and 7 of the design over random workloads, for every policy; the checks of each step are those
of ``batchtwin.testing``, whose teeth ``tests/test_testing.py`` tests.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from workloads import Case, cases, check_outcome, play

from batchtwin.scheduler import POLICIES, ConfigError, Request, RequestRefused, Scheduler, SchedulerConfig

QUICK = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
LONG = settings(QUICK, max_examples=5000)


@given(cases())
@QUICK
def test_rules_1_2_4_5_6_hold_at_every_step(case: Case) -> None:
    check_outcome(case, play(case))


@pytest.mark.full
@given(cases())
@LONG
def test_rules_1_2_4_5_6_hold_over_many_examples(case: Case) -> None:
    check_outcome(case, play(case))


@given(cases())
@settings(QUICK, max_examples=50)
def test_rule_7_the_same_workload_gives_the_same_batches(case: Case) -> None:
    assert play(case).decisions == play(case).decisions


def test_random_workloads_contain_what_they_are_meant_to_test() -> None:
    """The strategy is worth something only if every policy and every knob comes up, and does something."""
    seen: Counter[str] = Counter()

    @given(cases())
    @QUICK
    def count(case: Case) -> None:
        played, config = play(case), case.workload.config
        iterations = played.records.iterations
        happened = {
            case.policy: True,
            "preempted": bool(iterations["num_preempted"].any()),
            "swapped": bool(iterations["num_blocks_swapped"].any()),
            "cached": bool(iterations["num_cached_tokens"].any()),
            "recomputed": bool(iterations["num_recomputed_tokens"].any()),
            "padded": bool(iterations["num_padded_tokens"].any()),
            "refused": bool(played.refused),
            "aborted": bool(played.aborted),
            "two in flight": config.async_scheduling,
            "threshold": config.long_prefill_token_threshold > 0,
            "interval": config.prefill_schedule_interval > 1,
            "watermark": config.watermark > 0,
            f"victim {config.victim}": True,
        }
        seen.update(name for name, did in happened.items() if did)

    count()
    victims = [f"victim {rule}" for rule in ("last", "lowest_priority", "cheapest", None)]
    wanted = [*POLICIES, *victims, "preempted", "swapped", "cached", "recomputed", "padded", "refused", "aborted"]
    wanted += ["two in flight", "threshold", "interval", "watermark"]
    assert {name: seen[name] for name in wanted if seen[name] < 3} == {}


def test_rule_1_decode_counts_one_token_whatever_its_context() -> None:
    """100 requests decode with 2,000 tokens of context each: T = 100, 200,000 KV tokens read; of a budget of 2,048
    nothing is squeezed out, but 1,948 prompt tokens may join."""
    config = SchedulerConfig(
        max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=8192, num_gpu_blocks=20_000, block_size=16
    )
    scheduler = Scheduler(config)
    for i in range(100):
        scheduler.add(Request(str(i), 2000, 50 + 200))
    while scheduler.waiting or scheduler.prefilling:
        scheduler.complete(scheduler.schedule())
    contexts = sum(seat.request.num_computed_tokens for seat in scheduler.cohort.seats.values())
    batch = scheduler.schedule()
    assert (batch.num_tokens, batch.num_decodes, batch.num_decode_kv_tokens) == (100, 100, contexts)
    scheduler.complete(batch)
    scheduler.add(Request("new", 5000, 10))
    mixed = scheduler.schedule()
    assert mixed.num_prefill_tokens == 1948
    assert mixed.num_tokens == 2048
    assert mixed.num_decodes == 100


def test_rule_1_one_hundred_decodes_of_2000_tokens_read_200000() -> None:
    """All prompts in one step, so that the contexts are equal."""
    config = SchedulerConfig(
        max_num_seqs=128, max_num_batched_tokens=200_000, max_model_len=8192, num_gpu_blocks=20_000
    )
    scheduler = Scheduler(config)
    for i in range(100):
        scheduler.add(Request(str(i), 2000, 5))
    scheduler.complete(scheduler.schedule())
    batch = scheduler.schedule()
    assert (batch.num_tokens, batch.num_decode_kv_tokens) == (100, 200_000)


def test_rule_4_a_request_that_can_never_fit_is_refused_and_the_knob_is_named() -> None:
    scheduler = Scheduler(SchedulerConfig(max_model_len=256, num_gpu_blocks=9, block_size=16))
    with pytest.raises(RequestRefused, match="max_model_len is 256"):
        scheduler.add(Request("long", 256, 4))
    with pytest.raises(RequestRefused, match=r"needs 9 KV blocks .* only 8 can be used .*: raise num_gpu_blocks"):
        scheduler.add(Request("big", 100, 30))
    scheduler.add(Request("fits", 100, 29))
    with pytest.raises(RequestRefused, match="already here"):
        scheduler.add(Request("fits", 10, 2))
    with pytest.raises(RequestRefused, match="at least 1"):
        scheduler.add(Request("none", 10, 0))


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"max_num_batched_tokens": 64, "max_num_seqs": 128}, r"\(64\) is less than max_num_seqs \(128\)"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 2048}, "less than max_model_len"),
        ({"max_num_seqs": 8, "max_num_active_seqs": 9}, r"max_num_active_seqs is 9"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"num_gpu_blocks": 1}, "block 0 is never handed out"),
    ],
)
def test_knobs_that_contradict_each_other_are_refused(knobs: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SchedulerConfig(**knobs)

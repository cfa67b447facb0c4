"""Small cases that random workloads have found."""

from __future__ import annotations

from functools import partial

from batchtwin.scheduler import Policy, Request, Scheduler, SchedulerConfig, Step, load_policy
from batchtwin.testing.conformance import check_workload
from batchtwin.testing.workloads import Ask, Workload


def _ask(arrival_s: float, prompt: tuple[tuple[str, int, int], ...], output_len: int, client: str = "") -> Ask:
    return Ask(arrival_s, prompt, output_len, output_len, None, 1, 0, client)


class ServesAndTakesBack(Policy):
    """Preempts in the very step that has served."""

    name = "serves_and_takes_back"

    def schedule(self, step: Step) -> None:
        step.admit_next()
        step.preempt(step.running()[0])


def test_at_least_one_token_is_left_to_compute_whatever_is_cached() -> None:
    """A prompt of two blocks is served and preempted in one step: both blocks are known by then, one may be a hit."""
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, block_size=4, enable_prefix_caching=True)
    scheduler = Scheduler(config, ServesAndTakesBack())
    request = Request("a", 8, 4)
    scheduler.add(request)
    scheduler.schedule()
    assert len(scheduler.kv.find(request)) * 4 < request.num_tokens


def test_no_leap_passes_over_a_whole_prompt_that_becomes_a_hit() -> None:
    """B asks A's prompt and A's first four answers; whole prompts only, 3 tokens a step while A decodes. B fits as soon
    as A has filled enough blocks."""
    config = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=74,
        max_model_len=31,
        num_gpu_blocks=26,
        block_size=2,
        enable_chunked_prefill=False,
        enable_prefix_caching=True,
    )
    asks = (_ask(0.0, (("p:0", 0, 16),), 5), _ask(0.5, (("p:0", 0, 16), ("out:0", 0, 4)), 1))
    check_workload(partial(load_policy, "chunk_when_decoding:chunk_tokens=3"), Workload(config, asks, ()))


def test_fair_is_not_leapt_over_since_every_token_may_change_whose_turn_it_is() -> None:
    """While both slots are taken, the client of the running requests is charged, and the other's turn comes."""
    config = SchedulerConfig(
        max_num_seqs=2, max_num_batched_tokens=52, max_model_len=41, num_gpu_blocks=10, block_size=8
    )
    asks = (
        _ask(5.0, (("p:0", 0, 24),), 12),
        _ask(6.0, (("p:1", 0, 6),), 10),
        _ask(6.0, (("p:2", 0, 1),), 1),
        _ask(10.5, (("p:3", 0, 8),), 1, "a"),
        _ask(10.5, (("p:4", 0, 1),), 1, "a"),
    )
    check_workload(partial(load_policy, "fair"), Workload(config, asks, ()))


def test_a_watermark_makes_a_static_batch_smaller() -> None:
    """Three blocks, one of which the watermark keeps: two of three prompts of a block each are admitted together."""
    config = SchedulerConfig(
        max_num_seqs=3, max_num_batched_tokens=48, max_model_len=16, num_gpu_blocks=4, watermark=0.3
    )
    scheduler = Scheduler(config, "static_batch")
    for i, tokens in enumerate((3, 5, 8)):
        scheduler.add(Request(str(i), tokens, 1))
    batch = scheduler.schedule()
    scheduler.check_integrity()
    assert [chunk.num_tokens for chunk in batch.chunks] == [3, 5]
    assert batch.num_padded_tokens == 2


def test_a_static_batch_cuts_no_prompt_whatever_the_threshold() -> None:
    config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=64, long_prefill_token_threshold=4)
    scheduler = Scheduler(config, "static_batch")
    scheduler.add(Request("a", 9, 2))
    scheduler.add(Request("b", 7, 2))
    batch = scheduler.schedule()
    assert [chunk.num_tokens for chunk in batch.chunks] == [9, 7]
    assert batch.num_padded_tokens == 2


def test_a_block_that_a_decode_and_a_prompt_fill_in_one_step_is_the_decodes() -> None:
    """B asks A's prompt and what A has answered and will, three tokens a step beside A's one: in the step in which A
    fills its second block B does as well. The decode is served first, so its block is the one that is found.
    """
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=4, block_size=4, enable_prefix_caching=True)
    scheduler = Scheduler(config, "vllm_v1")
    a = Request("a", 4, 30)
    scheduler.add(a)
    for _ in range(3):  # its prompt, then tokens 4 and 5
        scheduler.complete(scheduler.schedule())
    both = (("p:a", 0, 4), ("out:a", 0, 8))
    b = Request("b", 12, 4, prompt=both)
    scheduler.add(b)
    for _ in range(3):  # A's token 6 and B's 4 to 6, then A's token 7 and B's 7 to 9, then B's last
        scheduler.complete(scheduler.schedule())
    assert b.block_table[0] == a.block_table[0]
    assert b.block_table[1] != a.block_table[1]
    found = scheduler.kv.find(Request("c", 13, 4, prompt=(*both, ("p:c", 0, 1))))
    assert found == [a.block_table[0], a.block_table[1], b.block_table[2]]
    scheduler.check_integrity()

"""Two worked examples from the literature of continuous batching, number by number."""

from __future__ import annotations

import numpy as np

from batchtwin.scheduler import Batch, Request, Scheduler, SchedulerConfig, forward_shapes, padded_rectangle

PROMPTS = [16, 128, 1024, 2048]


def test_static_padding_to_a_fixed_2048_wastes_4976_of_8192_slots() -> None:
    rectangle = padded_rectangle(PROMPTS, 2048)
    assert (rectangle.num_rows, rectangle.length_tokens) == (4, 2048)
    assert (rectangle.num_slots, rectangle.num_real_tokens, rectangle.num_wasted_tokens) == (8192, 3216, 4976)


def test_padding_to_the_longest_of_each_batch_changes_the_waste() -> None:
    """One batch of four: the longest is 2,048, nothing changes. Two batches of two: 2·128 + 2·2,048 = 4,352 slots."""
    assert padded_rectangle(PROMPTS).num_wasted_tokens == 4976
    pairs = [padded_rectangle(PROMPTS[:2]), padded_rectangle(PROMPTS[2:])]
    assert [pair.num_slots for pair in pairs] == [256, 4096]
    assert sum(pair.num_wasted_tokens for pair in pairs) == 4352 - 3216


def test_the_same_four_flattened_are_3216_tokens() -> None:
    scheduler = Scheduler(SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=4))
    for i, tokens in enumerate(PROMPTS):
        scheduler.add(Request(str(i), tokens, 4))
    batch = scheduler.schedule()
    assert batch.num_tokens == 3216
    assert forward_shapes(batch, 16).query_start_loc.tolist() == [0, 16, 144, 1168, 3216]


def _mixed_iteration() -> tuple[Scheduler, Batch]:
    """B (7 prompt tokens) and C (2) have been prefilled; A (5) is new. Blocks are handed out in the order
    10, 21 (B), 7 (C), 5, 18 (A), 33."""
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, num_gpu_blocks=40, block_size=4))
    wanted = [10, 21, 7, 5, 18, 33]
    scheduler.pool._free = [block for block in range(1, 40) if block not in wanted] + wanted[::-1]
    scheduler.add(Request("B", 7, 3))
    scheduler.add(Request("C", 2, 9))
    scheduler.complete(scheduler.schedule())
    scheduler.add(Request("A", 5, 9))
    return scheduler, scheduler.schedule()


def test_one_mixed_iteration_is_laid_out_as_in_the_example() -> None:
    _, batch = _mixed_iteration()
    shapes = forward_shapes(batch, 4)
    assert [request.request_id for request in shapes.requests] == ["B", "C", "A"]
    assert shapes.query_lens.tolist() == [1, 1, 5]
    assert shapes.query_start_loc.tolist() == [0, 1, 2, 7]
    assert shapes.positions.tolist() == [7, 2, 0, 1, 2, 3, 4]
    assert shapes.seq_lens.tolist() == [8, 3, 5]
    assert (shapes.num_decodes, shapes.num_prefills) == (2, 1)
    assert (shapes.num_decode_tokens, shapes.num_prefill_tokens) == (2, 5)
    assert shapes.slot_mapping[0] == 21 * 4 + 3 == 87
    assert shapes.slot_mapping[2:].tolist() == [20, 21, 22, 23, 72]
    assert shapes.sample_rows.tolist() == [0, 1, 6]


def test_a_query_reads_its_own_blocks_and_its_own_past_only() -> None:
    _, batch = _mixed_iteration()
    shapes = forward_shapes(batch, 4)
    assert shapes.readable_blocks(0, 4) == [10, 21]
    assert shapes.readable_blocks(2, 4) == [5, 18]
    a2 = int(shapes.query_start_loc[2]) + 2
    assert list(shapes.visible_positions(a2)) == [0, 1, 2]


def test_a_block_boundary_takes_one_block_and_the_end_returns_exactly_its_own() -> None:
    scheduler, batch = _mixed_iteration()
    scheduler.complete(batch)
    following = scheduler.schedule()
    b = following.members.seats[0]
    assert b.offset + following.clock == 8
    assert b.block_table == [10, 21, 33]
    free = set(scheduler.pool._free)
    assert [request.request_id for request in scheduler.complete(following)] == ["B"]
    assert set(scheduler.pool._free) - free == {10, 21, 33}


def test_a_batch_gives_the_same_arrays_after_later_steps() -> None:
    scheduler, batch = _mixed_iteration()
    before = forward_shapes(batch, 4)
    scheduler.complete(batch)
    for _ in range(6):
        scheduler.complete(scheduler.schedule())
    after = forward_shapes(batch, 4)
    for name in ("input_tokens", "positions", "query_start_loc", "seq_lens", "block_tables", "slot_mapping"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name), err_msg=name)

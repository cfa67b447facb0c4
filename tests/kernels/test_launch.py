"""How decodes are cut into parts, and how the kernels are cut into rows and tiles."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchtwin.kernels.launch import MAX_SPLITS, launch_config, most_splits, num_kv_splits

H100_PROCESSORS = 132


def _splits(lens: list[int], num_kv_heads: int = 8) -> list[int]:
    return num_kv_splits(np.array(lens, dtype=np.int64), num_kv_heads, H100_PROCESSORS).tolist()


def _time(lens: list[int], num_kv_heads: int = 8) -> float:
    """Tokens·heads of KV times the time for one: programs start in order, three resident on a multiprocessor (the
    budget of ``test_compile.py``), and share the memory's bandwidth, none faster than its multiprocessor's share.
    """
    waiting = [
        length / n for length, n in zip(lens, _splits(lens, num_kv_heads), strict=True) for _ in range(n * num_kv_heads)
    ][::-1]
    running: list[float] = []
    now = done = 0.0  # done: by each of the running since the start
    while waiting or running:
        while waiting and len(running) < 3 * H100_PROCESSORS:
            heapq.heappush(running, done + waiting.pop())
        rate = min(1 / H100_PROCESSORS, 1 / len(running))
        end = heapq.heappop(running)
        now, done = now + (end - done) / rate, end
    return now


@pytest.mark.parametrize(
    ("lens", "expected"),
    [
        ([300], [1]),  # nobody gets much fewer than 256 tokens
        ([8192], [32]),  # 8 KV heads: 256 programs of 256 tokens
        ([131_072], [MAX_SPLITS]),  # 1,056 programs wanted: 132 parts of 993 tokens, but for the limit
        ([8192] * 8, [16] * 8),  # 524,288 tokens over 1,056 programs: parts of 497
        ([4096] * 128, [1] * 128),  # 1,024 programs already
        ([100_000] + [500] * 63, [100] + [1] * 63),  # 131,500 · 8 / 1,056 = 997 tokens a part
        ([], []),
    ],
)
def test_parts_follow_from_lengths_heads_and_processors(lens: list[int], expected: list[int]) -> None:
    assert _splits(lens) == expected


@given(st.lists(st.integers(0, 200_000), max_size=300), st.sampled_from([1, 2, 8, 32]), st.sampled_from([1, 108, 132]))
def test_no_batch_of_a_size_exceeds_the_grid_that_is_captured_for_it(
    lens: list[int], num_kv_heads: int, processors: int
) -> None:
    splits = num_kv_splits(np.array(lens, dtype=np.int64), num_kv_heads, processors)
    assert splits.sum() <= most_splits(len(lens), num_kv_heads, processors)
    assert all(1 <= n <= MAX_SPLITS for n in splits.tolist())


@pytest.mark.parametrize("context", [1024, 2048, 4096, 16_384, 131_072])
def test_one_sequence_more_costs_no_cliff(context: int) -> None:
    """vLLM's threshold on the batch size doubled the latency from one size to the next (vllm#48076)."""
    per_sequence = [_time([context] * n) / n for n in range(1, 65)]
    steps = [after / before for before, after in itertools.pairwise(per_sequence)]
    assert max(steps) < 1.3


def test_a_long_sequence_among_short_ones_does_not_run_alone() -> None:
    lens = [100_000] + [500] * 63
    assert _time(lens) < 1.05 * 8 * sum(lens)


def test_unknown_shapes_get_rows_that_hold_their_group() -> None:
    for group in (1, 3, 16, 17, 71, 128):
        for decode in (True, False):
            launch = launch_config(64, group, 2, 2, decode=decode)
            assert launch.block_m >= max(16, group)
            assert launch.block_m & (launch.block_m - 1) == 0

"""Synthetic batches: any mix of decodes and chunks, at any context, without a scheduler that leads there.

Contexts that were never computed hold zeros, which cost what any values cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..scheduler.batch import Batch, Chunk
from ..scheduler.cohort import Members, Seat
from ..scheduler.request import Request
from .errors import KVCacheTooLarge

Design = tuple[list[int], list[tuple[int, int]]]
"""Contexts of decodes; start and length of chunks."""

_BATCHES_A_KIND = 24
_CONTEXT_FLOOR_TOKENS = 16


def design_batch(
    decode_context_tokens: Sequence[int],
    chunks: Sequence[tuple[int, int]],
    *,
    block_size: int,
    num_gpu_blocks: int,
    seed: int = 0,
    prefix: str = "design",
) -> Batch:
    """Decodes over the given contexts, then chunks ``(start, num_tokens)`` that each sample; blocks lie at random.

    The sums are those that a scheduler would fill in. Request ids begin with ``prefix``.
    """
    lengths = [context + 1 for context in decode_context_tokens] + [start + new for start, new in chunks]
    needed = [-(-length // block_size) for length in lengths]
    if sum(needed) > num_gpu_blocks - 1:
        raise KVCacheTooLarge(
            f"A batch over {sum(lengths)} tokens needs {sum(needed)} KV blocks of {block_size} tokens, but only "
            f"{num_gpu_blocks - 1} can be used: raise num_gpu_blocks or ask for less."
        )
    placed = (np.random.default_rng(seed).permutation(num_gpu_blocks - 1)[: sum(needed)] + 1).tolist()
    tables = _cut(placed, needed)
    seats = {
        rank: Seat(Request(f"{prefix}-d{rank}", context, context + 2), rank, context, next(tables))
        for rank, context in enumerate(decode_context_tokens)
    }
    laid_out = [
        Chunk(Request(f"{prefix}-c{i}", start + new, 2), len(seats) + i, start, new, True, next(tables))
        for i, (start, new) in enumerate(chunks)
    ]
    singles = [chunk for chunk in laid_out if chunk.is_decode]
    prefills = [chunk for chunk in laid_out if not chunk.is_decode]
    return Batch(
        step=0,
        clock=0,
        members=Members(seats),
        chunks=laid_out,
        num_running=len(seats) + len(laid_out),
        num_decode_kv_tokens=sum(decode_context_tokens) + sum(chunk.start for chunk in singles),
        num_prefill_tokens=sum(chunk.num_tokens for chunk in prefills),
        num_single_chunks=len(singles),
        num_sampled_chunks=len(laid_out),
        prefill_attention_work=sum(c.num_tokens * (c.start + c.num_tokens / 2) for c in prefills),
        num_free_blocks=num_gpu_blocks - 1 - sum(needed),
    )


def calibration_batches(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    *,
    block_size: int,
    num_gpu_blocks: int,
    seed: int = 0,
    num_each: int = _BATCHES_A_KIND,
) -> list[Batch]:
    """``num_each`` batches each of pure decode, pure prefill and both mixed, within the limits and the KV pool.

    Sizes are spread evenly over their logarithm (from one sequence or token to the limit), contexts drawn for every
    batch anew, so that token count, sequence count, KV length and chunk size vary independently.
    """
    rng = np.random.default_rng(seed)
    designer = _Designer(rng, max_num_seqs, max_num_batched_tokens, max_model_len, num_gpu_blocks - 1, block_size)
    num_seqs = _spread(1, min(max_num_seqs, max_num_batched_tokens), num_each)
    num_tokens = _spread(1, max_num_batched_tokens, num_each)
    shuffled = rng.permutation(num_seqs).tolist()
    designs: list[Design] = [(designer.decodes(seqs), []) for seqs in num_seqs]
    designs += [([], designer.chunks(tokens)) for tokens in num_tokens]
    if min(max_num_seqs, max_num_batched_tokens) > 1:
        designs += [designer.mixed(seqs, tokens) for seqs, tokens in zip(shuffled, num_tokens, strict=True)]
    return [
        design_batch(
            decodes,
            chunks,
            block_size=block_size,
            num_gpu_blocks=num_gpu_blocks,
            seed=seed + i,
            prefix=f"calibration{i}",
        )
        for i, (decodes, chunks) in enumerate(designs)
    ]


class _Designer:
    """Draws contexts and chunks within the limits. Everybody gets an equal share of the blocks as its room, so that
    whatever is drawn fits the pool.
    """

    def __init__(
        self, rng: np.random.Generator, max_seqs: int, budget: int, max_len: int, num_blocks: int, block_size: int
    ) -> None:
        self._rng = rng
        self._max_seqs = max_seqs
        self._budget = budget
        self._max_len = max_len
        self._num_blocks = num_blocks
        self._block_size = block_size

    def decodes(self, num_seqs: int, pool_share: float = 1.0) -> list[int]:
        """Contexts of up to ``num_seqs`` decodes, around a common level."""
        blocks = int(pool_share * self._num_blocks)
        num_seqs = max(1, min(num_seqs, blocks // 2))
        longest = max(1, self._room(blocks, num_seqs) - 1)
        level = self._log_uniform(min(_CONTEXT_FLOOR_TOKENS, longest), longest)
        drawn = np.rint(level * self._rng.uniform(0.5, 1.5, num_seqs))
        return [int(tokens) for tokens in np.clip(drawn, 1, longest)]

    def chunks(self, num_tokens: int, num_others: int = 0, pool_share: float = 1.0) -> list[tuple[int, int]]:
        """Up to ``num_tokens`` tokens in chunks of nearly equal size, about half of them over earlier context."""
        blocks = int(pool_share * self._num_blocks)
        most = max(1, min(self._max_seqs - num_others, blocks // 2))
        num_tokens = max(1, min(num_tokens, most * self._max_len, blocks // 2 * self._block_size))
        fewest = -(-num_tokens // self._max_len)
        count = max(fewest, int(self._log_uniform(fewest, max(fewest, min(most, num_tokens // 16)))))
        room = self._room(blocks, count)
        sizes = [num_tokens // count + (i < num_tokens % count) for i in range(count)]
        return [(self._start(size, room), size) for size in sizes]

    def mixed(self, num_seqs: int, num_tokens: int) -> Design:
        """Decodes beside at least one chunk, each kind in half of the pool."""
        decodes = self.decodes(min(num_seqs, self._max_seqs - 1, self._budget - 1), 0.5)
        return decodes, self.chunks(min(num_tokens, self._budget - len(decodes)), len(decodes), 0.5)

    def _room(self, num_blocks: int, num_seqs: int) -> int:
        return min(self._max_len, num_blocks // num_seqs * self._block_size)

    def _start(self, size: int, room: int) -> int:
        """Context before a chunk. One token over context would be a decode, so a chunk of one has none."""
        if room - size < 1 or size == 1 or self._rng.random() < 0.5:
            return 0
        return int(self._log_uniform(1, room - size))

    def _log_uniform(self, low: float, high: float) -> float:
        return float(np.exp(self._rng.uniform(np.log(low), np.log(high))))


def _spread(low: int, high: int, count: int) -> list[int]:
    """``count`` whole numbers from ``low`` to ``high``, evenly spaced in their logarithm."""
    return [round(size) for size in np.geomspace(low, max(low, high), count)]


def _cut(blocks: list[int], sizes: list[int]) -> Iterator[list[int]]:
    at = 0
    for size in sizes:
        yield blocks[at : at + size]
        at += size

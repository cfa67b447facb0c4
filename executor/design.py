"""Synthetic batches: any mix of decodes and chunks, at any context, without a scheduler that leads there.

Contexts that were never computed hold zeros, which cost what any values cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..scheduler.batch import Batch, Chunk
from ..scheduler.cohort import Seat
from ..scheduler.request import Request
from .errors import KVCacheTooLarge

_BATCHES_A_KIND = 16
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
        seats=seats,
        ranks=list(seats),
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
    designer = _Designer(rng, max_num_batched_tokens, max_model_len, (num_gpu_blocks - 1) * block_size, block_size)
    num_seqs = _spread(1, min(max_num_seqs, max_num_batched_tokens), num_each)
    num_tokens = _spread(2, max_num_batched_tokens, num_each)
    shuffled = rng.permutation(num_seqs).tolist()
    designs: list[tuple[list[int], list[tuple[int, int]]]] = [(designer.decodes(n), []) for n in num_seqs]
    designs += [([], designer.chunks(n, max_num_seqs)) for n in num_tokens]
    designs += [designer.mixed(seqs, tokens, max_num_seqs) for seqs, tokens in zip(shuffled, num_tokens, strict=True)]
    return [
        design_batch(
            decodes, chunks, block_size=block_size, num_gpu_blocks=num_gpu_blocks, seed=seed + i, prefix=f"calibration{i}"
        )
        for i, (decodes, chunks) in enumerate(designs)
    ]


class _Designer:
    """Draws contexts and chunks that fit ``max_model_len``, the token budget and a KV pool of ``capacity`` tokens."""

    def __init__(
        self, rng: np.random.Generator, max_num_batched_tokens: int, max_model_len: int, capacity: int, block_size: int
    ) -> None:
        self._rng = rng
        self._budget = max_num_batched_tokens
        self._max_len = max_model_len
        self._capacity = capacity
        self._block_size = block_size

    def decodes(self, num_seqs: int, share: float = 1.0) -> list[int]:
        """Contexts of ``num_seqs`` decodes around a common level, using at most ``share`` of the pool."""
        room = int(share * self._capacity) // num_seqs - self._block_size
        longest = max(1, min(self._max_len - 1, room))
        level = self._log_uniform(min(_CONTEXT_FLOOR_TOKENS, longest), longest)
        drawn = np.rint(level * self._rng.uniform(0.5, 1.5, num_seqs))
        return [int(tokens) for tokens in np.clip(drawn, 1, longest)]

    def chunks(self, num_tokens: int, max_chunks: int, share: float = 1.0) -> list[tuple[int, int]]:
        """Chunks of ``num_tokens`` together, half of them over earlier context."""
        num_tokens = min(num_tokens, int(share * self._capacity) // 2)
        fewest = -(-num_tokens // self._max_len)
        most = min(max_chunks, max(fewest, num_tokens // 16))
        count = int(self._log_uniform(fewest, max(fewest, most)))
        room = int(share * self._capacity) // count - self._block_size
        sizes = [len(part) for part in np.array_split(np.arange(num_tokens), count)]
        return [(self._start(size, room), size) for size in sizes if size]

    def mixed(self, num_seqs: int, num_tokens: int, max_num_seqs: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Decodes and at least one chunk, together within sequences and budget."""
        num_decodes = max(1, min(num_seqs, max_num_seqs - 1, self._budget - 2))
        num_new = max(2, min(num_tokens, self._budget - num_decodes))
        decodes = self.decodes(num_decodes, 0.5)
        return decodes, self.chunks(num_new, max(1, max_num_seqs - num_decodes), 0.5)

    def _start(self, size: int, room: int) -> int:
        longest = min(self._max_len, room) - size
        if longest < 1 or self._rng.random() < 0.5:
            return 0
        return int(self._log_uniform(1, longest))

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

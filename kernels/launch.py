"""How the attention kernels are cut, by rule and not by tuning at run time; needs neither torch nor triton."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

MAX_SPLITS = 128
"""Most parts that one sequence's KV is cut into: enough to give each of 132 multiprocessors one."""
MIN_SPLIT_TOKENS = 256
"""A part with fewer tokens would cost more in its float32 result and its merging than it reads."""
PROGRAMS_PER_PROCESSOR = 8
"""Three decode programs are resident on a multiprocessor; eight a head leave the last, partly filled round short."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel's cut: ``block_m`` rows (query heads × tokens) against tiles of ``tile`` tokens."""

    block_m: int
    tile: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None
    """A thread's, told to the assembler: left to itself it stops at 128 and spills 4 bytes in some decode variants,
    while shared memory keeps the blocks on a multiprocessor to three, for each of which 168 are there; in float32
    prefill it stops at 80, and spills 8 to 16 under a window and a cap."""

    @property
    def options(self) -> dict[str, int]:
        """The keywords of a Triton launch that are no arguments of the kernel."""
        bound = {"maxnreg": self.max_registers} if self.max_registers else {}
        return {"num_warps": self.num_warps} | bound


def padded(size: int) -> int:
    """The power of two, at least 16, that holds ``size``: what ``tl.arange`` and ``tl.dot`` take."""
    return max(16, 1 << (size - 1).bit_length())


def launch_config(
    head_dim: int, group: int, query_bytes: int, cache_bytes: int, *, decode: bool, architecture: str = "sm_90"
) -> Launch:
    """Rows, tile, warps and stages for ``group`` query heads a KV head, queries of ``query_bytes`` an element and a
    cache of ``cache_bytes``.

    ``architecture`` is "sm_80" (and what lies below sm_90), "sm_90" (and above) or "gfx942". What fits without
    register spills and within a block's shared memory there, as compiled by ``tests/kernels``; no GPU has timed it.
    Five stages, since the compiler spends two on the page table: keys and values are then loaded two tiles ahead,
    with three or four only one.
    """
    rows, dims = padded(group), padded(head_dim)
    stages = 1 if architecture == "gfx942" else 5
    if query_bytes == 4:  # exact float32 products run outside the tensor cores and live in registers
        bound = None if decode or dims > 128 or architecture == "gfx942" else 128
        return Launch(rows if decode or dims > 128 else max(rows, 32), 16, 8, min(stages, 2), bound)
    tile = max(32, 8192 // max(64, dims))  # 16 KiB of keys, whatever the head size
    if decode and (rows > 32 or cache_bytes < query_bytes):  # converting a tile of fp8 takes as many registers again
        return Launch(rows, tile, 8, stages)
    if decode:
        return Launch(rows, tile, 4, stages, None if architecture == "gfx942" else 168)
    tall = 64 if dims > 128 or (dims > 64 and architecture == "sm_80") else 128
    wide = 16 if dims > 128 and architecture == "gfx942" else 64  # 32 spill up to 140 bytes under a window and a cap
    return Launch(max(rows, tall), min(tile, wide), 8, stages)


def merge_tile(head_dim: int) -> int:
    """Parts that a merging program loads at a time: at most 16 KiB, which are 32 registers a thread."""
    return min(32, 4096 // padded(head_dim))


def num_kv_splits(kv_lens: IntArray, num_kv_heads: int, num_processors: int) -> IntArray:
    """[S] into how many parts each sequence's ``kv_lens`` tokens (windows applied) are cut.

    Parts of all sequences are about equally long, so that a long one among short ones does not run alone at the end;
    as many as give every multiprocessor ``PROGRAMS_PER_PROCESSOR`` programs, none under ``MIN_SPLIT_TOKENS``.
    """
    total = int(kv_lens.sum()) * num_kv_heads
    part = max(MIN_SPLIT_TOKENS, -(-total // (PROGRAMS_PER_PROCESSOR * num_processors)))
    return np.clip((2 * kv_lens + part) // (2 * part), 1, MAX_SPLITS)


def most_splits(num_seqs: int, num_kv_heads: int, num_processors: int) -> int:
    """An upper bound on the sum of ``num_kv_splits`` over ``num_seqs`` sequences of any lengths: the size of a grid
    that is captured once and replayed with other lengths.
    """
    return num_seqs + -(-PROGRAMS_PER_PROCESSOR * num_processors // num_kv_heads)

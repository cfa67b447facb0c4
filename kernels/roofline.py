"""What each kernel must move and compute, counted from shapes, and the least time that it takes: no measurement.

The floor of a launch is the largest of three times: bytes over memory bandwidth, products over the tensor cores' rate,
and exponentials over that of the special function units. Launching itself is not in it. Needs neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .launch import IntArray, launch_config, num_kv_splits

Row = tuple[int, int]
"""(context before this step, new tokens) of one sequence."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's peak rates. ``flops_per_s`` is that of dense 16-bit products."""

    name: str
    memory_bytes_per_s: float
    flops_per_s: float
    exps_per_s: float
    num_processors: int


_HOPPER_EXPS_PER_S = 3.9e12  # Shah et al., FlashAttention-3, arXiv:2407.08608, section 2: 3.9 TFLOPS
GPUS = {
    # NVIDIA H100 (SXM5) and H200 (SXM) data sheets: 3.35 and 4.8 TB/s; 1,979 TFLOPS of 16 bits with sparsity, half
    # of it dense; 132 multiprocessors each.
    "H100": Gpu("H100", 3.35e12, 989.4e12, _HOPPER_EXPS_PER_S, 132),
    "H200": Gpu("H200", 4.8e12, 989.4e12, _HOPPER_EXPS_PER_S, 132),
}


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """A layer's heads, and the bytes of an element of queries and outputs and of the KV cache."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    query_bytes: int = 2
    cache_bytes: int = 2
    window: int = 0

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def kv_token_bytes(self) -> int:
        """A token's keys and values in one layer's cache."""
        return 2 * self.num_kv_heads * self.head_dim * self.cache_bytes


@dataclass(frozen=True, slots=True)
class Work:
    """What one layer's launch must do, and what the kernel's tiles do of it."""

    bytes: int
    """Moved to and from memory if everything needed is moved once."""
    flops: int
    """Of the two matrix products, over the visible pairs of tokens."""
    exps: int
    """Exponentials, one a visible score."""
    part_bytes: int
    """Float32 results of the parts of sequences that are cut, written and read again: avoidable, so in no floor."""
    tile_bytes: int
    """KV bytes that the programs load, through the L2 cache: each block of query rows reads its whole context."""
    tile_flops: int
    """With the masked parts of tiles and the padded rows of blocks."""

    def floor_s(self, gpu: Gpu) -> float:
        """Seconds under which no kernel can be."""
        return max(self.times_s(gpu).values())

    def bound(self, gpu: Gpu) -> str:
        """Which of the three times is the floor."""
        times = self.times_s(gpu)
        return max(times, key=times.__getitem__)

    def times_s(self, gpu: Gpu) -> dict[str, float]:
        """Seconds by "memory", "products" and "exponentials", each as if alone."""
        return {
            "memory": self.bytes / gpu.memory_bytes_per_s,
            "products": self.flops / gpu.flops_per_s,
            "exponentials": self.exps / gpu.exps_per_s,
        }


def write_kv_work(num_tokens: int, shape: AttentionShape) -> Work:
    """Keys and values read once in the queries' type and stored in the cache's, and a slot of 4 bytes a token."""
    elements = 2 * num_tokens * shape.num_kv_heads * shape.head_dim
    moved = elements * (shape.query_bytes + shape.cache_bytes) + 4 * num_tokens
    return Work(moved, 0, 0, 0, 0, 0)


def decode_work(kv_lens: Sequence[int], shape: AttentionShape, gpu: Gpu) -> Work:
    """One new token each over ``kv_lens`` tokens (this one included), cut into parts as for ``gpu``."""
    seen = _windowed(np.asarray(kv_lens, dtype=np.int64), shape.window)
    num_kv_tokens = int(seen.sum())
    splits = num_kv_splits(seen, shape.num_kv_heads, gpu.num_processors)
    launch = launch_config(shape.head_dim, shape.group, shape.query_bytes, shape.cache_bytes, decode=True)
    query_bytes = 2 * seen.size * shape.num_q_heads * shape.head_dim * shape.query_bytes
    part_bytes = 2 * 4 * int(splits[splits > 1].sum()) * shape.num_q_heads * (shape.head_dim + 1)
    tiles = int((-(-seen // launch.tile)).sum())
    return Work(
        bytes=num_kv_tokens * shape.kv_token_bytes + query_bytes,
        flops=4 * num_kv_tokens * shape.num_q_heads * shape.head_dim,
        exps=num_kv_tokens * shape.num_q_heads,
        part_bytes=part_bytes,
        tile_bytes=num_kv_tokens * shape.kv_token_bytes,
        tile_flops=4 * tiles * launch.tile * launch.block_m * shape.num_kv_heads * shape.head_dim,
    )


def prefill_work(rows: Sequence[Row], shape: AttentionShape) -> Work:
    """New tokens over their context, causal, each row of ``rows`` one sequence."""
    launch = launch_config(shape.head_dim, shape.group, shape.query_bytes, shape.cache_bytes, decode=False)
    block_q = launch.block_m // shape.group
    pairs = tile_tokens = tiles = needed = 0
    for context, new in rows:
        pairs += int(_windowed(np.arange(context + 1, context + new + 1), shape.window).sum())
        needed += min(context + new, shape.window + new - 1) if shape.window else context + new
        first = np.arange(context, context + new, block_q)
        last = np.minimum(first + block_q, context + new)
        begin = np.maximum(0, first - shape.window + 1) // launch.tile * launch.tile if shape.window else 0 * first
        tile_tokens += int((last - begin).sum())
        tiles += int((-(-(last - begin) // launch.tile)).sum())
    num_tokens = sum(new for _, new in rows)
    return Work(
        bytes=needed * shape.kv_token_bytes + 2 * num_tokens * shape.num_q_heads * shape.head_dim * shape.query_bytes,
        flops=4 * pairs * shape.num_q_heads * shape.head_dim,
        exps=pairs * shape.num_q_heads,
        part_bytes=0,
        tile_bytes=tile_tokens * shape.kv_token_bytes,
        tile_flops=4 * tiles * launch.tile * launch.block_m * shape.num_kv_heads * shape.head_dim,
    )


def _windowed(lens: IntArray, window: int) -> IntArray:
    return np.minimum(lens, window) if window else lens

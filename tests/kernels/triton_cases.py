"""What the Triton kernels are interpreted on: named batches, a small grid for every run and a long one.

Sizes are awkward on purpose: lengths of 1, a page and a tile more or less one, primes, thousands.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch


class KernelCase(NamedTuple):
    """One call of both kernels (or of the prefill kernel alone) on a batch of ``rows`` (context, new tokens)."""

    rows: list[tuple[int, int]]
    num_decodes: int = 0
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    window: int = 0
    softcap: float = 0.0
    fp8: bool = False
    num_processors: int = 132
    """So few that sequences are not cut, or so many that they are."""

    @property
    def tolerance(self) -> float:
        """Of the RMS ratio: float32's rounding, or that of half-precision weights and outputs (2⁻¹¹ each)."""
        return 1e-3 if self.dtype == torch.float16 else 2e-6


AROUND_A_PAGE = [(0, 1), (14, 1), (15, 1), (16, 1), (30, 1), (31, 1)]
AROUND_A_TILE = [(62, 1), (63, 1), (64, 1), (126, 1), (127, 1), (128, 1)]
MIXED = [(9, 1), (33, 1), (130, 1), (0, 5), (17, 18), (0, 1), (61, 3)]

SMALL: dict[str, KernelCase] = {
    "decodes around a page": KernelCase(AROUND_A_PAGE, 6),
    "decodes around a tile": KernelCase(AROUND_A_TILE, 6, num_kv_heads=1, head_dim=128),
    "decodes of prime lengths, cut": KernelCase([(768, 1), (12, 1), (1008, 1)], 3, num_kv_heads=1),
    "a decode over thousands, cut unevenly": KernelCase([(4098, 1), (2, 1)], 2, num_kv_heads=1),
    "a decode over thousands, uncut": KernelCase([(2052, 1)], 1, num_kv_heads=1, num_processors=1),
    "a cut decode in a window": KernelCase([(1300, 1), (4, 1), (430, 1)], 3, num_kv_heads=1, window=700),
    "a window below a tile": KernelCase([(50, 1), (4, 1), (130, 1)], 3, window=33),
    "a window of one token": KernelCase([(50, 1), (0, 3)], 1, window=1),
    "decodes with a soft cap": KernelCase([(40, 1), (77, 1)], 2, softcap=2.0),
    "groups of 3, head size 80": KernelCase([(22, 1), (40, 1), (5, 11)], 2, num_heads=6, head_dim=80),
    "groups of 7, head size 96": KernelCase([(22, 1), (5, 11)], 1, num_heads=14, head_dim=96),
    "a head of 24 in blocks of 4": KernelCase([(22, 1), (5, 11)], 1, head_dim=24, block_size=4),
    "pages larger than a tile": KernelCase([(300, 1), (257, 1), (255, 9)], 2, num_kv_heads=1, block_size=256),
    "a page of one token": KernelCase([(6, 1)], 1, block_size=1),
    "prompts around a page": KernelCase([(0, 1), (0, 15), (0, 16), (0, 17)]),
    "a prompt of several query blocks": KernelCase([(0, 131)], num_heads=2, num_kv_heads=1, head_dim=128),
    "chunks over context": KernelCase([(13, 7), (32, 31), (1, 2)], num_heads=2),
    "a chunk over thousands": KernelCase([(1999, 5)], num_heads=2, num_kv_heads=1),
    "a chunk in a window": KernelCase([(200, 67)], num_kv_heads=1, window=61),
    "a chunk with a soft cap in a window": KernelCase([(70, 37)], num_kv_heads=1, softcap=3.0, window=40),
    "one query head a KV head": KernelCase([(0, 19), (40, 90)], num_heads=2),
    "sixteen query heads a KV head": KernelCase([(8, 1), (3, 18)], 1, num_heads=16, num_kv_heads=1),
    "decodes, then chunks": KernelCase(MIXED, 3),
    "all by the prefill kernel": KernelCase(MIXED),
    "half precision": KernelCase(MIXED, 3, dtype=torch.float16),
    "head size 256 in half precision": KernelCase([(40, 1), (9, 8)], 1, head_dim=256, dtype=torch.float16),
    "an fp8 cache": KernelCase(MIXED, 3, fp8=True),
    "an fp8 cache under half precision, cut": KernelCase(
        [(700, 1), (3, 9)], 1, num_kv_heads=1, dtype=torch.float16, fp8=True
    ),
}


def full() -> dict[str, KernelCase]:
    """Every head size × page × kind of batch, in float32 and half precision, plain, windowed, capped and fp8."""
    batches = {
        "decodes": ([*AROUND_A_PAGE, (256, 1), (640, 1)], 8),
        "chunks": ([(0, 33), (15, 2), (97, 48), (255, 3)], 0),
        "mixed": ([*MIXED, (509, 1)][::-1][:1] + MIXED, 4),
    }
    kinds: dict[str, dict[str, object]] = {
        "plain": {},
        "half": {"dtype": torch.float16},
        "window": {"window": 45},
        "soft cap": {"softcap": 5.0, "window": 130},
        "fp8": {"fp8": True},
    }
    return {
        f"{batch}, {kind}, head {head_dim}, page {block_size}": KernelCase(
            rows, num_decodes, num_heads=3, num_kv_heads=1, head_dim=head_dim, block_size=block_size, **options
        )
        for (batch, (rows, num_decodes)), (kind, options), head_dim, block_size in itertools.product(
            batches.items(), kinds.items(), (64, 80, 96, 128, 256), (16, 32, 64, 256)
        )
    }

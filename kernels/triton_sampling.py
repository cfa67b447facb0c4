# mypy: allow-untyped-defs, allow-incomplete-defs
"""Drawing tokens in Triton: one program a row reads its logits once, and nothing else of their size is made.

The noise is that of ``executor/sampling.py``, which does the same in PyTorch and is this kernel's reference.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .errors import KernelError, explained

NOISE_BITS = 23
TILE, NUM_WARPS = 2048, 8
_SHIFT = tl.constexpr(32 - NOISE_BITS)
_STEP = tl.constexpr(2.0**-NOISE_BITS)


@triton.jit
def _mixed(bits):
    """The finaliser of MurmurHash3, on uint32."""
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35
    return bits ^ (bits >> 16)


@triton.jit(do_not_specialize=["vocab_size"])  # type: ignore[untyped-decorator]
def draw_kernel(logits, keys, temperatures, tokens, stride_row, vocab_size, tile: tl.constexpr):
    """Grid (rows). Each lane keeps the first of its largest, and of lanes that tie the lowest token wins."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    key = tl.load(keys + row)
    low = (key & 0xFFFFFFFF).to(tl.uint32)
    high = ((key >> 32) & 0xFFFFFFFF).to(tl.uint32)
    greedy = temperature == 0.0
    divisor = tl.where(greedy, 1.0, temperature)
    largest = tl.full([tile], float("-inf"), tl.float32)
    place = tl.zeros([tile], tl.int32)
    for start in tl.range(0, vocab_size, tile):
        token = start + tl.arange(0, tile)
        inside = token < vocab_size
        loaded = tl.load(logits + row * stride_row + token, mask=inside, other=float("-inf"))
        score = loaded.to(tl.float32) / divisor
        bits = _mixed(_mixed((token.to(tl.uint32) * 0x9E3779B1) ^ low) ^ high) >> _SHIFT
        uniform = (bits.to(tl.float32) + 0.5) * _STEP
        score = tl.where(greedy, score, score - tl.log(-tl.log(uniform)))
        better = score > largest
        largest = tl.where(better, score, largest)
        place = tl.where(better, token, place)
    first = tl.min(tl.where(largest == tl.max(largest, axis=0), place, vocab_size), axis=0)
    tl.store(tokens + row, first.to(tl.int64))


def draw(logits: Tensor, keys: Tensor, temperature: Tensor) -> Tensor:
    """[n] int64 tokens from ``logits`` [n, vocab], whose rows lie in one piece, with int64 ``keys`` and float32
    ``temperature`` [n, 1] (0: the most probable).
    """
    if logits.stride(1) != 1:
        raise KernelError("Drawing needs the logits of a row side by side: make them contiguous.")
    tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    with explained("draw", lambda: f"{logits.shape[1]} logits of {logits.dtype} a row"):
        draw_kernel[(logits.shape[0],)](
            logits,
            keys.contiguous(),
            temperature.contiguous(),
            tokens,
            logits.stride(0),
            logits.shape[1],
            tile=TILE,
            num_warps=NUM_WARPS,
        )
    return tokens

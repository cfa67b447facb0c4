# mypy: allow-untyped-defs, allow-incomplete-defs
"""The KV write in Triton: one program a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .errors import KernelError, explained
from .launch import padded
from .reference import FP8_LIMIT

_FP8_LIMIT = tl.constexpr(FP8_LIMIT)


@triton.jit  # type: ignore[untyped-decorator]
def _stored(loaded, inverse_scale, cache, quantised: tl.constexpr):
    """As the cache stores it: fp8 by the scale of its tensor, and never infinite."""
    if quantised:
        scaled = loaded.to(tl.float32) * inverse_scale
        loaded = tl.minimum(tl.maximum(scaled, -_FP8_LIMIT), _FP8_LIMIT)
    return loaded.to(cache.dtype.element_ty)


@triton.jit(do_not_specialize_on_alignment=["slot_mapping"])  # type: ignore[untyped-decorator]
def write_kv_kernel(
    key,
    value,
    key_cache,
    value_cache,
    slot_mapping,
    inverse_key_scale,
    inverse_value_scale,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_block,
    stride_slot,
    stride_kv_head,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    padded_row: tl.constexpr,
    quantised: tl.constexpr,
):
    """A row is all KV heads of a token; a slot below 0 is a padding token's, which stays unwritten."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        columns = tl.arange(0, padded_row)
        mask = columns < num_kv_heads * head_dim
        head = (columns // head_dim).to(tl.int64)
        dim = columns % head_dim
        target = slot // block_size * stride_block + slot % block_size * stride_slot + head * stride_kv_head + dim
        keys = tl.load(key + token * stride_key_token + head * stride_key_head + dim, mask=mask, other=0.0)
        tl.store(key_cache + target, _stored(keys, inverse_key_scale, key_cache, quantised), mask=mask)
        values = tl.load(value + token * stride_value_token + head * stride_value_head + dim, mask=mask, other=0.0)
        tl.store(value_cache + target, _stored(values, inverse_value_scale, value_cache, quantised), mask=mask)


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Store ``key`` and ``value`` [T, n_kv_heads, head_dim], of any strides over tokens and heads, at ``slot_mapping``
    [T]. An fp8 cache stores them divided by their scale, clipped to ±448.
    """
    if not key.shape[0]:
        return
    if key_cache.stride() != value_cache.stride() or key_cache.stride(3) != 1:
        raise KernelError(
            "The KV write needs key and value caches of the same strides, elements of a head side by side."
        )
    key, value = (tensor if tensor.stride(2) == 1 else tensor.contiguous() for tensor in (key, value))
    num_kv_heads, head_dim = key.shape[1:]
    with explained("write_kv", lambda: f"{num_kv_heads} KV heads of size {head_dim} into {key_cache.dtype}"):
        write_kv_kernel[(key.shape[0],)](
            key,
            value,
            key_cache,
            value_cache,
            slot_mapping,
            1.0 / key_scale,
            1.0 / value_scale,
            key.stride(0),
            key.stride(1),
            value.stride(0),
            value.stride(1),
            key_cache.stride(0),
            key_cache.stride(1),
            key_cache.stride(2),
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_size=key_cache.shape[1],
            padded_row=padded(num_kv_heads * head_dim),
            quantised=key_cache.dtype == torch.float8_e4m3fn,
            num_warps=4,
        )

# mypy: allow-untyped-defs, allow-incomplete-defs
"""The KV write in Triton: one program a token."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def write_kv_kernel(
    key,
    value,
    key_cache,
    value_cache,
    slot_mapping,
    stride_key_token,
    stride_value_token,
    stride_cache_slot,
    row_size: tl.constexpr,
    padded_row_size: tl.constexpr,
):
    """A row is all KV heads of a token: ``row_size`` contiguous elements in the input as in the cache."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    columns = tl.arange(0, padded_row_size)
    mask = columns < row_size
    keys = tl.load(key + token * stride_key_token + columns, mask=mask)
    tl.store(key_cache + slot * stride_cache_slot + columns, keys, mask=mask)
    values = tl.load(value + token * stride_value_token + columns, mask=mask)
    tl.store(value_cache + slot * stride_cache_slot + columns, values, mask=mask)


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store ``key`` and ``value`` [T, n_kv_heads, head_dim] at ``slot_mapping`` [T]."""
    row_size = key.shape[1] * key.shape[2]
    if not key.shape[0]:
        return
    key, value = _rows(key), _rows(value)
    write_kv_kernel[(key.shape[0],)](
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        key.stride(0),
        value.stride(0),
        key_cache.stride(1),
        row_size=row_size,
        padded_row_size=triton.next_power_of_2(row_size),
        num_warps=4,
    )


def _rows(tensor: Tensor) -> Tensor:
    """With the heads of a token contiguous (the tokens may be strided)."""
    contiguous = tensor.stride(2) == 1 and tensor.stride(1) == tensor.shape[2]
    return tensor if contiguous else tensor.contiguous()

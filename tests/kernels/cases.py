"""Awkward paged batches, shared by the kernel tests and by the worker that runs Triton's interpreter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class PagedCase(NamedTuple):
    """Inputs of one attention call. Whatever no sequence owns is NaN, the tails of its last pages included."""

    query: Tensor
    key: Tensor
    value: Tensor
    key_cache: Tensor
    value_cache: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    slot_mapping: Tensor
    scale: float


def paged_case(
    rows: list[tuple[int, int]],
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> PagedCase:
    """``rows``: (context before this step, new tokens) of each sequence, in layout order."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [start + new for start, new in rows]
    needed = [-(-length // block_size) for length in lengths]
    num_blocks = sum(needed) + 5
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    key_cache = torch.full(shape, float("nan"), dtype=dtype)
    value_cache = torch.full(shape, float("nan"), dtype=dtype)
    free = iter((torch.randperm(num_blocks - 1, generator=generator) + 1).tolist())
    tables = torch.zeros((len(rows), max(needed)), dtype=torch.int64)
    keys, values, slots = [], [], []
    for s, (start, _) in enumerate(rows):
        tables[s, : needed[s]] = torch.tensor([next(free) for _ in range(needed[s])])
        at = torch.arange(lengths[s])
        own = tables[s, at // block_size] * block_size + at % block_size
        key = torch.randn((lengths[s], num_kv_heads, head_dim), generator=generator).to(dtype)
        value = torch.randn((lengths[s], num_kv_heads, head_dim), generator=generator).to(dtype)
        key_cache.flatten(0, 1)[own] = key
        value_cache.flatten(0, 1)[own] = value
        keys.append(key[start:])
        values.append(value[start:])
        slots.append(own[start:])
    num_tokens = sum(new for _, new in rows)
    starts = torch.tensor([0, *torch.cumsum(torch.tensor([new for _, new in rows]), 0).tolist()])
    return PagedCase(
        query=torch.randn((num_tokens, num_heads, head_dim), generator=generator).to(dtype),
        key=torch.cat(keys),
        value=torch.cat(values),
        key_cache=key_cache,
        value_cache=value_cache,
        query_start_loc=starts,
        seq_lens=torch.tensor(lengths),
        block_tables=tables,
        slot_mapping=torch.cat(slots),
        scale=head_dim**-0.5,
    )


def rms_ratio(actual: Tensor, expected: Tensor) -> float:
    """Root mean square of the error over that of the expected values; NaN if anything read a poisoned place."""
    error = (actual.float() - expected.float()).square().mean().sqrt()
    return float(error / expected.float().square().mean().sqrt())


class Error(NamedTuple):
    """How far a result is off."""

    rms_ratio: float
    worst: float
    """Largest error of an element over the root mean square of the expected values."""
    worst_at: list[int]
    """Its indices: token, head, dimension."""


def error(actual: Tensor, expected: Tensor) -> Error:
    off = (actual.float() - expected.float()).abs() / expected.float().square().mean().sqrt()
    flat = int(off.nan_to_num(nan=float("inf")).argmax())
    return Error(
        rms_ratio(actual, expected), float(off.flatten()[flat]), [int(i) for i in np.unravel_index(flat, off.shape)]
    )

"""The naive references: what the fast kernels must equal. Written to be read, not to be quick."""

from __future__ import annotations

import torch
from torch import Tensor


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store the new ``key`` and ``value`` [T, n_kv_heads, head_dim] at ``slot_mapping`` [T]."""
    block_size = key_cache.shape[1]
    for row, slot in enumerate(slot_mapping.tolist()):
        block, offset = divmod(slot, block_size)
        key_cache[block, offset] = key[row]
        value_cache[block, offset] = value[row]


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    window: int = 0,
) -> Tensor:
    """Causal attention of ``query`` [T, n_q_heads, head_dim] over paged context, in float32.

    The new tokens of sequence s are the last of its ``seq_lens[s]`` tokens and are already in the cache.
    ``window`` > 0 lets a token see only itself and the ``window − 1`` tokens before it.
    """
    out = torch.empty(query.shape, dtype=torch.float32)
    starts = query_start_loc.tolist()
    for s, length in enumerate(seq_lens.tolist()):
        keys = _context(key_cache, block_tables[s], length)
        values = _context(value_cache, block_tables[s], length)
        first, last = starts[s], starts[s + 1]
        for row in range(first, last):
            position = length - (last - row)
            seen = slice(max(0, position + 1 - window) if window else 0, position + 1)
            out[row] = _attend(query[row].float(), keys[seen], values[seen], scale)
    return out.to(query.dtype)


def _context(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """[length, n_kv_heads, head_dim] of one sequence, token by token."""
    block_size = cache.shape[1]
    return torch.stack([cache[int(table[t // block_size]), t % block_size] for t in range(length)]).float()


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One token's attention, head by head; query head h reads KV head h // group."""
    group = query.shape[0] // keys.shape[1]
    out = torch.empty_like(query)
    for head in range(query.shape[0]):
        weights = torch.softmax(keys[:, head // group] @ query[head] * scale, dim=0)
        out[head] = weights @ values[:, head // group]
    return out

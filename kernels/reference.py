"""The naive references: what the fast kernels must equal. Written to be read, not to be quick."""

from __future__ import annotations

import torch
from torch import Tensor

FP8_LIMIT = 448.0
"""The largest finite float8_e4m3fn (OCP 8-bit floating point specification, table 1)."""


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Store the new ``key`` and ``value`` [T, n_kv_heads, head_dim] at ``slot_mapping`` [T].

    A slot below 0 is a padding token's. An fp8 cache holds them divided by the scale of its
    tensor, clipped to what is finite.
    """
    block_size = key_cache.shape[1]
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, block_size)
            key_cache[block, offset] = _stored(key[row], key_cache.dtype, key_scale)
            value_cache[block, offset] = _stored(value[row], value_cache.dtype, value_scale)


def _stored(row: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    if dtype != torch.float8_e4m3fn:
        return row.to(dtype)
    return (row.float() / scale).clamp(-FP8_LIMIT, FP8_LIMIT).to(dtype)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    window: int = 0,
    *,
    softcap: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> Tensor:
    """Causal attention of ``query`` [T, n_q_heads, head_dim] over paged context, computed and given in float32.

    The new tokens of sequence s are the last of its ``seq_lens[s]`` tokens and are already in the cache.
    ``window`` > 0 lets a token see only itself and the ``window − 1`` tokens before it; ``softcap`` > 0 turns a score
    s into ``softcap · tanh(s / softcap)``; the scales undo those of an fp8 cache.
    """
    out = torch.zeros(query.shape, dtype=torch.float32)
    starts = query_start_loc.tolist()
    for s, length in enumerate(seq_lens.tolist()):
        keys = _context(key_cache, block_tables[s], length) * key_scale
        values = _context(value_cache, block_tables[s], length) * value_scale
        first, last = starts[s], starts[s + 1]
        for row in range(first, last):
            position = length - (last - row)
            seen = slice(max(0, position + 1 - window) if window else 0, position + 1)
            out[row] = _attend(query[row].float(), keys[seen], values[seen], scale, softcap)
    return out


def merge(parts: Tensor, log_sums: Tensor) -> Tensor:
    """One sequence's attention [heads, head_dim] from that over parts of its context ``parts`` [splits, heads,
    head_dim] and log2 of each part's sum of weights ``log_sums`` [splits, heads] (−∞: the part was empty).
    """
    return torch.einsum("shd,sh->hd", parts.float(), torch.softmax(log_sums * torch.log(torch.tensor(2.0)), dim=0))


def _context(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """[length, n_kv_heads, head_dim] of one sequence, token by token."""
    block_size = cache.shape[1]
    tokens = [cache[int(table[t // block_size]), t % block_size].float() for t in range(length)]
    return torch.stack(tokens) if tokens else torch.zeros(0, *cache.shape[2:])


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, softcap: float) -> Tensor:
    """One token's attention, head by head; query head h reads KV head h // group."""
    group = query.shape[0] // keys.shape[1]
    out = torch.empty_like(query)
    for head in range(query.shape[0]):
        scores = keys[:, head // group] @ query[head] * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        out[head] = torch.softmax(scores, dim=0) @ values[:, head // group]
    return out

"""Paged attention in Triton: one kernel for prefill chunks and mixed batches, one (split over the KV) for decodes.

No launch depends on a value on the device: grids are upper bounds from shapes, and programs with nothing to do leave
at once. Rows, tiles and warps follow from shapes by rule, without tuning at run time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from .triton_kernels import decode_kernel, merge_kernel, prefill_kernel


class Launch(NamedTuple):
    """How a kernel is cut and launched, by rule and not by tuning at run time."""

    block_m: int
    tile: int
    num_warps: int
    num_stages: int


def launch_config(head_dim: int, group: int, element_bytes: int, *, decode: bool) -> Launch:
    """Rows, tile, warps and stages that stay clear of register spills on sm_80 and sm_90 (``tests/kernels``)."""
    rows = max(16, triton.next_power_of_2(group))
    wide = head_dim > 128 or element_bytes == 4
    if decode:
        return Launch(rows, 32 if wide else 64, 4, 2)
    return Launch(max(rows, 32 if wide else 64), 32, 8 if head_dim > 128 else 4, 2)


def num_kv_splits(num_processors: int, num_kv_heads: int, num_seqs: int, max_kv_tokens: int) -> int:
    """Splits of each sequence's KV so that about two programs stand ready for every multiprocessor, none with fewer
    than 256 tokens of the longest context. A power of two, since every number of splits is a kernel of its own to
    compile. All four arguments are known on the host.
    """
    wanted = 2 * num_processors // max(1, num_kv_heads * num_seqs)
    most = max(1, min(wanted, max_kv_tokens // 256, 64))
    return 1 << (most.bit_length() - 1)


def prefill_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    out: Tensor,
    *,
    window: int = 0,
) -> None:
    """Rows ``query_start_loc[0] … query_start_loc[S] − 1`` of ``query`` [T, n_q_heads, head_dim] into ``out``.

    The tables may be the tail of a batch's (its prefills behind its decodes); row numbers stay the batch's.
    """
    num_seqs = seq_lens.shape[0]
    num_heads, head_dim = query.shape[1:]
    group = num_heads // key_cache.shape[2]
    launch = launch_config(head_dim, group, query.element_size(), decode=False)
    block_q = launch.block_m // group
    grid = (query.shape[0] // block_q + num_seqs, key_cache.shape[2])
    prefill_kernel[grid](
        query,
        key_cache,
        value_cache,
        out,
        query_start_loc,
        seq_lens,
        block_tables,
        num_seqs,
        scale,
        query.stride(0),
        query.stride(1),
        out.stride(0),
        out.stride(1),
        key_cache.stride(1),
        key_cache.stride(2),
        block_tables.stride(0),
        group=group,
        head_dim=head_dim,
        padded_head_dim=max(16, triton.next_power_of_2(head_dim)),
        block_size=key_cache.shape[1],
        block_m=launch.block_m,
        tile=launch.tile,
        window=window,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )


def decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    out: Tensor,
    *,
    num_splits: int,
    window: int = 0,
) -> None:
    """Row s of ``query`` [S, n_q_heads, head_dim] is the last token of sequence s; writes rows 0 … S − 1 of ``out``."""
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    launch = launch_config(head_dim, group, query.element_size(), decode=True)
    padded_head_dim = max(16, triton.next_power_of_2(head_dim))
    parts, logs = out, out
    if num_splits > 1:
        parts = torch.empty((num_seqs, num_splits, num_heads, head_dim), dtype=torch.float32, device=query.device)
        logs = torch.empty((num_seqs, num_splits, num_heads), dtype=torch.float32, device=query.device)
    decode_kernel[(num_seqs, key_cache.shape[2], num_splits)](
        query,
        key_cache,
        value_cache,
        parts,
        seq_lens,
        block_tables,
        scale,
        query.stride(0),
        query.stride(1),
        key_cache.stride(1),
        key_cache.stride(2),
        block_tables.stride(0),
        parts.stride(0),
        parts.stride(1) if num_splits > 1 else 0,
        parts.stride(-2),
        logs,
        group=group,
        head_dim=head_dim,
        padded_head_dim=padded_head_dim,
        block_size=key_cache.shape[1],
        block_m=launch.block_m,
        tile=launch.tile,
        window=window,
        num_splits=num_splits,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    if num_splits > 1:
        _merge(parts, logs, out, padded_head_dim)


def _merge(parts: Tensor, logs: Tensor, out: Tensor, padded_head_dim: int) -> None:
    """Weigh the partial outputs ``parts`` [S, splits, n_q_heads, head_dim] by their log-sums ``logs``."""
    num_seqs, num_splits, num_heads, head_dim = parts.shape
    merge_kernel[(num_seqs, num_heads)](
        parts,
        logs,
        out,
        out.stride(0),
        out.stride(1),
        head_dim=head_dim,
        padded_head_dim=padded_head_dim,
        num_splits=num_splits,
        padded_splits=triton.next_power_of_2(num_splits),
    )

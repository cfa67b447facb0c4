# mypy: allow-untyped-defs, allow-incomplete-defs
"""The bodies of the Triton attention kernels; ``triton_attention`` launches them.

A row of every ``tl.dot`` is one query head of one token: the query heads that share a KV head are packed together, so
that a dot has at least 16 rows. What they share is in ``triton_tiles``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_tiles import attend_range, owner

_VARYING = ["num_seqs", "first_seq", "stride_table", "num_decodes"]
_INDICES = ["query_start_loc", "seq_lens", "block_tables", "split_start_loc"]
"""A kernel compiled anew for a number that happens to be 1 or divisible by 16, or for an index array that happens to
start at a multiple of 16 bytes, would cost a step a second."""


@triton.jit(do_not_specialize=_VARYING[:3], do_not_specialize_on_alignment=_INDICES[:3])  # type: ignore[untyped-decorator]
def prefill_kernel(
    query,
    key_cache,
    value_cache,
    out,
    query_start_loc,
    seq_lens,
    block_tables,
    first_seq,
    num_seqs,
    scale,
    value_scale,
    stride_query_token,
    stride_query_head,
    stride_out_token,
    stride_out_head,
    stride_block,
    stride_slot,
    stride_kv_head,
    stride_table,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    padded_head_dim: tl.constexpr,
    block_size: tl.constexpr,
    block_m: tl.constexpr,
    tile: tl.constexpr,
    num_stages: tl.constexpr,
    window: tl.constexpr,
    softcap: tl.constexpr,
):
    """Grid (upper bound of query blocks, KV heads) over sequences ``first_seq … first_seq + num_seqs − 1``.

    Sequence s owns the query blocks from ``offset(s) // block_q + s`` on, where ``offset`` counts new tokens before
    it: enough of them for any lengths. The last blocks, which see most context, go first.
    """
    block_q: tl.constexpr = block_m // group
    query_block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    starts = query_start_loc + first_seq
    seq = owner(starts, num_seqs, query_block, block_q, 1)
    start = tl.load(starts + seq)
    query_len = tl.load(starts + seq + 1) - start
    first_q = (query_block - ((start - tl.load(starts)) // block_q + seq)) * block_q
    if first_q < query_len:
        rows = tl.arange(0, block_m)
        dims = tl.arange(0, padded_head_dim)
        token = first_q + rows // group
        head = (kv_head * group + rows % group).to(tl.int64)
        row_mask = (rows < block_q * group) & (token < query_len)
        mask = row_mask[:, None] & (dims < head_dim)[None, :]
        flat = (start + token).to(tl.int64)
        q = tl.load(
            query + (flat * stride_query_token + head * stride_query_head)[:, None] + dims[None, :],
            mask=mask,
            other=0.0,
        )
        context = tl.load(seq_lens + first_seq + seq) - query_len
        last = context + tl.minimum(first_q + block_q, query_len)
        first = 0
        full_first = 0
        if window > 0:
            first = tl.maximum(0, context + first_q - window + 1) // tile * tile
            full_first = tl.cdiv(tl.maximum(0, last - window), tile) * tile
        acc, _, total = attend_range(
            q,
            context + token,
            key_cache + kv_head.to(tl.int64) * stride_kv_head,
            value_cache + kv_head.to(tl.int64) * stride_kv_head,
            block_tables + (first_seq + seq).to(tl.int64) * stride_table,
            first,
            full_first,
            (context + first_q + 1) // tile * tile,
            last,
            scale,
            stride_block,
            stride_slot,
            dims,
            window,
            softcap,
            head_dim,
            block_size,
            tile,
            num_stages,
        )
        acc = acc * (value_scale / total)[:, None]
        pointers = out + (flat * stride_out_token + head * stride_out_head)[:, None] + dims[None, :]
        tl.store(pointers, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_VARYING[2:], do_not_specialize_on_alignment=_INDICES[1:])  # type: ignore[untyped-decorator]
def decode_kernel(
    query,
    key_cache,
    value_cache,
    out,
    parts,
    log_sums,
    seq_lens,
    block_tables,
    split_start_loc,
    num_decodes,
    scale,
    value_scale,
    stride_query_token,
    stride_query_head,
    stride_out_token,
    stride_out_head,
    stride_block,
    stride_slot,
    stride_kv_head,
    stride_table,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    padded_head_dim: tl.constexpr,
    block_size: tl.constexpr,
    block_m: tl.constexpr,
    tile: tl.constexpr,
    num_stages: tl.constexpr,
    window: tl.constexpr,
    softcap: tl.constexpr,
):
    """Grid (upper bound of splits, KV heads). Sequence s owns splits ``split_start_loc[s] … [s + 1] − 1`` and shares
    its tiles out among them evenly. A sequence of one split writes to ``out``; of several, each writes its part's
    attention to ``parts`` [splits, heads, head_dim] and log2 of its sum of weights to ``log_sums`` [splits, heads]
    (−∞ where it had no token). Without a token at all (padding) the output is 0.
    """
    split = tl.program_id(0)
    if split < tl.load(split_start_loc + num_decodes):
        kv_head = tl.program_id(1).to(tl.int64)
        seq = owner(split_start_loc, num_decodes, split, 1, 0)
        first_split = tl.load(split_start_loc + seq)
        num_splits = tl.load(split_start_loc + seq + 1) - first_split
        seq = seq.to(tl.int64)
        rows = tl.arange(0, block_m)
        dims = tl.arange(0, padded_head_dim)
        head = kv_head * group + rows
        mask = (rows < group)[:, None] & (dims < head_dim)[None, :]
        q = tl.load(
            query + seq * stride_query_token + (head * stride_query_head)[:, None] + dims[None, :], mask=mask, other=0.0
        )
        length = tl.load(seq_lens + seq)
        begin = 0
        if window > 0:
            begin = tl.maximum(0, length - window)
        first_tile = begin // tile
        tiles_each = tl.cdiv(tl.cdiv(length, tile) - first_tile, num_splits)
        first = (first_tile + (split - first_split) * tiles_each) * tile
        last = tl.maximum(first, tl.minimum(first + tiles_each * tile, length))
        acc, largest, total = attend_range(
            q,
            tl.zeros([block_m], tl.int32) + (length - 1),
            key_cache + kv_head * stride_kv_head,
            value_cache + kv_head * stride_kv_head,
            block_tables + seq * stride_table,
            first,
            tl.maximum(first, tl.cdiv(begin, tile) * tile),
            tl.maximum(first, last // tile * tile),
            last,
            scale,
            stride_block,
            stride_slot,
            dims,
            window,
            softcap,
            head_dim,
            block_size,
            tile,
            num_stages,
        )
        acc = acc * (value_scale / tl.where(total > 0.0, total, 1.0))[:, None]
        if num_splits == 1:
            direct = out + seq * stride_out_token + (head * stride_out_head)[:, None] + dims[None, :]
            tl.store(direct, acc.to(out.dtype.element_ty), mask=mask)
        else:
            row = split.to(tl.int64) * (tl.num_programs(1) * group) + head
            tl.store(parts + row[:, None] * head_dim + dims[None, :], acc, mask=mask)
            tl.store(log_sums + row, largest + tl.log2(total), mask=rows < group)


@triton.jit(do_not_specialize_on_alignment=_INDICES[3:])  # type: ignore[untyped-decorator]
def merge_kernel(
    parts,
    log_sums,
    split_start_loc,
    out,
    stride_out_token,
    stride_out_head,
    head_dim: tl.constexpr,
    padded_head_dim: tl.constexpr,
    max_splits: tl.constexpr,
    tile: tl.constexpr,
):
    """Grid (sequences, heads): the parts of a sequence, weighted by their shares of the sum of weights. Those of one
    split have their output already.
    """
    seq = tl.program_id(0)
    first = tl.load(split_start_loc + seq)
    num_splits = tl.load(split_start_loc + seq + 1) - first
    if num_splits > 1:
        head = tl.program_id(1).to(tl.int64)
        heads = tl.num_programs(1)
        dims = tl.arange(0, padded_head_dim)
        every = tl.arange(0, max_splits)
        logs = tl.load(
            log_sums + (first + every).to(tl.int64) * heads + head, mask=every < num_splits, other=float("-inf")
        )
        largest = tl.max(logs, axis=0)
        total = tl.sum(tl.exp2(logs - largest), axis=0)
        merged = tl.zeros([padded_head_dim], tl.float32)
        for start in range(0, num_splits, tile):
            some = start + tl.arange(0, tile)
            row = (first + some).to(tl.int64) * heads + head
            weights = tl.exp2(tl.load(log_sums + row, mask=some < num_splits, other=float("-inf")) - largest)
            mask = (some < num_splits)[:, None] & (dims < head_dim)[None, :]
            part = tl.load(parts + row[:, None] * head_dim + dims[None, :], mask=mask, other=0.0)
            merged += tl.sum(part * weights[:, None], axis=0)
        pointers = out + seq.to(tl.int64) * stride_out_token + head * stride_out_head + dims
        tl.store(pointers, (merged / total).to(out.dtype.element_ty), mask=dims < head_dim)

# mypy: allow-untyped-defs, allow-incomplete-defs
"""The bodies of the Triton attention kernels; ``triton_attention`` launches them.

A row of every ``tl.dot`` is one query head of one token: the query heads that share a KV head are packed together, so
that a dot has at least 16 rows. Tiles are independent of pages; page offsets are computed in 64 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

_VARYING = ["num_seqs", "stride_table"]
"""Numbers that change from step to step: a kernel compiled anew for one that happens to be 1 or divisible by 16 would
cost a step a second."""


@triton.jit  # type: ignore[untyped-decorator]
def _attend_tiles(
    query,
    position,
    key_cache,
    value_cache,
    table,
    first,
    last,
    scale,
    stride_slot,
    dims,
    window: tl.constexpr,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
):
    """Online softmax of ``query`` [rows, dims] over tokens ``first … last − 1``; ``position`` [rows] is the last token
    a row may see. The caches point at one KV head. Gives (sum of weighted values, largest score, sum of weights).
    """
    rows: tl.constexpr = query.shape[0]
    largest = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    acc = tl.zeros([rows, query.shape[1]], tl.float32)
    dim_mask = dims < head_dim
    for start in range(first, last, tile):
        tokens = start + tl.arange(0, tile)
        inside = tokens < last
        page = tl.load(table + tokens // block_size, mask=inside, other=0).to(tl.int64)
        slot = (page * block_size + tokens % block_size) * stride_slot
        loaded = inside[:, None] & dim_mask[None, :]
        keys = tl.load(key_cache + slot[:, None] + dims[None, :], mask=loaded, other=0.0)
        scores = tl.dot(query, tl.trans(keys.to(query.dtype)), input_precision="ieee") * scale
        visible = inside[None, :] & (tokens[None, :] <= position[:, None])
        if window > 0:
            visible = visible & (tokens[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        # A row that has seen nothing yet has -inf here: subtract 0 instead, or -inf − -inf makes NaN.
        reference = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp(scores - reference[:, None])
        shrink = tl.exp(largest - reference)
        values = tl.load(value_cache + slot[:, None] + dims[None, :], mask=loaded, other=0.0)
        weighted = tl.dot(weights.to(query.dtype), values.to(query.dtype), input_precision="ieee")
        acc = acc * shrink[:, None] + weighted
        total = total * shrink + tl.sum(weights, axis=1)
        largest = new_largest
    return acc, largest, total


@triton.jit(do_not_specialize=_VARYING)  # type: ignore[untyped-decorator]
def prefill_kernel(
    query,
    key_cache,
    value_cache,
    out,
    query_start_loc,
    seq_lens,
    block_tables,
    num_seqs,
    scale,
    stride_query_token,
    stride_query_head,
    stride_out_token,
    stride_out_head,
    stride_slot,
    stride_kv_head,
    stride_table,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    padded_head_dim: tl.constexpr,
    block_size: tl.constexpr,
    block_m: tl.constexpr,
    tile: tl.constexpr,
    window: tl.constexpr,
):
    """Grid (upper bound of query blocks, KV heads). Sequence s owns the query blocks from
    ``offset(s) // block_q + s`` on, where ``offset`` counts new tokens before it: enough of them for any lengths.
    """
    block_q: tl.constexpr = block_m // group
    query_block = tl.program_id(0)
    kv_head = tl.program_id(1)
    base = tl.load(query_start_loc)
    low = query_block * 0  # 0 as a tensor, whatever num_seqs is specialised to
    high = low + num_seqs
    while low + 1 < high:
        middle = (low + high) // 2
        if (tl.load(query_start_loc + middle) - base) // block_q + middle <= query_block:
            low = middle
        else:
            high = middle
    seq = low
    start = tl.load(query_start_loc + seq)
    query_len = tl.load(query_start_loc + seq + 1) - start
    first_q = (query_block - ((start - base) // block_q + seq)) * block_q
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
        context = tl.load(seq_lens + seq) - query_len
        last = context + tl.minimum(first_q + block_q, query_len)
        first = 0
        if window > 0:
            first = tl.maximum(0, (context + first_q - window + 1) // tile * tile)
        acc, _, total = _attend_tiles(
            q,
            context + token,
            key_cache + kv_head.to(tl.int64) * stride_kv_head,
            value_cache + kv_head.to(tl.int64) * stride_kv_head,
            block_tables + seq.to(tl.int64) * stride_table,
            first,
            last,
            scale,
            stride_slot,
            dims,
            window,
            head_dim,
            block_size,
            tile,
        )
        acc = acc / total[:, None]
        pointers = out + (flat * stride_out_token + head * stride_out_head)[:, None] + dims[None, :]
        tl.store(pointers, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_VARYING[1:])  # type: ignore[untyped-decorator]
def decode_kernel(
    query,
    key_cache,
    value_cache,
    out,
    seq_lens,
    block_tables,
    scale,
    stride_query_token,
    stride_query_head,
    stride_slot,
    stride_kv_head,
    stride_table,
    stride_out_token,
    stride_out_split,
    stride_out_head,
    log_sum,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    padded_head_dim: tl.constexpr,
    block_size: tl.constexpr,
    block_m: tl.constexpr,
    tile: tl.constexpr,
    window: tl.constexpr,
    num_splits: tl.constexpr,
):
    """Grid (sequences, KV heads, splits). A split gives its part's attention and, if there are several, the logarithm
    of its sum of weights in ``log_sum`` [S, splits, heads] (−∞ where it had no token).
    """
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    rows = tl.arange(0, block_m)
    dims = tl.arange(0, padded_head_dim)
    head = kv_head * group + rows
    mask = (rows < group)[:, None] & (dims < head_dim)[None, :]
    q = tl.load(
        query + seq * stride_query_token + (head * stride_query_head)[:, None] + dims[None, :], mask=mask, other=0.0
    )
    length = tl.load(seq_lens + seq)
    first_tile = 0
    if window > 0:
        first_tile = tl.maximum(0, length - window) // tile
    tiles_each = tl.cdiv(tl.cdiv(length, tile) - first_tile, num_splits)
    first = (first_tile + split * tiles_each) * tile
    acc, largest, total = _attend_tiles(
        q,
        tl.zeros([block_m], tl.int32) + (length - 1),
        key_cache + kv_head * stride_kv_head,
        value_cache + kv_head * stride_kv_head,
        block_tables + seq * stride_table,
        first,
        tl.minimum(first + tiles_each * tile, length),
        scale,
        stride_slot,
        dims,
        window,
        head_dim,
        block_size,
        tile,
    )
    acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    pointers = (
        out + seq * stride_out_token + split * stride_out_split + (head * stride_out_head)[:, None] + dims[None, :]
    )
    tl.store(pointers, acc.to(out.dtype.element_ty), mask=mask)
    if num_splits > 1:
        heads = tl.num_programs(1) * group
        tl.store(log_sum + (seq * num_splits + split) * heads + head, largest + tl.log(total), mask=rows < group)


@triton.jit  # type: ignore[untyped-decorator]
def merge_kernel(
    partial,
    log_sum,
    out,
    stride_out_token,
    stride_out_head,
    head_dim: tl.constexpr,
    padded_head_dim: tl.constexpr,
    num_splits: tl.constexpr,
    padded_splits: tl.constexpr,
):
    """Grid (sequences, heads): the splits' outputs, weighted by their shares of the sum of weights."""
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(1)
    splits = tl.arange(0, padded_splits)
    dims = tl.arange(0, padded_head_dim)
    rows = (seq * num_splits + splits) * heads + head
    logs = tl.load(log_sum + rows, mask=splits < num_splits, other=float("-inf"))
    weights = tl.exp(logs - tl.max(logs, axis=0))
    mask = (splits < num_splits)[:, None] & (dims < head_dim)[None, :]
    parts = tl.load(partial + rows[:, None] * head_dim + dims[None, :], mask=mask, other=0.0)
    merged = tl.sum(parts * weights[:, None], axis=0) / tl.sum(weights, axis=0)
    pointers = out + seq * stride_out_token + head * stride_out_head + dims
    tl.store(pointers, merged.to(out.dtype.element_ty), mask=dims < head_dim)

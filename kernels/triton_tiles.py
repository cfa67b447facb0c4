# mypy: allow-untyped-defs, allow-incomplete-defs
"""What the prefill and the decode kernel have in common: the search for a program's sequence, and the online softmax
over a range of its paged context.

Tiles are independent of pages; page offsets are computed in 64 bits. Scores are kept in units of log2, so that the
softmax is one ``exp2`` a score.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit  # type: ignore[untyped-decorator]
def owner(starts, num_seqs, index, block: tl.constexpr, spare: tl.constexpr):
    """The last sequence s whose first program, ``(starts[s] − starts[0]) // block + spare · s``, is ≤ ``index``."""
    base = tl.load(starts)
    low = index * 0  # 0 as a tensor, whatever num_seqs is specialised to
    high = low + num_seqs
    while low + 1 < high:
        middle = (low + high) // 2
        if (tl.load(starts + middle) - base) // block + spare * middle <= index:
            low = middle
        else:
            high = middle
    return low


@triton.jit  # type: ignore[untyped-decorator]
def _tile_offsets(
    table, start, last, stride_block, stride_slot, block_size: tl.constexpr, tile: tl.constexpr, masked: tl.constexpr
):
    """[tile] 64-bit offsets into a cache of tokens ``start …``; a tile that lies in one page needs one table entry."""
    tokens = start + tl.arange(0, tile)
    if block_size % tile == 0:
        page = tl.load(table + start // block_size).to(tl.int64)
    elif masked:
        page = tl.load(table + tokens // block_size, mask=tokens < last, other=0).to(tl.int64)
    else:
        page = tl.load(table + tokens // block_size).to(tl.int64)
    return page * stride_block + (tokens % block_size).to(tl.int64) * stride_slot


@triton.jit  # type: ignore[untyped-decorator]
def _load_tile(pointers, inside, dims, head_dim: tl.constexpr, masked: tl.constexpr):
    """[tile, dims] of a cache, without a mask where everything is there."""
    if masked:
        loaded = tl.load(pointers, mask=inside[:, None] & (dims < head_dim)[None, :], other=0.0)
    elif head_dim == dims.shape[0]:
        loaded = tl.load(pointers)
    else:
        loaded = tl.load(pointers, mask=(dims < head_dim)[None, :], other=0.0)
    return loaded


@triton.jit  # type: ignore[untyped-decorator]
def _attend_tiles(
    acc,
    largest,
    total,
    query,
    position,
    key_cache,
    value_cache,
    table,
    first,
    last,
    scale,
    stride_block,
    stride_slot,
    dims,
    window: tl.constexpr,
    softcap: tl.constexpr,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    num_stages: tl.constexpr,
    masked: tl.constexpr,
):
    """Go on with the online softmax of ``query`` [rows, dims] over tokens ``first … last − 1`` (``first`` a multiple
    of ``tile``). ``masked``: some token may be beyond ``last`` or hidden from a row, of which ``position`` [rows] is
    the last token visible. The caches point at one KV head. Gives (sum of weighted values, largest score, sum of
    weights) [rows, dims], [rows], [rows].
    """
    for start in tl.range(first, last, tile, num_stages=min(num_stages, 2) if masked else num_stages):
        tokens = start + tl.arange(0, tile)
        inside = tokens < last
        offsets = _tile_offsets(table, start, last, stride_block, stride_slot, block_size, tile, masked)
        keys = _load_tile(key_cache + offsets[:, None] + dims[None, :], inside, dims, head_dim, masked)
        scores = tl.dot(query, tl.trans(keys.to(query.dtype)), input_precision="ieee") * scale
        if softcap > 0.0:
            # tanh by exp2, which every back end has: 1 − 2 / (1 + e^2x) is right at both infinities.
            scores = softcap * (1.0 - 2.0 / (1.0 + tl.exp2(scores * (2.0 * _LOG2_E / softcap))))
        scores = scores * _LOG2_E
        if masked:
            visible = inside[None, :] & (tokens[None, :] <= position[:, None])
            if window > 0:
                visible = visible & (tokens[None, :] > position[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        reference = new_largest
        if masked:
            # A row that has seen nothing yet has -inf here: subtract 0 instead, or -inf − -inf makes NaN.
            reference = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - reference[:, None])
        shrink = tl.exp2(largest - reference)
        values = _load_tile(value_cache + offsets[:, None] + dims[None, :], inside, dims, head_dim, masked)
        acc = acc * shrink[:, None]
        acc += tl.dot(weights.to(query.dtype), values.to(query.dtype), input_precision="ieee")
        total = total * shrink + tl.sum(weights, axis=1)
        largest = new_largest
    return acc, largest, total


@triton.jit  # type: ignore[untyped-decorator]
def attend_range(
    query,
    position,
    key_cache,
    value_cache,
    table,
    first,
    full_first,
    full_last,
    last,
    scale,
    stride_block,
    stride_slot,
    dims,
    window: tl.constexpr,
    softcap: tl.constexpr,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    num_stages: tl.constexpr,
):
    """Attention over tokens ``first … last − 1``; those of ``full_first … full_last − 1`` are visible to every row
    and are attended without a mask. All but ``last`` are multiples of ``tile``.
    """
    rows: tl.constexpr = query.shape[0]
    acc = tl.zeros([rows, query.shape[1]], tl.float32)
    largest = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    if window > 0:
        full_first = tl.minimum(full_first, full_last)
        acc, largest, total = _attend_tiles(
            acc, largest, total, query, position, key_cache, value_cache, table, first, full_first, scale,
            stride_block, stride_slot, dims, window, softcap, head_dim, block_size, tile, num_stages, True,
        )  # fmt: skip
    else:
        full_first = first
    acc, largest, total = _attend_tiles(
        acc, largest, total, query, position, key_cache, value_cache, table, full_first, full_last, scale,
        stride_block, stride_slot, dims, window, softcap, head_dim, block_size, tile, num_stages, False,
    )  # fmt: skip
    acc, largest, total = _attend_tiles(
        acc, largest, total, query, position, key_cache, value_cache, table, full_last, last, scale,
        stride_block, stride_slot, dims, window, softcap, head_dim, block_size, tile, num_stages, True,
    )  # fmt: skip
    return acc, largest, total

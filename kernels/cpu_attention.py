"""Paged attention on the CPU: what a batch needs is worked out once in a plan and used in every layer.

Decodes go through numba, which reads pages in place (``index_select`` + SDPA where numba is absent or the cache is
not float32); a prefill chunk is one SDPA call over its own pages, since one padded call for all costs several times
as much. A chunk without earlier context needs no page at all: its keys are those just computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

IntArray = NDArray[np.int64]

HAS_NUMBA = find_spec("numba") is not None
_PARALLEL_FROM_ELEMENTS = 2_000_000
"""Keys read by a layer's decodes (tokens · KV heads · head size) from which a second thread pays: about 0.1 ms."""
_BUCKET_RATIO = 1.5
"""Without numba: decodes whose contexts differ by less than this factor share one padded call."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """One sequence whose new tokens are rows ``first … last − 1`` of the flat batch."""

    first: int
    last: int
    length: int
    """Context including the new tokens."""
    pages: Tensor | None
    """Its blocks, or None where the new tokens are the whole context."""
    mask: Tensor | None
    """[new tokens, length], 0 or −∞; None where plain causality says it all."""


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """Decodes attended in one padded call (no numba): ``slots`` and ``mask`` are [rows, longest]."""

    rows: Tensor
    slots: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """How one batch is attended: leading decode rows, then chunks."""

    num_decode_rows: int
    seq_lens: IntArray
    block_tables: IntArray
    order: IntArray
    """Decodes in the order in which they are shared out among threads."""
    num_kv_tokens: int
    window: int
    softcap: float
    chunks: Sequence[ChunkPlan]
    buckets: Sequence[BucketPlan]


def set_threads(num_threads: int) -> None:
    """CPU threads of torch's operators and of numba's kernels, for the whole process.

    numba comes first: starting its pool resets OpenMP's thread count, which torch shares.
    """
    if HAS_NUMBA:
        import numba

        available: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        numba.set_num_threads(min(num_threads, available))
    torch.set_num_threads(num_threads)


def prepare() -> None:
    """Load the numba kernels, or compile them where no cache holds them: seconds that no measured step should bear."""
    if not HAS_NUMBA:
        return
    from . import numba_decode

    one, row = np.ones(1, dtype=np.int64), np.zeros((1, 1, 1), dtype=np.float32)
    cache = np.zeros((2, 1, 1, 1), dtype=np.float32)
    for kernel in (numba_decode.decode_serial, numba_decode.decode_parallel):
        kernel(row, cache, cache, one, one[None], np.float32(1.0), np.float32(0.0), 0, one - 1, row.copy())


def plan_attention(
    query_start_loc: IntArray,
    seq_lens: IntArray,
    block_tables: IntArray,
    num_decode_rows: int,
    block_size: int,
    *,
    dtype: torch.dtype = torch.float32,
    window: int = 0,
    softcap: float = 0.0,
    use_numba: bool = HAS_NUMBA,
) -> CpuPlan:
    """The first ``num_decode_rows`` sequences have one new token each over existing context. ``softcap`` > 0 bends
    scores s to softcap · tanh(s / softcap) (Gemma 2).
    """
    n = num_decode_rows
    numba_decodes = use_numba and dtype == torch.float32
    return CpuPlan(
        num_decode_rows=n,
        seq_lens=seq_lens[:n],
        block_tables=block_tables[:n],
        order=_balanced_order(seq_lens[:n], torch.get_num_threads()),
        num_kv_tokens=int(seq_lens[:n].sum()),
        window=window,
        softcap=softcap,
        chunks=[
            _plan_chunk(int(first), int(last), int(length), table, block_size, dtype, window, bool(softcap))
            for first, last, length, table in zip(
                query_start_loc[n:-1], query_start_loc[n + 1 :], seq_lens[n:], block_tables[n:], strict=True
            )
        ],
        buckets=() if numba_decodes else _plan_buckets(seq_lens[:n], block_tables[:n], block_size, dtype, window),
    )


def paged_attention(
    query: Tensor, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, plan: CpuPlan, scale: float
) -> Tensor:
    """[T, n_q_heads, head_dim]; the batch's ``key`` and ``value`` are already in the caches too."""
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    if plan.buckets:
        for bucket in plan.buckets:
            _attend_bucket(query, key_cache, value_cache, bucket, scale, plan.softcap, out)
    elif plan.num_decode_rows:
        _attend_decodes(query, key_cache, value_cache, plan, scale, out)
    for chunk in plan.chunks:
        _attend_chunk(query, key, value, key_cache, value_cache, chunk, scale, plan.softcap, out)
    return out


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store ``key`` and ``value`` [T, n_kv_heads, head_dim] at ``slot_mapping`` [T]."""
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)


def _attend_decodes(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: CpuPlan, scale: float, out: Tensor
) -> None:
    kernel = _numba_kernel(plan.num_kv_tokens * key_cache.shape[2] * key_cache.shape[3])
    n = plan.num_decode_rows
    kernel(
        query[:n].contiguous().numpy(),
        key_cache.numpy(),
        value_cache.numpy(),
        plan.seq_lens,
        plan.block_tables,
        np.float32(scale),
        np.float32(plan.softcap),
        plan.window,
        plan.order,
        out.numpy(),
    )


def _numba_kernel(num_elements: int) -> Any:
    from . import numba_decode

    if torch.get_num_threads() > 1 and num_elements >= _PARALLEL_FROM_ELEMENTS:
        return numba_decode.decode_parallel
    return numba_decode.decode_serial


def _attend_chunk(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    chunk: ChunkPlan,
    scale: float,
    softcap: float,
    out: Tensor,
) -> None:
    rows = slice(chunk.first, chunk.last)
    if chunk.pages is None:
        keys, values = key[rows], value[rows]
    else:
        keys = key_cache.index_select(0, chunk.pages).flatten(0, 1)[: chunk.length]
        values = value_cache.index_select(0, chunk.pages).flatten(0, 1)[: chunk.length]
    heads, keys, values = (tensor.transpose(0, 1)[None] for tensor in (query[rows], keys, values))
    out[rows] = _attention(heads, keys, values, chunk.mask, scale, softcap)[0].transpose(0, 1)


def _attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, softcap: float
) -> Tensor:
    """[B, n_q_heads, Q, head_dim]; causal where no mask is given. A soft cap is beyond torch's own operator."""
    if not softcap or mask is None:
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.tanh(query @ keys.transpose(2, 3) * (scale / softcap)) * softcap + mask
    return torch.softmax(scores.float(), dim=-1).to(query.dtype) @ values


def _attend_bucket(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, bucket: BucketPlan, scale: float, softcap: float, out: Tensor
) -> None:
    """The query heads of a KV head stand as so many queries, so that no key is repeated."""
    shape = (*bucket.slots.shape, *key_cache.shape[2:])
    keys = key_cache.flatten(0, 1).index_select(0, bucket.slots.flatten()).view(shape)
    values = value_cache.flatten(0, 1).index_select(0, bucket.slots.flatten()).view(shape)
    num_kv_heads, head_dim = key_cache.shape[2:]
    heads = query.index_select(0, bucket.rows).view(len(bucket.rows), num_kv_heads, -1, head_dim)
    attended = _attention(heads, keys.transpose(1, 2), values.transpose(1, 2), bucket.mask, scale, softcap)
    out[bucket.rows] = attended.flatten(1, 2)


def _plan_chunk(
    first: int,
    last: int,
    length: int,
    table: IntArray,
    block_size: int,
    dtype: torch.dtype,
    window: int,
    always_mask: bool,
) -> ChunkPlan:
    num_new = last - first
    windowed = 0 < window < length
    mask = None
    if num_new < length or windowed or always_mask:
        positions = torch.arange(length - num_new, length)[:, None] - torch.arange(length)
        hidden = (positions < 0) | (positions >= window) if windowed else positions < 0
        mask = torch.zeros(num_new, length, dtype=dtype).masked_fill_(hidden, float("-inf"))
    pages = None if num_new == length else torch.from_numpy(table[: -(-length // block_size)])
    return ChunkPlan(first, last, length, pages, mask)


def _plan_buckets(
    seq_lens: IntArray, block_tables: IntArray, block_size: int, dtype: torch.dtype, window: int
) -> list[BucketPlan]:
    order = np.argsort(seq_lens, kind="stable")
    buckets: list[BucketPlan] = []
    at = 0
    while at < order.size:
        limit = seq_lens[order[at]] * _BUCKET_RATIO
        end = at + int(np.searchsorted(seq_lens[order[at:]], limit, side="right"))
        buckets.append(_bucket(order[at:end], seq_lens, block_tables, block_size, dtype, window))
        at = end
    return buckets


def _bucket(
    rows: IntArray, seq_lens: IntArray, block_tables: IntArray, block_size: int, dtype: torch.dtype, window: int
) -> BucketPlan:
    """A padded place reads the sequence's own first token: finite, its own, and masked."""
    lengths = seq_lens[rows][:, None]
    positions = np.arange(int(lengths.max()))[None]
    hidden = positions >= lengths
    positions = np.where(hidden, 0, positions)
    blocks = np.take_along_axis(block_tables[rows], positions // block_size, axis=1)
    slots = blocks * block_size + positions % block_size
    if window:
        hidden |= positions < lengths - window
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(hidden), float("-inf"))
    return BucketPlan(torch.from_numpy(rows), torch.from_numpy(slots), mask[:, None, None])


def _balanced_order(seq_lens: IntArray, num_threads: int) -> IntArray:
    """Longest first, dealt to the threads in turn: contiguous stretches of the order then hold equal work."""
    if num_threads == 1:
        return np.arange(seq_lens.size)
    longest_first = np.argsort(-seq_lens, kind="stable")
    return np.concatenate([longest_first[thread::num_threads] for thread in range(num_threads)])

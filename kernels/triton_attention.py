"""Paged attention in Triton: one kernel for prefill chunks and mixed batches, one (split over the KV) for decodes.

Both entry points take the same ``AttentionMetadata``. No launch depends on a value on the device: grids follow from
sizes, and programs with nothing to do leave at once. Rows, tiles and warps follow from shapes by rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .errors import KernelError, explained
from .launch import MAX_SPLITS, Launch, launch_config, merge_tile, padded
from .metadata import AttentionMetadata, Splits
from .triton_kernels import decode_kernel, merge_kernel, prefill_kernel

MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What a layer asks for. A sliding ``window`` > 0 lets a token see itself and the ``window − 1`` before it;
    ``softcap`` > 0 turns a score s into ``softcap · tanh(s / softcap)`` (Gemma 2). The scales of an fp8 cache are one
    number a tensor: a stored key times ``key_scale`` is the key.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    key_scale: float = 1.0
    value_scale: float = 1.0


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    out: Tensor,
) -> None:
    """Every row of ``query`` [T, n_q_heads, head_dim] into ``out``: decodes by one kernel, the rest by the other."""
    if metadata.num_decodes:
        decode_attention(query, key_cache, value_cache, metadata, options, out)
    if metadata.num_decodes < metadata.num_seqs:
        prefill_attention(query, key_cache, value_cache, metadata, options, out, first_seq=metadata.num_decodes)


def prefill_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    out: Tensor,
    *,
    first_seq: int = 0,
) -> None:
    """Sequences ``first_seq … S − 1``, of any number of new tokens (one included), into their rows of ``out``."""
    _check(query, key_cache, value_cache, out)
    num_kv_heads = key_cache.shape[2]
    launch = _launch(query, key_cache, decode=False)
    block_q = launch.block_m // (query.shape[1] // num_kv_heads)
    num_seqs = metadata.num_seqs - first_seq
    # A decode in front has one token, so the rows behind ``first_seq`` decodes are known without reading anything.
    num_tokens = metadata.num_tokens - min(first_seq, metadata.num_decodes)
    with explained("prefill_attention", lambda: _described(query, key_cache)):
        prefill_kernel[(num_tokens // block_q + num_seqs, num_kv_heads)](
            query,
            key_cache,
            value_cache,
            out,
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_tables,
            first_seq,
            num_seqs,
            **_common(query, key_cache, metadata, options, out, launch),
        )


def decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    out: Tensor,
) -> None:
    """The leading ``num_decodes`` rows of ``query`` [≥ num_decodes, n_q_heads, head_dim] into those of ``out``."""
    _check(query, key_cache, value_cache, out)
    num_heads, head_dim = query.shape[1:]
    launch = _launch(query, key_cache, decode=True)
    splits = _splits(metadata, options.window)
    parts = log_sums = out
    if splits.merged:
        parts = torch.empty((splits.grid, num_heads, head_dim), dtype=torch.float32, device=query.device)
        log_sums = torch.empty((splits.grid, num_heads), dtype=torch.float32, device=query.device)
    with explained("decode_attention", lambda: _described(query, key_cache)):
        decode_kernel[(splits.grid, key_cache.shape[2])](
            query,
            key_cache,
            value_cache,
            out,
            parts,
            log_sums,
            metadata.seq_lens,
            metadata.block_tables,
            splits.start_loc,
            metadata.num_decodes,
            **_common(query, key_cache, metadata, options, out, launch),
        )
        if splits.merged:
            _merge(parts, log_sums, splits.start_loc, metadata.num_decodes, out)


def _common(
    query: Tensor,
    key_cache: Tensor,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    out: Tensor,
    launch: Launch,
) -> dict[str, Any]:
    """The arguments that both kernels take: scales, strides, and what they are compiled for."""
    block_size, num_kv_heads, head_dim = key_cache.shape[1:]
    stride_block, stride_slot, stride_kv_head, _ = key_cache.stride()
    return {
        "scale": options.scale * options.key_scale,
        "value_scale": options.value_scale,
        "stride_query_token": query.stride(0),
        "stride_query_head": query.stride(1),
        "stride_out_token": out.stride(0),
        "stride_out_head": out.stride(1),
        "stride_block": stride_block,
        "stride_slot": stride_slot,
        "stride_kv_head": stride_kv_head,
        "stride_table": metadata.block_tables.stride(0),
        "group": query.shape[1] // num_kv_heads,
        "head_dim": head_dim,
        "padded_head_dim": padded(head_dim),
        "block_size": block_size,
        "block_m": launch.block_m,
        "tile": launch.tile,
        "num_stages": launch.num_stages,
        "window": options.window,
        "softcap": options.softcap,
        **launch.options,
    }


def _merge(parts: Tensor, log_sums: Tensor, split_start_loc: Tensor, num_decodes: int, out: Tensor) -> None:
    num_heads, head_dim = parts.shape[1:]
    merge_kernel[(num_decodes, num_heads)](
        parts,
        log_sums,
        split_start_loc,
        out,
        out.stride(0),
        out.stride(1),
        head_dim=head_dim,
        padded_head_dim=padded(head_dim),
        max_splits=MAX_SPLITS,
        tile=merge_tile(head_dim),
        num_warps=4,
    )


def _launch(query: Tensor, key_cache: Tensor, *, decode: bool) -> Launch:
    group = query.shape[1] // key_cache.shape[2]
    sizes = query.element_size(), key_cache.element_size()
    return launch_config(query.shape[2], group, *sizes, decode=decode, architecture=_architecture(query.device))


def _splits(metadata: AttentionMetadata, window: int) -> Splits:
    splits = metadata.splits.get(window)
    if splits is None:
        raise KernelError(
            f"A layer has the sliding window {window}, the batch was packed for {sorted(metadata.splits)}: "
            f"pack it with every window of the model."
        )
    return splits


@cache
def _architecture(device: torch.device) -> str:
    """Of those that ``launch_config`` knows; an interpreted kernel is cut like one for sm_90."""
    if torch.version.hip:
        return "gfx942"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0):
        return "sm_80"
    return "sm_90"


def _described(query: Tensor, key_cache: Tensor) -> str:
    group = query.shape[1] // key_cache.shape[2]
    return (
        f"head size {query.shape[2]}, {group} query heads a KV head, {str(query.dtype).removeprefix('torch.')} "
        f"over a cache of {str(key_cache.dtype).removeprefix('torch.')} in blocks of {key_cache.shape[1]}"
    )


def _check(query: Tensor, key_cache: Tensor, value_cache: Tensor, out: Tensor) -> None:
    num_heads, head_dim = query.shape[1:]
    if head_dim > MAX_HEAD_DIM or head_dim != key_cache.shape[3] or num_heads % key_cache.shape[2]:
        raise KernelError(
            f"Attention with {num_heads} query heads of size {head_dim} over {key_cache.shape[2]} KV heads of size "
            f"{key_cache.shape[3]} is not supported: take heads of one size up to {MAX_HEAD_DIM}, a "
            f"multiple of the KV heads."
        )
    if key_cache.dtype not in (query.dtype, torch.float8_e4m3fn):
        raise KernelError(
            f"Attention of {query.dtype} queries over a cache of {key_cache.dtype} is not supported: "
            f"the cache is of the queries' type or torch.float8_e4m3fn."
        )
    if key_cache.stride() != value_cache.stride() or not query.stride(2) == out.stride(2) == key_cache.stride(3) == 1:
        raise KernelError(
            "Attention needs key and value caches of the same strides, and elements of a head side by side: "
            "make the tensors contiguous."
        )

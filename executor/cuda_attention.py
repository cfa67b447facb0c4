"""A batch on a CUDA device: Triton's decode kernel for the leading decodes, its prefill kernel for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..kernels import triton_attention, triton_write_kv

if TYPE_CHECKING:
    from ..scheduler.shapes import ForwardShapes
    from .kv_cache import PagedKVCache


class TritonPagedBatch:
    """The index arrays go to the device once and serve every layer; nothing is read back."""

    def __init__(self, cache: PagedKVCache, shapes: ForwardShapes, device: torch.device, num_processors: int) -> None:
        def to_device(array: Any, dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(array).to(device=device, dtype=dtype, non_blocking=True)

        self._layers = cache.layers
        self._num_decode_rows = shapes.num_decode_rows
        self._num_seqs = len(shapes.requests)
        self._max_decode_tokens = shapes.block_tables.shape[1] * cache.block_size
        self._num_processors = num_processors
        self._slots = to_device(shapes.slot_mapping, torch.int64)
        self._query_start_loc = to_device(shapes.query_start_loc, torch.int32)
        self._seq_lens = to_device(shapes.seq_lens, torch.int32)
        self._block_tables = to_device(shapes.block_tables, torch.int32)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None,
        scaling: float | None,
        window: int,
        options: dict[str, Any],
    ) -> Tensor:
        """As ``PagedAttention.attend``."""
        query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        if query.stride(2) != 1:
            query = query.contiguous()
        scale = query.shape[2] ** -0.5 if scaling is None else scaling
        triton_write_kv.write_kv(key, value, *self._layers[layer], self._slots)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if self._num_decode_rows:
            self._decode(layer, query, out, scale, window)
        if self._num_decode_rows < self._num_seqs:
            self._prefill(layer, query, out, scale, window)
        return out[None]

    def _decode(self, layer: int, query: Tensor, out: Tensor, scale: float, window: int) -> None:
        n = self._num_decode_rows
        key_cache, value_cache = self._layers[layer]
        triton_attention.decode_attention(
            query[:n],
            key_cache,
            value_cache,
            self._seq_lens[:n],
            self._block_tables[:n],
            scale,
            out,
            num_splits=triton_attention.num_kv_splits(
                self._num_processors, key_cache.shape[2], n, self._max_decode_tokens
            ),
            window=window,
        )

    def _prefill(self, layer: int, query: Tensor, out: Tensor, scale: float, window: int) -> None:
        n = self._num_decode_rows
        triton_attention.prefill_attention(
            query,
            *self._layers[layer],
            self._query_start_loc[n:],
            self._seq_lens[n:],
            self._block_tables[n:],
            scale,
            out,
            window=window,
        )

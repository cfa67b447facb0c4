"""A batch on a CUDA device: Triton's decode kernel for the leading decodes, its prefill kernel for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..kernels import triton_attention, triton_write_kv
from ..kernels.metadata import AttentionMetadata, pack
from ..kernels.triton_attention import AttentionOptions

if TYPE_CHECKING:
    from ..scheduler.shapes import ForwardShapes
    from .kv_cache import PagedKVCache


class TritonPagedBatch:
    """The index arrays go to the device once for each sliding window of the model; nothing is read back."""

    def __init__(self, cache: PagedKVCache, shapes: ForwardShapes, device: torch.device, num_processors: int) -> None:
        self._layers = cache.layers
        self._shapes = shapes
        self._device = device
        self._num_processors = num_processors
        self._metadata: dict[int, AttentionMetadata] = {}

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
        metadata = self._metadata.get(window)
        if metadata is None:
            metadata = self._metadata[window] = self._pack(window, key.shape[1])
        scale = query.shape[2] ** -0.5 if scaling is None else scaling
        triton_write_kv.write_kv(key, value, *self._layers[layer], metadata.slot_mapping)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        triton_attention.paged_attention(
            query, *self._layers[layer], metadata, AttentionOptions(scale, window=window), out
        )
        return out[None]

    def _pack(self, window: int, num_kv_heads: int) -> AttentionMetadata:
        shapes = self._shapes
        return pack(
            shapes.query_start_loc,
            shapes.seq_lens,
            shapes.block_tables,
            shapes.slot_mapping,
            num_decodes=shapes.num_decode_rows,
            num_kv_heads=num_kv_heads,
            num_processors=self._num_processors,
            windows=(window,),
        ).to(self._device)

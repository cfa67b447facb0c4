"""A batch on a CUDA device: Triton's decode kernel for the leading decodes, its prefill kernel for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernels import triton_attention, triton_write_kv

if TYPE_CHECKING:
    from ..kernels.metadata import AttentionMetadata
    from .attention import LayerCall
    from .kv_cache import PagedKVCache


class TritonPagedBatch:
    """The index arrays are on the device already and serve every layer; nothing is read back."""

    def __init__(self, cache: PagedKVCache, metadata: AttentionMetadata) -> None:
        self._layers = cache.layers
        self._metadata = metadata

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """As ``PagedAttention.attend``."""
        if query.stride(2) != 1:
            query = query.contiguous()
        key_cache, value_cache = self._layers[call.layer]
        triton_write_kv.write_kv(key, value, key_cache, value_cache, self._metadata.slot_mapping)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        options = triton_attention.AttentionOptions(call.scale, window=call.window, softcap=call.softcap)
        triton_attention.paged_attention(query, key_cache, value_cache, self._metadata, options, out)
        return out

"""Our paged attention behind transformers' attention interface.

One object stands for a batch. It is built once, handed to the model as the keyword argument ``paged`` and reaches
every layer's attention call, which writes the new keys and values into the cache and reads the context from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

from ..kernels import cpu_attention
from .probe import AttentionProbe

if TYPE_CHECKING:
    from ..scheduler.shapes import ForwardShapes
    from .kv_cache import PagedKVCache

ATTENTION_NAME = "batchtwin_paged"


class LayerCall(NamedTuple):
    """What one layer asks of its attention, besides tensors."""

    layer: int
    scale: float
    window: int = 0
    """Tokens seen, itself included; 0 for all before it."""
    softcap: float = 0.0
    """Scores s become softcap · tanh(s / softcap); 0 for as they are."""


class PagedAttention(Protocol):
    """What a layer's attention call is handed on to."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """Write ``key`` and ``value`` [T, kv_heads, head_dim] into the cache; gives the attention of ``query``
        [T, heads, head_dim] over each token's paged context.
        """
        ...


def paged_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged: PagedAttention | AttentionProbe,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The function registered with transformers: tensors come as [1, heads, T, head_dim] and go as
    [1, T, heads, head_dim].
    """
    if isinstance(paged, AttentionProbe):
        window = sliding_window or 0
        return paged.record(module, query, key, value, mask=attention_mask, window=window, options=options), None
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]
    call = LayerCall(layer, scale, sliding_window or 0, softcap or 0.0)
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return paged.attend(query, key, value, call)[None], None


AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)


class CpuPagedBatch:
    """A batch on the CPU. Layers with different sliding windows share everything but the plan."""

    def __init__(self, cache: PagedKVCache, shapes: ForwardShapes) -> None:
        self._layers = cache.layers
        self._block_size = cache.block_size
        self._shapes = shapes
        self._slots = torch.from_numpy(shapes.slot_mapping)
        self._plans: dict[tuple[int, float], cpu_attention.CpuPlan] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """As ``PagedAttention.attend``."""
        kind = (call.window, call.softcap)
        plan = self._plans.get(kind)
        if plan is None:
            plan = self._plans[kind] = self._plan(*kind, query.dtype)
        key_cache, value_cache = self._layers[call.layer]
        cpu_attention.write_kv(key, value, key_cache, value_cache, self._slots)
        return cpu_attention.paged_attention(query, key, value, key_cache, value_cache, plan, call.scale)

    def _plan(self, window: int, softcap: float, dtype: torch.dtype) -> cpu_attention.CpuPlan:
        shapes = self._shapes
        return cpu_attention.plan_attention(
            shapes.query_start_loc,
            shapes.seq_lens,
            shapes.block_tables,
            shapes.num_decode_rows,
            self._block_size,
            dtype=dtype,
            window=window,
            softcap=softcap,
        )

"""Our paged attention behind transformers' attention interface.

One object stands for a batch. It is built once, handed to the model as the keyword argument ``paged`` and reaches
every layer's attention call, which writes the new keys and values into the cache and reads the context from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

from ..kernels import cpu_attention

if TYPE_CHECKING:
    from ..scheduler.shapes import ForwardShapes
    from .kv_cache import PagedKVCache

ATTENTION_NAME = "batchtwin_paged"


class PagedAttention(Protocol):
    """What a layer's attention call is handed on to."""

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
        """``query`` [1, heads, T, head_dim] over the paged context; gives [1, T, heads, head_dim]."""
        ...


def paged_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged: PagedAttention,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The function registered with transformers."""
    layer: int = module.layer_idx  # type: ignore[assignment]
    out = paged.attend(
        layer, query, key, value, mask=attention_mask, scaling=scaling, window=sliding_window or 0, options=options
    )
    return out, None


AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)


class CpuPagedBatch:
    """A batch on the CPU. Layers with different sliding windows share everything but the plan."""

    def __init__(self, cache: PagedKVCache, shapes: ForwardShapes) -> None:
        self._layers = cache.layers
        self._block_size = cache.block_size
        self._shapes = shapes
        self._slots = torch.from_numpy(shapes.slot_mapping)
        self._plans: dict[int, cpu_attention.CpuPlan] = {}

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
        plan = self._plans.get(window)
        if plan is None:
            plan = self._plans[window] = self._plan(window, query.dtype)
        query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        key_cache, value_cache = self._layers[layer]
        scale = query.shape[2] ** -0.5 if scaling is None else scaling
        cpu_attention.write_kv(key, value, key_cache, value_cache, self._slots)
        return cpu_attention.paged_attention(query, key, value, key_cache, value_cache, plan, scale)[None]

    def _plan(self, window: int, dtype: torch.dtype) -> cpu_attention.CpuPlan:
        shapes = self._shapes
        return cpu_attention.plan_attention(
            shapes.query_start_loc,
            shapes.seq_lens,
            shapes.block_tables,
            shapes.num_decode_rows,
            self._block_size,
            dtype=dtype,
            window=window,
        )


class AttentionProbe:
    """Records what a model's layers ask of their attention, to find out whether we can serve it."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int, int]] = []
        """Of each call: query heads, KV heads, head size."""
        self._layers: list[int] = []
        self._objections: list[str] = []

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
        """Zeros of the right shape."""
        self._layers.append(layer)
        self.shapes.append((query.shape[1], key.shape[1], query.shape[3]))
        if mask is not None:
            self._objections.append("its attention needs a mask beyond causality")
        if value.shape[3] != query.shape[3]:
            self._objections.append("its keys and values differ in size")
        if options.get("is_causal") is False:
            self._objections.append("its attention is not causal")
        for name in ("softcap", "s_aux", "position_bias"):
            if options.get(name) is not None:
                self._objections.append(f"its attention uses {name}, which our kernels lack")
        return torch.zeros_like(query).transpose(1, 2)

    def unsupported(self, num_layers: int) -> str | None:
        """Why paged attention cannot serve the model, or None if it can."""
        if sorted(self._layers) != list(range(num_layers)):
            return (
                f"its attention does not go through transformers' attention interface once in each of its "
                f"{num_layers} layers ({len(self._layers)} calls were seen)"
            )
        if self._objections:
            return self._objections[0]
        if len(set(self.shapes)) > 1:
            return "its layers have attention heads of different number or size"
        return None

"""Finding out whether a model's attention is one that we can serve, by running it once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_BEYOND_US = ("s_aux", "position_bias")
"""Keyword arguments of transformers' attention interface that change the result and that our kernels lack."""


class AttentionProbe:
    """Records what a model's layers ask of their attention."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int, int]] = []
        """Of each call: query heads, KV heads, head size."""
        self.windows: list[int] = []
        """Of each call: the sliding window in tokens, 0 for none."""
        self._layers: list[int] = []
        self._objections: list[str] = []

    def record(
        self,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None,
        window: int,
        options: dict[str, Any],
    ) -> Tensor:
        """Zeros [1, T, heads, head_dim] for a call with ``query`` [1, heads, T, head_dim]."""
        layer: Any = module.layer_idx
        self._layers.append(int(layer))
        self.windows.append(window)
        self.shapes.append((query.shape[1], key.shape[1], query.shape[3]))
        if mask is not None:
            self._objections.append("its attention needs a mask beyond causality")
        if value.shape[3] != query.shape[3]:
            self._objections.append("its keys and values differ in size")
        if False in (options.get("is_causal"), getattr(module, "is_causal", None)):
            self._objections.append("its attention is not causal")
        for name in _BEYOND_US:
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

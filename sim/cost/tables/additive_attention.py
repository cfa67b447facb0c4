"""Attention where prompts and decodes were measured apart: the two add, which a real kernel does not quite do."""

from __future__ import annotations

from dataclasses import dataclass

from .grid import PointTable
from .operator_table import AttentionLoad


@dataclass(frozen=True, slots=True)
class AdditiveAttention:
    """Tables of one layer in seconds: decodes by (sequences, context), a chunk by (tokens, context before it)."""

    num_layers: int
    decode: PointTable
    prefill: PointTable
    per_call_s: float = 0.0
    """What every call takes besides, a layer."""

    def seconds(self, load: AttentionLoad) -> float:
        """Over all layers."""
        once = self.per_call_s
        if load.num_decodes:
            once += self.decode(load.num_decodes, load.mean_kv)
        if load.chunk:
            once += self.prefill(load.chunk, load.chunk_start)
        return self.num_layers * once

    def reaches(self, load: AttentionLoad) -> bool:
        """Whether both tables go as far."""
        return (not load.num_decodes or self.decode.reaches(load.num_decodes, load.mean_kv)) and (
            not load.chunk or self.prefill.reaches(load.chunk, load.chunk_start)
        )

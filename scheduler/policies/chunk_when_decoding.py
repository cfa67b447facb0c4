"""Chunks only where somebody would wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .vllm_v1 import VllmV1

if TYPE_CHECKING:
    from ..step import Step


@dataclass
class ChunkWhenDecoding(VllmV1):
    """While something decodes, a step carries at most ``chunk_tokens`` prompt tokens; while nothing does, prompts take
    the whole of ``max_num_batched_tokens`` (asked for in vLLM's issue 26625).

    Decodes keep the latency of a small budget, and an idle server gets its first prompt through at the speed of a
    large one.
    """

    chunk_tokens: int = 512
    """Prompt tokens a step while something decodes."""

    name = "chunk_when_decoding"

    def schedule(self, step: Step) -> None:
        """VLLM V1's step under a budget that depends on whether anybody decodes."""
        if step.num_decoding:
            step.limit_tokens(step.num_decoding + self.chunk_tokens)
        super().schedule(step)

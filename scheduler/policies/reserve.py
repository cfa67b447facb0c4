"""Nobody is ever preempted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import Policy

if TYPE_CHECKING:
    from ..config import SchedulerConfig
    from ..request import Request
    from ..step import Step


class Reserve(Policy):
    """Admits a request only if its prompt and its whole output limit fit beside those of everybody running
    (TensorRT-LLM's GUARANTEED_NO_EVICT, mini-sglang).

    No work is ever lost to preemption; the price is blocks that stand empty, the more the looser the limits
    (``max_tokens``) are. Without a limit a request reserves up to ``max_model_len``.
    """

    name = "reserve"
    can_leap = True
    reads_blocks = False

    def __init__(self) -> None:
        self._reserved_blocks: dict[str, int] = {}
        self._total = 0

    def schedule(self, step: Step) -> None:
        """VLLM V1's order; admission by reservation."""
        step.advance_running()
        while step.waiting:
            request = step.waiting.head
            blocks = _blocks_at_most(request, step.config)
            if self._total + blocks > step.config.num_usable_blocks:
                step.held_back_by_blocks()
                return
            if not step.admit_next():
                return
            self._reserved_blocks[request.request_id] = blocks
            self._total += blocks

    def left(self, request: Request) -> None:
        """Its reservation is free again."""
        self._total -= self._reserved_blocks.pop(request.request_id, 0)


def _blocks_at_most(request: Request, config: SchedulerConfig) -> int:
    limit = config.max_model_len - request.num_prompt_tokens
    if request.max_tokens is not None:
        limit = min(limit, request.max_tokens)
    tokens = request.num_prompt_tokens + limit - 1
    return min(-(-tokens // config.block_size), config.num_usable_blocks)

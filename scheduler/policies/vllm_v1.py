"""vLLM's V1 scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import Policy

if TYPE_CHECKING:
    from ..config import SchedulerConfig
    from ..step import Step


class VllmV1(Policy):
    """Running first, then waiting, from one token budget (vLLM ≥ 0.8).

    Decodes are never held up by new prompts, which fill what the decodes leave of the budget, in chunks unless
    chunking is off. A small budget keeps inter-token latency low, a large one gets prompts through sooner.
    A step that had to preempt admits nobody.
    """

    name = "vllm_v1"
    can_leap = True
    reads_blocks = False

    def __init__(self) -> None:
        self._whole_prompts = False

    def check(self, config: SchedulerConfig) -> None:
        """Take over whether prompts may be chunked."""
        self._whole_prompts = not config.enable_chunked_prefill

    def schedule(self, step: Step) -> None:
        """Serve the running list, then admit from the head of the queue until a bound says no."""
        step.advance_running()
        if step.num_preempted:
            return
        while step.waiting and step.admit_next(whole=self._whole_prompts):
            pass

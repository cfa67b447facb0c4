"""Decodes always."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import Policy

if TYPE_CHECKING:
    from ..step import Step


class DecodeFirst(Policy):
    """Every decode is served in every step, and prompts fill the rest of the budget in chunks (Sarathi-Serve's
    stall-free schedule).

    Like vLLM V1 but for one thing: a long prompt that stands before decodes in the running list (which needs
    ``long_prefill_token_threshold``) can never take their budget. Steady inter-token latency is bought with a later
    first token.
    """

    name = "decode_first"
    can_leap = True
    reads_blocks = False

    def schedule(self, step: Step) -> None:
        """Decodes, then unfinished prompts, then new ones."""
        step.advance_decodes()
        step.advance_prefills()
        if step.num_preempted:
            return
        while step.waiting and step.admit_next():
            pass

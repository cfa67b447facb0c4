"""Prompts before decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import Policy
from .orca import require_whole_prompts

if TYPE_CHECKING:
    from ..config import SchedulerConfig
    from ..step import Step


class PrefillFirst(Policy):
    """A step is prefill or decode, and waiting prompts win (vLLM before V1, SGLang's default).

    First tokens come as soon as there is a slot, and big prefill batches are efficient; but every new prompt makes
    all running streams stand still for a step. Prompts are never chunked.
    """

    name = "prefill_first"
    can_leap = True
    reads_blocks = False

    def check(self, config: SchedulerConfig) -> None:
        """Whole prompts must fit a step. Raises ``ConfigError``."""
        require_whole_prompts(self.name, config)

    def schedule(self, step: Step) -> None:
        """Admit whole prompts while a bound allows; only if there were none, decode."""
        while step.waiting and step.admit_next(whole=True):
            pass
        if not step.has_chunks:
            step.advance_running()

"""Iteration-level scheduling as first published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from .base import Policy

if TYPE_CHECKING:
    from ..config import SchedulerConfig
    from ..step import Step


class Orca(Policy):
    """Requests join and leave between iterations; a whole prompt runs beside the decodes, neither chunked nor
    preferred (Orca, OSDI 2022; TGI's early versions).

    No stream stands still for others' prompts, but a step that carries a long one takes as long as it takes.
    """

    name = "orca"
    can_leap = True
    reads_blocks = False

    def check(self, config: SchedulerConfig) -> None:
        """Whole prompts must fit a step. Raises ``ConfigError``."""
        require_whole_prompts(self.name, config)

    def schedule(self, step: Step) -> None:
        """Everybody running, then whole prompts while they fit."""
        step.advance_running()
        if step.num_preempted:
            return
        while step.waiting and step.admit_next(whole=True):
            pass


def require_whole_prompts(policy: str, config: SchedulerConfig) -> None:
    """Raise ``ConfigError`` if the longest prompt does not fit one step."""
    if config.max_num_batched_tokens < config.max_model_len:
        raise ConfigError(
            f"Policy {policy} never chunks a prompt, but max_num_batched_tokens ({config.max_num_batched_tokens}) is "
            f"less than max_model_len ({config.max_model_len}): raise max_num_batched_tokens or lower max_model_len."
        )

"""Policies that go wrong in one cell of a grid: given by name and option, so that workers meet them too."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from batchtwin.scheduler.policies.vllm_v1 import VllmV1
from batchtwin.scheduler.step import Step

GUILTY_SEQS = 4


@dataclass
class Raises(VllmV1):
    """Has a bug that shows at four sequences."""

    name = "raises"

    attempts: str = ""
    """A folder in which every attempt leaves a file, if one is given."""
    times: int = 1_000
    """After so many attempts all is well."""

    def __post_init__(self) -> None:
        super().__init__()

    def schedule(self, step: Step) -> None:
        if step.config.max_num_seqs == GUILTY_SEQS and (not self.attempts or self._attempt() <= self.times):
            raise ZeroDivisionError("a bug\nof the user's own")
        super().schedule(step)

    def _attempt(self) -> int:
        made = len(list(Path(self.attempts).iterdir())) + 1
        (Path(self.attempts) / str(made)).touch()
        return made


class Dies(VllmV1):
    """Takes its process with it at four sequences, as the out-of-memory killer would."""

    name = "dies"

    def schedule(self, step: Step) -> None:
        if step.config.max_num_seqs == GUILTY_SEQS:
            os._exit(1)
        super().schedule(step)

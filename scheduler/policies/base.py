"""What a policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ..waiting import ArrivalQueue, WaitingQueue

if TYPE_CHECKING:
    from ..config import SchedulerConfig
    from ..request import Request
    from ..step import Step


class Policy(ABC):
    """Decides one step with the verbs of ``Step``. One object serves one scheduler and may keep state of its own.

    A policy sees what a server can know, never a request's ``output_len``.
    """

    name: ClassVar[str]
    is_oracle: ClassVar[bool] = False
    """Whether it uses what no server knows; results are then labelled so."""
    victim: ClassVar[str] = "last"
    """Who is preempted where blocks run out (``SchedulerConfig.victim``), unless the configuration says."""
    can_leap: ClassVar[bool] = False
    """Whether, while nobody can be admitted, its steps differ in nothing but one more token for every decode, however
    many wait behind the head; a simulation may then take many of them at once."""
    reads_blocks: ClassVar[bool] = True
    """Whether it looks at block tables; where it does not, a simulation need only count blocks."""
    keeps_finished_rows: ClassVar[bool] = False
    """Whether a finished request holds its slot and blocks until nobody runs any more (static batching)."""

    def check(self, config: SchedulerConfig) -> None:  # noqa: B027  (most policies can work with any valid config)
        """Raise ``ConfigError`` if the policy cannot work with these knobs."""

    def make_queue(self) -> WaitingQueue:
        """The order in which requests wait; first come, first served unless a policy wants another."""
        return ArrivalQueue()

    def left(self, request: Request) -> None:  # noqa: B027  (most policies keep no account)
        """``request`` has just left the running list: it finished, was preempted or aborted."""

    @abstractmethod
    def schedule(self, step: Step) -> None:
        """Form one step."""

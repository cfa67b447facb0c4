"""Short jobs before long ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import MissingPrediction
from ..request import Request
from ..waiting import SortedQueue, WaitingQueue
from .vllm_v1 import VllmV1

if TYPE_CHECKING:
    from ..step import Step


@dataclass
class ShortestJobFirst(VllmV1):
    """The queue is ordered by output length, shortest first; otherwise vLLM V1.

    Mean latency falls where lengths differ much, and long requests may wait very long. Nobody's server knows the
    length beforehand: with ``predicted`` the order is by the trace's predicted lengths instead, which it could.
    """

    predicted: bool = False
    """Order by ``predicted_output_len`` instead of the truth."""

    name = "sjf"

    @property
    def is_oracle(self) -> bool:  # type: ignore[override]
        """It looks at true output lengths, unless it goes by predictions."""
        return not self.predicted

    def make_queue(self) -> WaitingQueue:
        """By length, then arrival."""
        return SortedQueue(lambda request: (self.remaining_tokens(request), request.arrival_s))

    def remaining_tokens(self, request: Request) -> int:
        """What decides: the whole output."""
        return self._length(request)

    def _length(self, request: Request) -> int:
        if not self.predicted:
            return request.output_len
        if request.predicted_output_len is None:
            raise MissingPrediction(
                f"Policy {self.name} with predicted=true needs predicted lengths, but request {request.request_id!r} "
                f"has none: use a trace with a predicted-length column."
            )
        return request.predicted_output_len


@dataclass
class ShortestRemainingTimeFirst(ShortestJobFirst):
    """Like ``sjf`` by what is left to produce, and preemptive: where all slots are taken, who has most left makes way
    for a waiting request that has less.

    The least mean latency of all if preemption were free; here it costs the recomputation (or the swap) it costs.
    """

    name = "srtf"

    def remaining_tokens(self, request: Request) -> int:
        """What decides: the rest of the output."""
        return max(self._length(request) - request.num_output_tokens, 1)

    def schedule(self, step: Step) -> None:
        """Make way for the head of the queue, at most once a step, then vLLM V1's step."""
        if step.waiting and step.num_running >= step.config.admission_limit_seqs:
            longest = max(step.running(), key=lambda request: (self.remaining_tokens(request), request.rank))
            if self.remaining_tokens(step.waiting.head) < self.remaining_tokens(longest):
                step.preempt(longest)
                head = step.waiting.head
                step.advance_running()
                if step.num_preempted == 1 and step.waiting.head is head:
                    step.admit_next(whole=False)
                return
        super().schedule(step)

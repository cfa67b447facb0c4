"""Priorities."""

from __future__ import annotations

from ..request import Request
from ..waiting import Key, SortedQueue, WaitingQueue
from .vllm_v1 import VllmV1


class Priority(VllmV1):
    """vLLM V1 with ``--scheduling-policy priority``: the smallest (priority, arrival) is admitted first, and where
    blocks run out the largest goes, wherever it stands in the running list.

    Urgent requests overtake the queue, but admission never preempts anybody, and a big urgent prompt still blocks
    those behind it.
    """

    name = "priority"
    victim = "lowest_priority"

    def make_queue(self) -> WaitingQueue:
        """Ordered by (priority, arrival), as vLLM's heap is."""
        return SortedQueue(_key)


def _key(request: Request) -> Key:
    return (request.priority, request.arrival_s)

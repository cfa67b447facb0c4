"""Fair among clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..request import Request, RequestStatus
from ..waiting import WaitingQueue
from .vllm_v1 import VllmV1

if TYPE_CHECKING:
    from ..step import Step


class ClientQueues(WaitingQueue):
    """One queue a client; the head is that of the client served least so far."""

    def __init__(self, served: dict[str, float]) -> None:
        self._served = served
        self._queues: dict[str, deque[Request]] = {}

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[Request]:
        by_service = sorted(self._queues, key=lambda client: (self._served[client], client))
        return (request for client in by_service for request in self._queues[client])

    @property
    def head(self) -> Request:
        """The first request of the client with the least service."""
        return self._queues[self._next_client()][0]

    def push(self, request: Request) -> None:
        """Queue a new arrival. A client that comes back starts no lower than the least-served client in the queue:
        what it did not use while away is not saved up.
        """
        client = request.client_id
        if client not in self._queues:
            least = min((self._served[other] for other in self._queues), default=0.0)
            self._served[client] = max(self._served.get(client, 0.0), least)
        self._queues.setdefault(client, deque()).append(request)

    def push_back(self, request: Request) -> None:
        """Queue a preempted request before its client's others."""
        self._served.setdefault(request.client_id, 0.0)
        self._queues.setdefault(request.client_id, deque()).appendleft(request)

    def pop(self) -> Request:
        """Take the head."""
        return self._take(self._next_client(), 0)

    def remove(self, request: Request) -> None:
        """Take ``request`` out wherever it stands."""
        self._take(request.client_id, self._queues[request.client_id].index(request))

    def _next_client(self) -> str:
        return min(self._queues, key=lambda client: (self._served[client], client))

    def _take(self, client: str, index: int) -> Request:
        queue = self._queues[client]
        request = queue[index]
        del queue[index]
        if not queue:
            del self._queues[client]
        return request


@dataclass
class Fair(VllmV1):
    """Virtual token counters: the waiting client that has been served least goes first (VTC, "Fairness in Serving
    Large Language Models", OSDI 2024).

    Service is weighted tokens, prompts when they are admitted and outputs as they are produced. A client that floods
    the queue delays itself, not the others. Otherwise vLLM V1.
    """

    prompt_weight: float = 1.0
    """Service of a prompt token (the paper's w_p)."""
    output_weight: float = 2.0
    """Service of an output token (w_q)."""

    name = "fair"
    can_leap = False  # whose turn it is changes with every token

    def __post_init__(self) -> None:
        self._served: dict[str, float] = {}
        self._charged: dict[str, int] = {}

    def make_queue(self) -> WaitingQueue:
        """A queue a client."""
        return ClientQueues(self._served)

    def schedule(self, step: Step) -> None:
        """VLLM V1's step; who is admitted next is decided anew after every admission."""
        step.advance_running()
        if step.num_preempted or not step.waiting:
            return
        for request in step.running():
            self._charge_output(request)
        while step.waiting:
            request = step.waiting.head
            if not step.admit_next(whole=self._whole_prompts):
                return
            if request.request_id not in self._charged:
                self._served[request.client_id] += self.prompt_weight * request.num_prompt_tokens
                self._charged[request.request_id] = 0

    def left(self, request: Request) -> None:
        """Charge what it produced since the last look."""
        self._charge_output(request)
        if request.status is not RequestStatus.PREEMPTED:
            self._charged.pop(request.request_id, None)

    def _charge_output(self, request: Request) -> None:
        produced = request.num_output_tokens - self._charged.get(request.request_id, 0)
        self._served[request.client_id] += self.output_weight * produced
        self._charged[request.request_id] = request.num_output_tokens

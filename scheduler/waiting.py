"""The waiting queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .request import Request


class WaitingQueue:
    """First come, first served; who was preempted returns to the front."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    @property
    def head(self) -> Request:
        """Who is next."""
        return self._queue[0]

    def push(self, request: Request) -> None:
        """Queue a new arrival."""
        self._queue.append(request)

    def push_back(self, request: Request) -> None:
        """Queue a preempted request: it goes to the front."""
        self._queue.appendleft(request)

    def pop(self) -> Request:
        """Take the head."""
        return self._queue.popleft()

    def remove(self, request: Request) -> None:
        """Take ``request`` out wherever it stands."""
        self._queue.remove(request)

"""The waiting queue."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator

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


Key = tuple[float | str, ...]


class SortedQueue(WaitingQueue):
    """Smallest key first, preempted or not. A key may change only while its request is not in the queue."""

    def __init__(self, key: Callable[[Request], Key]) -> None:
        self._key = key
        self._sorted: list[tuple[Key, str, Request]] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in self._sorted)

    @property
    def head(self) -> Request:
        """Who is next."""
        return self._sorted[0][2]

    def push(self, request: Request) -> None:
        """Queue a new arrival; ids break ties."""
        insort(self._sorted, (self._key(request), request.request_id, request), key=lambda entry: entry[:2])

    def push_back(self, request: Request) -> None:
        """Queue a preempted request, by its key."""
        self.push(request)

    def pop(self) -> Request:
        """Take the head."""
        return self._sorted.pop(0)[2]

    def remove(self, request: Request) -> None:
        """Take ``request`` out wherever it stands."""
        found = bisect_left(self._sorted, (self._key(request), request.request_id), key=lambda entry: entry[:2])
        del self._sorted[found]

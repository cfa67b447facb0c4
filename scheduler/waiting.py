"""The waiting queue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from typing import ClassVar

from .request import Request


class WaitingQueue(ABC):
    """Who waits, in the order in which they are admitted."""

    keeps_head: ClassVar[bool] = False
    """Whether a new arrival never becomes the head while somebody waits."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]: ...

    @property
    @abstractmethod
    def head(self) -> Request:
        """Who is next."""

    @abstractmethod
    def push(self, request: Request, /) -> None:
        """Queue a new arrival."""

    @abstractmethod
    def push_back(self, request: Request, /) -> None:
        """Queue a preempted request."""

    @abstractmethod
    def pop(self) -> Request:
        """Take the head."""

    @abstractmethod
    def remove(self, request: Request, /) -> None:
        """Take ``request`` out wherever it stands."""


class ArrivalQueue(deque[Request], WaitingQueue):
    """First come, first served; who was preempted returns to the front."""

    keeps_head = True

    @property
    def head(self) -> Request:
        """Who is next."""
        return self[0]

    push = deque.append
    push_back = deque.appendleft
    pop = deque.popleft  # type: ignore[assignment]


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

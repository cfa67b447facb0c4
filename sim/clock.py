"""SimPy environments whose events can be put at an exact time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from heapq import heappush
from math import inf
from typing import Any

from simpy import Environment
from simpy.events import Event
from simpy.rt import RealtimeEnvironment

from ..scheduler.request import Request

ARRIVAL, STEP_END = 1, 2
"""Event priorities: an arrival at the very time a step ends is seen by the next step."""


class Clock(Environment):
    """Simulated time. SimPy schedules by delay, and now + (t − now) is not always t; here t is meant exactly.

    A stream of arrivals can be fed to it: each is delivered as an event of priority ``ARRIVAL`` would be, without
    there being one, which spares half of what a request costs SimPy. ``arrival_s`` is when the next one is due.
    """

    arrival_s = inf
    _arriving: Request | None = None
    _arrivals: Iterator[Request]
    _deliver: Callable[[Request], None]

    def feed(self, requests: Iterable[Request], deliver: Callable[[Request], None]) -> None:
        """Have each of ``requests``, which are in order, delivered at its ``arrival_s`` (at once if that is past)."""
        self._arrivals, self._deliver = iter(requests), deliver
        self._arriving = coming = next(self._arrivals, None)
        self.arrival_s = inf if coming is None else coming.arrival_s

    def step(self) -> None:
        """Process what comes next, an arrival or an event."""
        if self._arriving is not None and not (self._queue and self._precedes(self.arrival_s, ARRIVAL - 1)):
            self._arrive()
        else:
            super().step()

    def at(self, time_s: float, priority: int = STEP_END) -> Event:
        """An event that happens at ``time_s`` (or now, if that is past)."""
        event = Event(self)
        event._ok, event._value = True, None
        heappush(self._queue, (max(time_s, self._now), priority, next(self._eid), event))  # type: ignore[misc]
        return event

    def reach(self, time_s: float, priority: int = STEP_END) -> bool:
        """Go to ``time_s`` at once, with the arrivals until then, if an event there would come before any other:
        whoever would wait for it need not. False if something else comes first; then only arrivals before that have
        happened.
        """
        while self.arrival_s <= time_s:
            if self._queue and self._precedes(self.arrival_s, ARRIVAL - 1):
                return False
            self._arrive()
        if self._queue and self._precedes(time_s, priority):
            return False
        if time_s > self._now:
            self._now = time_s
        return True

    def _precedes(self, time_s: float, priority: int) -> bool:
        """Whether the next event, which there is, comes before one that would be scheduled now for ``time_s`` with
        ``priority``.
        """
        head = self._queue[0]
        return head[0] < time_s or (head[0] == time_s and head[1] <= priority)

    def _arrive(self) -> None:
        request = self._arriving
        assert request is not None
        if self.arrival_s > self._now:
            self._now = self.arrival_s
        self._arriving = coming = next(self._arrivals, None)
        self.arrival_s = inf if coming is None else coming.arrival_s
        self._deliver(request)


class WallClock(RealtimeEnvironment, Clock):
    """The same, paced by the wall clock: one simulated second lasts one real second."""

    def feed(self, requests: Iterable[Request], deliver: Callable[[Request], None]) -> None:
        """Have each of ``requests`` delivered at its ``arrival_s``."""
        self.process(self._send(requests, deliver))

    def reach(self, time_s: float, priority: int = STEP_END) -> bool:
        """Never: time has to pass."""
        return False

    def _send(self, requests: Iterable[Request], deliver: Callable[[Request], None]) -> Generator[Event, Any, None]:
        for request in requests:
            if request.arrival_s > self.now:
                yield self.at(request.arrival_s, ARRIVAL)
            deliver(request)

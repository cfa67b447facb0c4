"""SimPy environments whose events can be put at an exact time."""

from __future__ import annotations

from heapq import heappush

from simpy import Environment
from simpy.events import Event
from simpy.rt import RealtimeEnvironment

ARRIVAL, STEP_END = 1, 2
"""Event priorities: an arrival at the very time a step ends is seen by the next step."""


class Clock(Environment):
    """Simulated time. SimPy schedules by delay, and now + (t − now) is not always t; here t is meant exactly."""

    def at(self, time_s: float, priority: int = STEP_END) -> Event:
        """An event that happens at ``time_s`` (or now, if that is past)."""
        event = Event(self)
        event._ok, event._value = True, None
        heappush(self._queue, (max(time_s, self._now), priority, next(self._eid), event))  # type: ignore[misc]
        return event

    def reach(self, time_s: float, priority: int = STEP_END) -> bool:
        """Go to ``time_s`` at once if an event there would be the very next: whoever would wait for it need not. False
        if something else comes first; then nothing has changed.
        """
        if self._queue:
            next_s, next_priority, *_ = self._queue[0]
            if next_s < time_s or (next_s == time_s and next_priority <= priority):
                return False
        self._now = max(time_s, self._now)
        return True


class WallClock(RealtimeEnvironment, Clock):
    """The same, paced by the wall clock: one simulated second lasts one real second."""

    def reach(self, time_s: float, priority: int = STEP_END) -> bool:
        """Never: time has to pass."""
        return False

"""One server: the iteration loop, the same for prediction and measurement."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar

from simpy.events import Event

from ..scheduler.batch import Batch
from ..scheduler.errors import BatchTwinError
from ..scheduler.request import Request
from ..scheduler.scheduler import Scheduler
from .backend import Backend, Ticket
from .clock import STEP_END, Clock
from .cost_backend import CostModelBackend
from .leap import Leaper
from .records import Recorder

P = ParamSpec("P")
T = TypeVar("T")


class Replica:
    """A SimPy process: while work exists, schedule and launch up to ``depth`` batches, wait for the oldest, let the
    clock reach its end, complete it; again.

    With ``leap`` a predicted replica takes steady stretches at once; its records are the same, bit for bit.
    ``host_clock`` is given where the host's own time is real (a measured run): what ``schedule`` and ``complete``
    take is then reported to the backend. ``index`` tells replicas apart: where steps of several end at one time, the
    lowest goes first.
    """

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        backend: Backend,
        recorder: Recorder,
        *,
        depth: int = 1,
        leap: bool = True,
        host_clock: Callable[[], float] | None = None,
        index: int = 0,
    ) -> None:
        self.clock = clock
        self.scheduler = scheduler
        self.backend = backend
        self.recorder = recorder
        self._depth = depth
        self._host_clock = host_clock
        self._idle: Event | None = None
        self._done: dict[str, Event] = {}
        self._on_end: Callable[[str], None] | None = None
        self._step_end = STEP_END + index
        self._leaper = None
        if leap and depth == 1 and isinstance(backend, CostModelBackend):
            self._leaper = Leaper(clock, scheduler, backend, recorder, step_end=self._step_end)
        clock.process(self._run())

    def submit(self, request: Request, *, due_s: float | None = None) -> None:
        """A request arrives now. ``due_s`` is when its client meant to send it, if that was earlier."""
        request.arrival_s = self.clock._now
        self.recorder.arrived(request, request.arrival_s if due_s is None else due_s)
        self.scheduler.add(request)
        if self._leaper is not None:
            self._leaper.arrived()
        if self._idle is not None:
            self._idle.succeed()
            self._idle = None

    def abort(self, request_id: str) -> None:
        """The client of a request gave up: for whoever waits for it, it has ended."""
        if self._leaper is not None:
            self._leaper.cut()
            self._leaper.commit()
        self.scheduler.abort(request_id)
        self._end(request_id)

    def finished(self, request: Request) -> Event:
        """An event that happens when ``request`` finishes or is aborted."""
        return self._done.setdefault(request.request_id, Event(self.clock))

    def notify(self, on_end: Callable[[str], None]) -> None:
        """Call ``on_end`` with the id of every request that finishes or is aborted, at once."""
        self._on_end = on_end

    def _run(self) -> Generator[Event, Any, None]:
        scheduler, backend, clock = self.scheduler, self.backend, self.clock
        schedule, complete = self._timed(scheduler.schedule), self._timed(scheduler.complete)
        depth, leaper = self._depth, self._leaper
        in_flight: deque[tuple[Batch, Ticket, float]] = deque()
        while True:
            while len(in_flight) < depth and scheduler.has_work:
                batch = schedule()
                if not (batch.num_members or batch.chunks or batch.preempted or in_flight):
                    raise BatchTwinError(_stuck(scheduler))
                now_s = clock._now  # simpy's property for it takes ten times as long
                in_flight.append((batch, backend.launch(batch, now_s), now_s))
            if not in_flight:
                self._idle = Event(clock)
                yield self._idle
                continue
            batch, ticket, launched_s = in_flight.popleft()
            execution = backend.wait(ticket)
            end_s = execution.end_s
            if not clock.reach(end_s, self._step_end):
                yield clock.at(end_s, self._step_end)
            finished = complete(batch)
            self.recorder.completed(batch, launched_s, execution, finished)
            if finished:
                self._tell(finished)
            while leaper is not None and leaper.begin(batch, end_s - launched_s):
                if (landing := leaper.landing()) is not None:
                    yield landing
                self._tell(leaper.land())
                if scheduler.waiting:
                    break

    def _timed(self, call: Callable[P, T]) -> Callable[P, T]:
        """``call``, which tells the backend what it took where the host's time is real."""
        host_clock, backend = self._host_clock, self.backend
        if host_clock is None:
            return call

        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            began_s = host_clock()
            result = call(*args, **kwargs)
            backend.host(host_clock() - began_s)
            return result

        return timed

    def _tell(self, finished: list[Request]) -> None:
        if self._done or self._on_end:
            for request in finished:
                self._end(request.request_id)

    def _end(self, request_id: str) -> None:
        event = self._done.pop(request_id, None)
        if event is not None:
            event.succeed()
        if self._on_end is not None:
            self._on_end(request_id)


def _stuck(scheduler: Scheduler) -> str:
    head = scheduler.waiting.head.request_id if scheduler.waiting else "none"
    return (
        f"Nothing can run although {scheduler.num_running} requests run and {len(scheduler.waiting)} wait (head: "
        f"{head}): the policy {scheduler.policy.name!r} made no progress with {scheduler.pool.num_free} free KV blocks."
    )

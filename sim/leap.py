"""Steady stretches: many iterations at once, exactly as if taken one by one.

While nobody can be admitted, none finishes and blocks suffice, iterations differ in nothing but one more token each.
A leap computes their durations together and sleeps once; it ends with the step that gives somebody its last token.
Whoever arrives or aborts meanwhile ends it at the first step boundary not before that time; but not who queues up
behind a head that stays blocked: the later steps only see one more waiting.
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf

from simpy.events import Event

from ..scheduler.batch import UNBOUND, Batch
from ..scheduler.request import Request
from ..scheduler.scheduler import Scheduler
from .clock import STEP_END, Clock
from .cost.features import Features
from .cost_backend import CostModelBackend
from .records import Recorder, SteadyState

MIN_STEPS = 2
"""A shorter leap costs more than its steps."""


class Leaper:
    """Takes leaps for one replica. At most one is under way."""

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        backend: CostModelBackend,
        recorder: Recorder,
        *,
        step_end: int = STEP_END,
    ) -> None:
        self._clock = clock
        self._step_end = step_end  # the replica's event priority
        self._scheduler = scheduler
        self._backend = backend
        self._recorder = recorder
        self._wake: Event | None = None
        self._num_steps = 0  # of the leap under way
        self._crosses = False  # whether it goes on when somebody arrives
        self._joined: list[int] = []  # the steps that were the first to see one more waiting
        self._finishing: list[Request] = []  # who ends with its last step

    def begin(self, last: Batch, step_s: float) -> bool:
        """Begin the leap that is possible after ``last``, which has just completed and took ``step_s``; False if there
        is none, or none that is worth its while.
        """
        scheduler, clock = self._scheduler, self._clock
        is_blocked = bool(scheduler.waiting)
        crosses = is_blocked and scheduler.waiting.keeps_head
        if not crosses and clock.arrival_s - clock._now < MIN_STEPS * step_s:
            return False
        num_steps = scheduler.num_steady_steps(last)
        if num_steps < MIN_STEPS or not self._recorder.is_settled:
            return False
        cohort, backend = scheduler.cohort, self._backend
        decodes = len(cohort.ranks)
        sums = (decodes, decodes, cohort.num_kv_tokens, 0, 0, 0.0, decodes, 0, decodes)
        self._features = tuple.__new__(Features, sums)
        bound = last.bound if is_blocked else UNBOUND
        self._state = tuple.__new__(SteadyState, (scheduler.num_running, len(scheduler.waiting), bound))
        self._began_s = clock._now
        contexts = backend.spread.of_cohort(cohort) if backend.needs_spread else None
        until_s = inf if crosses else clock.arrival_s
        self._steady = backend.steady(self._features, num_steps, self._began_s, until_s, contexts)
        self._ends_s = self._steady.ends_s
        self._num_steps = len(self._ends_s)
        self._crosses = crosses
        return True

    def landing(self) -> Event | None:
        """The leap's end, to be waited for; None if the clock is there already."""
        ends_s = self._steady.ends_s
        if (
            self._clock.arrival_s < ends_s[-1] and not self._crosses
        ):  # it will cut the leap: at the first boundary not before it
            self._num_steps = min(bisect_left(ends_s, self._clock.arrival_s) + 1, self._num_steps)
        end_s = ends_s[self._num_steps - 1]
        if self._clock.reach(end_s, self._step_end):
            return None
        self._wake = self._clock.at(end_s, self._step_end)
        return self._wake

    def arrived(self) -> None:
        """Somebody queues up now."""
        if self._crosses:
            self._joined.append(bisect_left(self._ends_s, self._clock._now) + 1)
        else:
            self.cut()

    def cut(self) -> None:
        """Something happens now: the leap, if there is one, ends with the step that is under way."""
        if self._wake is None:
            return
        step = bisect_left(self._ends_s, self._clock._now, hi=self._num_steps)
        if step + 1 < self._num_steps:
            self._num_steps = step + 1
            sooner = self._clock.at(self._ends_s[step], self._step_end)
            sooner.callbacks, self._wake.callbacks = self._wake.callbacks, []
            self._wake = sooner

    def commit(self) -> None:
        """Let scheduler and records have taken the steps of the leap, if there is one."""
        if not self._num_steps:
            return
        free, self._finishing = self._scheduler.leap(self._num_steps)
        self._backend.skip_to(self._ends_s[self._num_steps - 1])
        self._recorder.leapt(self._features, self._state, self._began_s, self._steady, free, self._joined)
        self._wake, self._num_steps, self._crosses = None, 0, False
        self._joined.clear()

    def land(self) -> list[Request]:
        """The last step of the leap has run; returns who finished with it."""
        self.commit()
        if not self._finishing:
            return []
        finished, self._finishing = self._scheduler.finish(self._finishing), []
        self._recorder.finished(finished)
        return finished

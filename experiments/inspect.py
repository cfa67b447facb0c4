"""Looking into a run: the batches of its iterations, formed once more by the scheduler that formed them.

A run keeps sums, not batches. But given when every iteration ended, trace, scheduler and policy decide all else; so
the run is replayed with its own recorded times, predicted and measured alike, up to the iterations that are asked for.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from ..scheduler.batch import Batch
from ..sim.backend import Execution
from ..sim.records import Columns
from .errors import ExperimentError
from .run import Run
from .world import run_scenario


def batches(run: Run, first: int, stop: int) -> list[Batch]:
    """The batches of iterations ``first`` to ``stop`` (left out) of ``run``, up to the last of the replica that
    ``first`` belongs to. O(``stop``): some 20 µs an iteration.

    Raises ``ExperimentError`` if there is no such iteration, or if today's scheduler decides otherwise than the run
    records (the trace or the policy is another than it was); ``TraceError`` if the trace cannot be read.
    """
    iterations = run.records.iterations
    replicas = iterations["replica"]
    if not 0 <= first < min(stop, len(replicas)):
        raise ExperimentError(f"There is no iteration {first}: the run has {len(replicas)}, counted from 0.")
    firsts = np.searchsorted(replicas, np.arange(run.records.num_replicas + 1))
    chosen = int(replicas[first])
    window = range(first - int(firsts[chosen]), min(stop, int(firsts[chosen + 1])) - int(firsts[chosen]))
    backends = []
    for replica in range(run.records.num_replicas):
        rows = slice(int(firsts[replica]), int(firsts[replica + 1]))
        own = {name: iterations[name][rows] for name in _NEEDED}
        backends.append(_RecordedTimes(own, window if replica == chosen else None))
    with suppress(_Enough):
        run_scenario(run.scenario, run.num_gpu_blocks, *backends, leap=False)
    found = backends[chosen].kept
    if len(found) != len(window):
        raise ExperimentError(_OTHERWISE.format(at=first + len(found), what="the replay ends before it"))
    for batch in found:
        _ = batch.members.ranks  # laid out now, so that the scheduler can go and several threads may read
    return found


_NEEDED = ("start_s", "end_s", "host_s", "device_s", "num_tokens", "num_running")
_OTHERWISE = (
    "The run cannot be looked into: at iteration {at} the scheduler decides otherwise than recorded ({what}), so its "
    "trace, policy or version has changed; run it again."
)


class _Enough(Exception):
    """All that was asked for has been formed: the rest need not be replayed."""


class _RecordedTimes:
    """A backend that lets every batch take as long as it is recorded to have taken, and keeps those of a window."""

    def __init__(self, iterations: Columns, window: range | None) -> None:
        stop = None if window is None else window.stop
        self._rows = list(zip(*(iterations[name][:stop].tolist() for name in _NEEDED), strict=True))
        self._window = window
        self._next = 0
        self.kept: list[Batch] = []

    def launch(self, batch: Batch, now_s: float) -> Execution:
        at = self._next
        if at >= len(self._rows):
            self._refuse(at, "the run ends before it")
        start_s, end_s, host_s, device_s, num_tokens, num_running = self._rows[at]
        if (now_s, batch.num_tokens, batch.num_running) != (start_s, num_tokens, num_running):
            self._refuse(at, f"{batch.num_tokens} tokens instead of {num_tokens}")
        self._next = at + 1
        if self._window is not None:
            if at >= self._window.start:
                self.kept.append(batch)
            if self._next == self._window.stop:
                raise _Enough
        return Execution(start_s, end_s, host_s, device_s)

    def wait(self, ticket: Execution) -> Execution:
        return ticket

    def host(self, seconds: float) -> None:
        """Part of the recorded times already."""

    def _refuse(self, at: int, what: str) -> None:
        raise ExperimentError(_OTHERWISE.format(at=at, what=what))

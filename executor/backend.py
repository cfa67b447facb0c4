"""The measured world: a batch takes as long as the device really takes for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..scheduler.batch import Batch
from ..sim.backend import Execution
from .engine import Engine, Step


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One iteration as it was measured."""

    batch: Batch
    host_s: float
    device_s: float


@dataclass(slots=True)
class _Launched:
    batch: Batch
    step: Step | None
    now_s: float
    host_s: float
    launch_s: float


class DeviceBackend:
    """Runs every batch on ``engine`` and advances the clock by what was measured, so idle time costs nothing.

    A batch starts when the host is ready (``now_s`` plus what it reported through ``host``), or when the batch before
    it ends if that is later. ``device_s`` is the forward with its layout and sampling. A batch with nothing to
    compute and nothing to copy takes no device time. With ``record`` every iteration is kept in ``measured``.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.perf_counter, record: bool = False) -> None:
        self._engine = engine
        self._clock = clock
        self._record = record
        self.measured: list[MeasuredStep] = []
        self._pending_host_s = 0.0
        self._device_free_s = 0.0

    def launch(self, batch: Batch, now_s: float) -> _Launched:
        """Start ``batch``; the CPU has run it when this returns."""
        host_s, self._pending_host_s = self._pending_host_s, 0.0
        began = self._clock()
        step = self._engine.launch(batch) if _occupies_device(batch) else None
        return _Launched(batch, step, now_s, host_s, self._clock() - began)

    def wait(self, ticket: _Launched) -> Execution:
        """Wait for the batch launched first of those not waited for."""
        device_s, tokens = 0.0, {}
        if ticket.step is not None:
            began = self._clock()
            tokens = self._engine.finish(ticket.step)
            on_device_s = ticket.step.device_s()
            device_s = ticket.launch_s + self._clock() - began if on_device_s is None else on_device_s
        start_s = max(ticket.now_s + ticket.host_s, self._device_free_s)
        self._device_free_s = end_s = start_s + device_s
        if self._record:
            self.measured.append(MeasuredStep(ticket.batch, ticket.host_s, device_s))
        return Execution(start_s, end_s, ticket.host_s, device_s, tokens)

    def host(self, seconds: float) -> None:
        """Scheduling or completing took ``seconds``: the next batch starts that much later."""
        self._pending_host_s += seconds


def _occupies_device(batch: Batch) -> bool:
    return bool(batch.num_tokens or batch.padding or batch.copies_out or batch.copies_in)

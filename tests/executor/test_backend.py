from __future__ import annotations

from collections.abc import Callable

import pytest

from batchtwin.executor.backend import DeviceBackend
from batchtwin.executor.design import design_batch
from batchtwin.scheduler.batch import Batch
from batchtwin.scheduler.cohort import NOBODY


class FakeStep:
    def __init__(self, on_device_s: float | None) -> None:
        self.on_device_s = on_device_s

    def device_s(self) -> float | None:
        return self.on_device_s


class FakeEngine:
    """Launching takes 3 s of the fake clock, finishing 0.5 s."""

    def __init__(self, on_device_s: float | None = None) -> None:
        self.now_s = 100.0
        self.num_launched = 0
        self._on_device_s = on_device_s

    def launch(self, batch: Batch) -> FakeStep:
        self.now_s += 3.0
        self.num_launched += 1
        return FakeStep(self._on_device_s)

    def finish(self, step: FakeStep) -> dict[str, int]:
        self.now_s += 0.5
        return {"r": 42}


def _backend(engine: FakeEngine, *, record: bool = False) -> DeviceBackend:
    clock: Callable[[], float] = lambda: engine.now_s  # noqa: E731
    return DeviceBackend(engine, clock=clock, record=record)  # type: ignore[arg-type]


BATCH = design_batch([5, 9], [], block_size=4, num_gpu_blocks=20)
EMPTY = Batch(step=0, clock=0, members=NOBODY, chunks=[])


def test_a_batch_starts_after_the_hosts_part_and_lasts_as_measured() -> None:
    backend = _backend(FakeEngine())
    backend.host(0.25)
    backend.host(0.5)
    execution = backend.wait(backend.launch(BATCH, 10.0))
    assert execution == (10.75, 14.25, 0.75, 3.5, {"r": 42})


def test_host_time_is_charged_once() -> None:
    backend = _backend(FakeEngine())
    backend.host(1.0)
    backend.wait(backend.launch(BATCH, 0.0))
    assert backend.wait(backend.launch(BATCH, 20.0)).host_s == 0.0


def test_a_batch_launched_early_waits_for_the_device() -> None:
    backend = _backend(FakeEngine())
    first, second = backend.launch(BATCH, 0.0), backend.launch(BATCH, 0.0)
    assert backend.wait(first)[:2] == (0.0, 3.5)
    assert backend.wait(second)[:2] == (3.5, 7.0)


def test_idle_time_between_batches_is_skipped() -> None:
    engine = FakeEngine()
    backend = _backend(engine)
    backend.wait(backend.launch(BATCH, 0.0))
    engine.now_s += 1000.0
    assert backend.wait(backend.launch(BATCH, 5.0))[:2] == (5.0, 8.5)


def test_an_empty_batch_costs_host_time_only() -> None:
    engine = FakeEngine()
    backend = _backend(engine)
    backend.host(0.125)
    assert backend.wait(backend.launch(EMPTY, 2.0)) == (2.125, 2.125, 0.125, 0.0, {})
    assert engine.num_launched == 0


def test_the_devices_own_clock_is_preferred() -> None:
    backend = _backend(FakeEngine(on_device_s=0.75))
    assert backend.wait(backend.launch(BATCH, 1.0)).device_s == 0.75


@pytest.mark.parametrize("record", [True, False])
def test_iterations_are_kept_only_if_asked_for(record: bool) -> None:
    backend = _backend(FakeEngine(), record=record)
    backend.host(0.25)
    backend.wait(backend.launch(BATCH, 0.0))
    kept = [(step.batch is BATCH, step.host_s, step.device_s) for step in backend.measured]
    assert kept == ([(True, 0.25, 3.5)] if record else [])

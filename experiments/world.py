"""Putting a scenario together: trace, scheduler, replica, clients."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..scheduler.scheduler import Scheduler
from ..sim.backend import Backend
from ..sim.clients import closed_loop, open_loop
from ..sim.clock import Clock
from ..sim.records import Recorder, Records
from ..sim.replica import Replica
from .scenario import Scenario


def run_scenario(
    scenario: Scenario,
    num_gpu_blocks: int,
    backend: Backend,
    *,
    host_clock: Callable[[], float] | None = None,
    clock: Clock | None = None,
    leap: bool = True,
) -> Records:
    """Replay ``scenario`` on ``backend`` to its end. The same for both worlds; nothing else differs."""
    requests = scenario.trace.load().requests()
    clock = clock or Clock()
    scheduler = Scheduler(scenario.config(num_gpu_blocks), scenario.policy)
    depth = 2 if scenario.async_scheduling else 1
    recorder = Recorder(len(requests))
    replica = Replica(clock, scheduler, backend, recorder, depth=depth, leap=leap, host_clock=host_clock)
    if scenario.num_clients is None:
        clock.process(open_loop(clock, replica, requests))
    else:
        closed_loop(clock, replica, requests, num_clients=scenario.num_clients, think_s=scenario.think_s)
    with _no_cycles():
        clock.run()
    scheduler.check_integrity()
    return recorder.records()


@contextmanager
def _no_cycles() -> Iterator[None]:
    """The loop makes no garbage cycles worth collecting, and looking for them takes a fifth of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

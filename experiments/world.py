"""Putting a scenario together: trace, scheduler, replica, clients."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ..scheduler.scheduler import Scheduler
from ..sim.backend import Backend
from ..sim.clients import closed_loop, open_loop
from ..sim.clock import Clock
from ..sim.merge import merge
from ..sim.records import Recorder, Records
from ..sim.replica import Replica
from ..sim.router import Router, make_rule
from ..sim.server import Server
from ..sim.spill import Sink, SpillingRecorder
from .errors import ExperimentError
from .scenario import Scenario


def run_scenario(
    scenario: Scenario,
    num_gpu_blocks: int,
    *backends: Backend,
    host_clock: Callable[[], float] | None = None,
    clock: Clock | None = None,
    leap: bool = True,
    sink: Sink | None = None,
) -> Records:
    """Replay ``scenario`` to its end, each replica (``num_gpu_blocks`` each) on a backend of its own. The same for both
    worlds; nothing else differs. With a ``sink`` (one replica only) the records go there as they come. Raises
    ``ExperimentError`` if there are not as many backends as replicas.
    """
    if len(backends) != scenario.num_replicas:
        raise ExperimentError(
            f"The scenario has {scenario.num_replicas} replicas, but there are backends for {len(backends)}: a device "
            f"measures one replica, several are predicted only."
        )
    trace = scenario.trace.load()
    requests = trace.iter_requests()
    clock = clock or Clock()
    config = scenario.config(num_gpu_blocks)
    start = partial(Replica, clock, depth=2 if scenario.async_scheduling else 1, leap=leap, host_clock=host_clock)
    replicas = [
        start(
            Scheduler(config, scenario.policy),
            backend,
            Recorder(len(trace), index) if sink is None else SpillingRecorder(sink),
            index=index,
        )
        for index, backend in enumerate(backends)
    ]
    server: Server = replicas[0] if len(replicas) == 1 else _router(replicas, scenario)
    if scenario.num_clients is None:
        clock.process(open_loop(clock, server, requests))
    else:
        closed_loop(clock, server, requests, num_clients=scenario.num_clients, think_s=scenario.think_s)
    with _no_cycles():
        clock.run()
    for replica in replicas:
        replica.scheduler.check_integrity()
    parts = [replica.recorder.records() for replica in replicas]
    return merge(parts) if len(parts) > 1 else parts[0]


def _router(replicas: Sequence[Replica], scenario: Scenario) -> Router:
    return Router(replicas, make_rule(scenario.router, scenario.block_size, scenario.router_min_prefix_share))


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

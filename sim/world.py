"""Putting a replay together: trace, schedulers, replicas, clients."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..scheduler.config import SchedulerConfig
from ..scheduler.scheduler import Scheduler
from .backend import Backend
from .clients import closed_loop, open_loop
from .clock import Clock
from .cost_backend import CostModelBackend
from .records import Recorder, Records
from .replica import Replica

if TYPE_CHECKING:
    from ..traces.trace import Trace
    from .router import Rule
    from .server import Server
    from .spill import Sink


@dataclass(frozen=True, slots=True)
class Clients:
    """A closed loop: so many clients, each thinking so long between its requests."""

    count: int
    think_s: float = 0.0


def simulate(
    trace: Trace,
    config: SchedulerConfig,
    policy: str,
    backends: Sequence[Backend],
    *,
    rule: Rule | None = None,
    clients: Clients | None = None,
    host_clock: Callable[[], float] | None = None,
    clock: Clock | None = None,
    leap: bool = True,
    sink: Sink | None = None,
) -> Records:
    """Replay ``trace`` to its end, one replica a backend (several need a ``rule`` that routes). Open loop unless there
    are ``clients``. With a ``sink`` (one replica only) the records go there as they come.
    """
    clock = clock or Clock()
    start = partial(Replica, clock, depth=2 if config.async_scheduling else 1, leap=leap, host_clock=host_clock)
    counts = all(isinstance(backend, CostModelBackend) for backend in backends)  # nobody there reads a block table
    replicas = [
        start(
            Scheduler(config, policy, names_blocks=not counts), backend, _recorder(len(trace), index, sink), index=index
        )
        for index, backend in enumerate(backends)
    ]
    server = _server(replicas, rule)
    if clients is None:
        open_loop(clock, server, trace.iter_requests())
    else:
        closed_loop(clock, server, trace.iter_requests(), num_clients=clients.count, think_s=clients.think_s)
    with _no_cycles():
        clock.run()
    for replica in replicas:
        replica.scheduler.check_integrity()
    parts = [replica.recorder.records() for replica in replicas]
    if len(parts) == 1:
        return parts[0]
    from .merge import merge

    return merge(parts)


def _recorder(num_requests: int, replica: int, sink: Sink | None) -> Recorder:
    if sink is None:
        return Recorder(num_requests, replica)
    from .spill import SpillingRecorder

    return SpillingRecorder(sink)


def _server(replicas: list[Replica], rule: Rule | None) -> Server:
    if rule is None:
        (replica,) = replicas
        return replica
    from .router import Router

    return Router(replicas, rule)


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

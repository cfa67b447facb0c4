"""Replaying a scenario."""

from __future__ import annotations

from collections.abc import Callable

from ..scheduler.errors import RequestRefused
from ..sim.backend import Backend
from ..sim.clock import Clock
from ..sim.records import Records
from ..sim.router import make_rule
from ..sim.spill import Sink
from ..sim.world import Clients, simulate
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
    s = scenario
    if len(backends) != s.num_replicas:
        raise ExperimentError(
            f"The scenario has {s.num_replicas} replicas, but there are backends for {len(backends)}: a device "
            f"measures one replica, several are predicted only."
        )
    trace = s.trace.load()
    try:
        return simulate(
            trace,
            s.config(num_gpu_blocks),
            s.policy,
            backends,
            rule=make_rule(s.router, s.block_size, s.router_min_prefix_share) if s.num_replicas > 1 else None,
            clients=None if s.concurrency is None else Clients(s.concurrency, s.think_s),
            host_clock=host_clock,
            clock=clock,
            leap=leap,
            sink=sink,
        )
    except RequestRefused as error:
        longest = int(trace.num_prompt_tokens.max())
        if longest < s.max_model_len:
            raise
        told = str(error).removesuffix(".")  # by the first that does not fit; a knob is set once for all
        raise RequestRefused(f"{told} (the longest prompt of {len(trace):,} has {longest:,} tokens).") from error

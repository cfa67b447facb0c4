"""BatchTwin: a digital twin of LLM continuous batching.

``from batchtwin import replay, sweep, compare``: a request trace goes in, one scheduler decides every iteration, and
either a cost model or a real device says how long it took. Names are loaded when they are first used, so that a
simulation pays for nothing it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .experiments.calibrate import calibrate
    from .experiments.compare import compare
    from .experiments.plan import plan
    from .experiments.recommend import recommend
    from .experiments.replay import replay
    from .experiments.run import Run, load_run
    from .experiments.scenario import Scenario, TraceSpec
    from .experiments.sweep import Sweep, open_sweep, sweep
    from .scheduler import Policy, Request, Scheduler, SchedulerConfig
    from .traces import Trace, load_trace

_HOME = {
    "Policy": "scheduler",
    "Request": "scheduler",
    "Run": "experiments.run",
    "Scenario": "experiments.scenario",
    "Scheduler": "scheduler",
    "SchedulerConfig": "scheduler",
    "Sweep": "experiments.sweep",
    "Trace": "traces",
    "TraceSpec": "experiments.scenario",
    "calibrate": "experiments.calibrate",
    "compare": "experiments.compare",
    "load_run": "experiments.run",
    "load_trace": "traces",
    "open_sweep": "experiments.sweep",
    "plan": "experiments.plan",
    "recommend": "experiments.recommend",
    "replay": "experiments.replay",
    "sweep": "experiments.sweep",
}
__all__ = [
    "Policy",
    "Request",
    "Run",
    "Scenario",
    "Scheduler",
    "SchedulerConfig",
    "Sweep",
    "Trace",
    "TraceSpec",
    "calibrate",
    "compare",
    "load_run",
    "load_trace",
    "open_sweep",
    "plan",
    "recommend",
    "replay",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)

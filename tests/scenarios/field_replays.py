"""Workloads, knobs and cost laws as data in; schedules and records out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchtwin.experiments.run import Run
from batchtwin.experiments.scenario import TraceSpec, make_scenario
from batchtwin.experiments.world import run_scenario
from batchtwin.scheduler import Batch, Request, Scheduler, SchedulerConfig
from batchtwin.sim.cost.models import CostModel, Fitted
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.traces import Fixed, LengthDistribution, Lognormal, Quantiles, Trace, generate, write_vidur_csv

Inputs = Mapping[str, Any]
_FOLDER = tempfile.TemporaryDirectory(prefix="field-rows-")


class Outcome(NamedTuple):
    """What a check found: whether the expectation holds, and in one sentence what came out."""

    holds: bool
    came_out: str


Check = Callable[[Inputs], Outcome]


def over_seeds(check: Check) -> Check:
    """The expectation must hold for the workload of every one of ``seeds``; told is what came out with the first."""

    @wraps(check)
    def run(inputs: Inputs) -> Outcome:
        found = [check({**inputs, "workload": {**inputs["workload"], "seed": seed}}) for seed in inputs["seeds"]]
        num_holding = sum(outcome.holds for outcome in found)
        text = f"{found[0].came_out} Holds for {num_holding} of {len(found)} seeds."
        return Outcome(num_holding == len(found), text)

    return run


@dataclass(frozen=True)
class Replayed:
    """One replay: what was recorded, and its metrics."""

    run: Run

    @property
    def metrics(self) -> dict[str, float]:
        return self.run.metrics

    @property
    def iterations(self) -> Mapping[str, NDArray[Any]]:
        return self.run.records.iterations

    @property
    def requests(self) -> Mapping[str, NDArray[Any]]:
        return self.run.records.requests

    @property
    def computed_tokens(self) -> int:
        """Tokens that went through the model, recomputed ones included."""
        return int(self.iterations["num_tokens"].sum())


def law_of(profile: Inputs) -> Fitted:
    """The cost law of a profile in the data: coefficients in seconds."""
    law: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in profile["law"].items()
    }
    return Fitted(**law)


def trace_of(workload: Inputs) -> Trace:
    """``requests``: rows of (arrival s, prompt, output); or ``n`` requests at ``rate_per_s`` (null: all at 0) with
    ``prompt`` and ``output`` lengths.
    """
    if "requests" in workload:
        arrival_s, prompts, outputs = zip(*workload["requests"], strict=True)
        return Trace("rows", np.array(arrival_s, float), np.array(prompts), np.array(outputs))
    rate = workload.get("rate_per_s")
    return generate(
        workload["n"],
        float("inf") if rate is None else rate,
        workload.get("seed", 0),
        prompt=_lengths(workload["prompt"]),
        output=_lengths(workload["output"]),
    )


def _lengths(spec: Any) -> LengthDistribution:
    if isinstance(spec, int):
        return Fixed(spec)
    if "uniform" in spec:
        return Quantiles((0.0, 1.0), tuple(spec["uniform"]))
    return Lognormal(spec["median"], spec["sigma"], max_tokens=spec["max"])


def replay(cost_model: CostModel, workload: Inputs, knobs: Inputs) -> Replayed:
    """Replay ``workload`` to its end under ``cost_model``; ``knobs`` are fields of ``Scenario``."""
    trace = trace_of(workload)
    path = Path(_FOLDER.name) / f"{trace.digest()}.csv"
    if not path.exists():
        write_vidur_csv(trace, path)
    scenario = make_scenario(trace=TraceSpec(source=str(path)), **knobs)
    assert scenario.num_gpu_blocks is not None
    records = run_scenario(scenario, scenario.num_gpu_blocks, CostModelBackend(cost_model))
    return Replayed(Run(scenario, "predicted", records, scenario.num_gpu_blocks, {}))


def scheduler_of(knobs: Inputs, requests: Sequence[Sequence[int]], policy: str = "vllm_v1") -> Scheduler:
    """A scheduler with everybody in its queue: ``requests`` are (prompt, output) or (prompt, output, max_tokens)."""
    scheduler = Scheduler(SchedulerConfig(**knobs), policy)
    for i, (prompt, output, *limit) in enumerate(requests):
        scheduler.add(Request(str(i), prompt, output, arrival_s=float(i), max_tokens=limit[0] if limit else None))
    return scheduler


def steps(scheduler: Scheduler) -> Iterator[Batch]:
    """Run ``scheduler`` dry; each batch is given before it completes."""
    while scheduler.has_work:
        batch = scheduler.schedule()
        yield batch
        scheduler.complete(batch)
    scheduler.check_integrity()


def ids(requests: Sequence[Request]) -> list[str]:
    return [request.request_id for request in requests]


def short(value: float) -> str:
    """Three significant digits, so that the last bits of another machine's libm do not show."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def arrow(values: Sequence[float]) -> str:
    """A series in words."""
    return " → ".join(short(value) for value in values)

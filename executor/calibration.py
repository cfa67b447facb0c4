"""Measuring designed batches on this device; fitting them is ``sim/cost``'s."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..scheduler.batch import Batch
from .engine import Engine

_MIN_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """A batch, and how long each of its repeats took in s."""

    batch: Batch
    times_s: list[float] = field(default_factory=list)


def measure_batches(
    engine: Engine,
    batches: Sequence[Batch],
    *,
    minutes: float,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[MeasuredBatch]:
    """Run ``batches`` in rounds, each round in an order of its own, until ``minutes`` are used or nearly so.

    A warm-up round is thrown away and at least three rounds count, whatever they take. Interleaving spreads the
    machine's drift over all batches alike. ``progress`` is told the share of the time used, from 0 to 1.
    """
    rng = np.random.default_rng(seed)
    measured = [MeasuredBatch(batch) for batch in batches]
    began = clock()
    budget_s = 60.0 * minutes
    for batch in batches:
        engine.run(batch)
    num_rounds = 0
    round_s = clock() - began
    while num_rounds < _MIN_ROUNDS or clock() - began + round_s < budget_s:
        round_began = clock()
        for i in rng.permutation(len(batches)).tolist():
            engine.run(batches[i])  # not timed: a server's iteration finds the caches its like has left
            measured[i].times_s.append(_time_s(engine, batches[i], clock))
        num_rounds += 1
        round_s = clock() - round_began
        if progress is not None:
            progress(min(1.0, (clock() - began) / budget_s) if budget_s else 1.0)
    return measured


def _time_s(engine: Engine, batch: Batch, clock: Callable[[], float]) -> float:
    """As the backend measures it: the device's own clock where it has one."""
    began = clock()
    step = engine.launch(batch)
    engine.finish(step)
    on_device_s = step.device_s()
    return clock() - began if on_device_s is None else on_device_s

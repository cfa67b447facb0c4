"""Measuring designed batches on this device; fitting them is ``sim/cost``'s."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..scheduler.batch import Batch
from .engine import Engine

_MIN_ROUNDS = 3
_MIN_BATCHES = 20
"""A law has up to 15 terms."""
_WARM_UP_SHARE = 0.125
"""A round runs every batch twice: so at least three rounds fit into the time."""


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """A batch, how long each of its repeats took in s, and when each was done, in s since the beginning."""

    batch: Batch
    times_s: list[float] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)


def measure_batches(
    engine: Engine,
    batches: Sequence[Batch],
    *,
    minutes: float,
    choose: Callable[[dict[int, float]], int | None] | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[MeasuredBatch]:
    """Run ``batches`` in rounds, each round in an order of its own, until ``minutes`` are used or nearly so.

    A warm-up pass is thrown away and at least three rounds count, whatever they take. Interleaving spreads the
    machine's drift over all batches alike. ``choose`` says which batch comes next in the warm-up pass, given the times
    of those before it by index; the pass ends when it says None or has taken ``_WARM_UP_SHARE`` of the time, and only
    the batches met in it are measured. ``progress`` is told the share of the time used, from 0 to 1.
    """
    began = clock()
    budget_s = 60.0 * minutes
    rng = np.random.default_rng(seed)
    first_s = _warm_up(engine, batches, choose, _WARM_UP_SHARE * budget_s, clock)
    measured = [MeasuredBatch(batches[i]) for i in sorted(first_s)]
    num_rounds = 0
    round_s = clock() - began
    while num_rounds < _MIN_ROUNDS or clock() - began + round_s < budget_s:
        round_began = clock()
        for i in rng.permutation(len(measured)).tolist():
            row = measured[i]
            engine.run(row.batch)  # not timed: a server's iteration finds the caches its like has left
            row.times_s.append(time_batch_s(engine, row.batch, clock))
            row.at_s.append(clock() - began)
        num_rounds += 1
        round_s = clock() - round_began
        if progress is not None:
            progress(min(1.0, (clock() - began) / budget_s) if budget_s else 1.0)
    return measured


def _warm_up(
    engine: Engine,
    batches: Sequence[Batch],
    choose: Callable[[dict[int, float]], int | None] | None,
    share_s: float,
    clock: Callable[[], float],
) -> dict[int, float]:
    """Seconds of each batch that was run, by index."""
    if choose is None:
        return {i: time_batch_s(engine, batch, clock) for i, batch in enumerate(batches)}
    began, first_s = clock(), dict[int, float]()
    while (i := choose(first_s)) is not None:
        first_s[i] = time_batch_s(engine, batches[i], clock)
        if clock() - began > share_s and len(first_s) >= _MIN_BATCHES:
            break
    return first_s


def time_batch_s(engine: Engine, batch: Batch, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one run of ``batch``, as the backend measures it: the device's own clock where it has one."""
    began = clock()
    step = engine.launch(batch)
    engine.finish(step)
    on_device_s = step.device_s()
    return clock() - began if on_device_s is None else on_device_s

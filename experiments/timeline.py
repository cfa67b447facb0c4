"""A run over time: running, waiting and KV usage at evenly spaced moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..sim.records import FloatArray, Records

NUM_POINTS = 60
SERIES = ("running", "waiting", "kv_usage")
Timeline = Mapping[str, Sequence[float]]
"""``time_s`` and the ``SERIES``, one value a moment: running and waiting requests of all replicas together, the share
of their KV blocks in use."""


def timeline(records: Records, num_usable_blocks: int) -> dict[str, list[float]]:
    """The whole run at ``NUM_POINTS`` moments, the first at 0, the last when the last iteration ends."""
    end_s = float(records.iterations["end_s"].max(initial=0.0))
    times_s = np.linspace(0.0, end_s, NUM_POINTS)
    return {"time_s": times_s.tolist()} | {
        name: values.tolist() for name, values in state_at(records, num_usable_blocks, times_s).items()
    }


def state_at(records: Records, num_usable_blocks: int, times_s: FloatArray) -> dict[str, FloatArray]:
    """The ``SERIES`` at [M] moments; an idle server has nobody and holds nothing."""
    out = {name: np.zeros(len(times_s)) for name in SERIES}
    its = records.iterations
    for replica in range(records.num_replicas):
        rows = np.flatnonzero(its["replica"] == replica)
        if not len(rows):
            continue
        at = np.searchsorted(its["start_s"][rows], times_s, side="right") - 1
        busy = (at >= 0) & (times_s <= its["end_s"][rows][np.maximum(at, 0)])
        now: NDArray[np.int64] = rows[at[busy]]
        out["running"][busy] += its["num_running"][now]
        out["waiting"][busy] += its["num_waiting"][now]
        out["kv_usage"][busy] += (1.0 - its["num_free_blocks"][now] / num_usable_blocks) / records.num_replicas
    return out


def mean_differences(predicted: Timeline, measured: Records, num_usable_blocks: int) -> dict[str, float]:
    """Mean |predicted − measured| of each of the ``SERIES`` over the moments of ``predicted``."""
    seen = state_at(measured, num_usable_blocks, np.array(predicted["time_s"]))
    return {name: float(np.abs(np.array(predicted[name]) - seen[name]).mean()) for name in SERIES}


def means_at(predicted: Timeline, measured: Records, num_usable_blocks: int) -> dict[str, float]:
    """Mean of each of the ``SERIES`` of ``measured`` over the moments of ``predicted``."""
    seen = state_at(measured, num_usable_blocks, np.array(predicted["time_s"]))
    return {name: float(values.mean()) for name, values in seen.items()}

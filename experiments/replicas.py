"""A run with several replicas, replica by replica."""

from __future__ import annotations

from ..sim.merge import split
from ..sim.metrics import busy_times, metrics
from .run import Run

_RATES = ("request_throughput", "output_throughput", "total_token_throughput", "request_goodput")


def replica_metrics(run: Run) -> list[dict[str, float]]:
    """One row a replica: the metrics of the requests it got and the iterations it ran.

    Rates are over the *run's* duration, so that they add up to the run's own; ``busy_share`` is the share of it in
    which an iteration ran.
    """
    duration_s = run.metrics["duration"] or float("nan")
    rows = []
    for replica, records in enumerate(split(run.records)):
        row = metrics(records, run.num_gpu_blocks - 1, run.scenario.slo)
        own_s = row["duration"]
        row |= {name: row[name] * own_s / duration_s if row["completed"] else 0.0 for name in _RATES if name in row}
        row["duration"] = duration_s
        row["busy_share"] = float(busy_times(records).sum()) / duration_s
        rows.append({"replica": replica, **row})
    return rows

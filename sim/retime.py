"""Recorded decisions under other durations: the tool with which an error is split."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .records import Columns, FloatArray, Records


def retime(records: Records, host_s: FloatArray, device_s: FloatArray) -> Records:
    """The recorded batches in their order, each taking ``host_s[i]`` and then ``device_s[i]`` ([iterations]).

    A batch is launched when the batch that had ended last before its recorded launch has ended (the one before it,
    or with asynchronous scheduling the one before that) and all those it admits have arrived; the device starts when
    the host is ready and the batch before has ended. Times are added in the order in which a replay adds them, so
    that equal durations give equal bits.
    """
    iterations = records.iterations
    columns = (iterations["replica"], _launched_after(iterations), _last_arrival_s(records), host_s, device_s)
    launches_s: list[float] = []
    ends_s: list[float] = []
    launched_s = ended_s = 0.0
    last_replica = 0
    for replica, after, earliest_s, host_part_s, device_part_s in zip(*(c.tolist() for c in columns), strict=True):
        if replica != last_replica:
            launched_s, ended_s, last_replica = 0.0, 0.0, replica
        launched_s = max(launched_s, earliest_s, ends_s[after] if after >= 0 else 0.0)
        ended_s = max(launched_s + host_part_s, ended_s) + device_part_s
        launches_s.append(launched_s)
        ends_s.append(ended_s)
    return records.retimed(np.array(launches_s), np.array(ends_s))


def _launched_after(iterations: Columns) -> NDArray[np.int64]:
    """The iteration of the same replica that had ended last when this one was launched; −1 if none had."""
    replica, launched_s, end_s = iterations["replica"], iterations["start_s"], iterations["end_s"]
    after = np.full(len(replica), -1, dtype=np.int64)
    for rows in np.split(np.arange(len(replica)), np.flatnonzero(np.diff(replica)) + 1):
        ended = np.searchsorted(end_s[rows], launched_s[rows], side="right")
        ended = np.minimum(ended, np.arange(len(rows)))  # a step that takes no time ends when it is launched
        after[rows] = np.where(ended > 0, rows[0] + ended - 1, -1) if len(rows) else -1
    return after


def _last_arrival_s(records: Records) -> FloatArray:
    """The latest arrival among those whom an iteration admits; −∞ where it admits nobody."""
    scheduled_at = records.requests["scheduled_at"]
    admitted = scheduled_at >= 0
    latest_s = np.full(len(records.iterations["end_s"]), -np.inf)
    np.maximum.at(latest_s, scheduled_at[admitted], records.requests["arrival_s"][admitted])
    return latest_s

"""Recorded decisions under other durations: the tool with which an error is split."""

from __future__ import annotations

import numpy as np

from .records import FloatArray, Records


def retime(records: Records, host_s: FloatArray, device_s: FloatArray) -> Records:
    """The recorded batches one after the other, each taking ``host_s[i]`` and then ``device_s[i]`` ([iterations]): a
    batch starts when the one before on its replica has ended and all those it admits have arrived.

    Times are added in the order in which a replay adds them, so that equal durations give equal bits.
    """
    scheduled_at = records.requests["scheduled_at"]
    admitted = scheduled_at >= 0
    not_before_s = np.full(len(host_s), -np.inf)
    np.maximum.at(not_before_s, scheduled_at[admitted], records.requests["arrival_s"][admitted])
    start_s, end_s = np.empty(len(host_s)), np.empty(len(host_s))
    now_s, last_replica = 0.0, 0
    columns = (records.iterations["replica"], not_before_s, host_s, device_s)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for i, (replica, earliest_s, host_part_s, device_part_s) in enumerate(rows):
        if replica != last_replica:
            now_s, last_replica = 0.0, replica
        start_s[i] = max(now_s, earliest_s)
        now_s = end_s[i] = start_s[i] + host_part_s + device_part_s
    return records.retimed(start_s, end_s)

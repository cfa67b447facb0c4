"""Recorded decisions under other durations: the tool with which an error is split."""

from __future__ import annotations

import numpy as np

from .records import FloatArray, Records


def retime(records: Records, durations_s: FloatArray) -> Records:
    """The recorded batches one after the other, each taking ``durations_s[i]`` ([iterations], s): a batch starts
    when the one before has ended and all those it admits have arrived.
    """
    scheduled_at = records.requests["scheduled_at"]
    admitted = scheduled_at >= 0
    not_before_s = np.full(len(durations_s), -np.inf)
    np.maximum.at(not_before_s, scheduled_at[admitted], records.requests["arrival_s"][admitted])
    start_s, end_s = np.empty(len(durations_s)), np.empty(len(durations_s))
    now_s = 0.0
    for i, (earliest_s, duration_s) in enumerate(zip(not_before_s.tolist(), durations_s.tolist(), strict=True)):
        start_s[i] = max(now_s, earliest_s)
        now_s = end_s[i] = start_s[i] + duration_s
    return records.retimed(start_s, end_s)

"""The records of several replicas as one, and one replica's again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .records import Columns, Records

_TO_ITERATIONS = ("scheduled_at", "first_token_at", "last_token_at")


def merge(parts: Sequence[Records]) -> Records:
    """Records of replicas that shared the requests of one trace: a request's row is that of the replica that got it,
    iterations stand one replica after the other, and whatever points to an iteration follows it.
    """
    firsts = np.cumsum([0, *(len(part.iterations["end_s"]) for part in parts)])
    moved = [_moved(part, int(first)) for part, first in zip(parts, firsts, strict=False)]
    requests = {name: values.copy() for name, values in moved[0].requests.items()}
    for part in moved[1:]:
        mine = part.requests["replica"] >= 0
        for name, values in part.requests.items():
            requests[name][mine] = values[mine]
    names = parts[0].iterations
    iterations = {name: np.concatenate([part.iterations[name] for part in moved]) for name in names}
    return Records(requests, iterations, np.concatenate([part.gaps for part in moved]), len(parts))


def split(records: Records) -> list[Records]:
    """One record a replica, with the requests that it got; iterations are numbered from 0 again."""
    return [_only(records, replica) for replica in range(records.num_replicas)]


def _only(records: Records, replica: int) -> Records:
    where = np.flatnonzero(records.iterations["replica"] == replica)
    first = int(where[0]) if len(where) else 0
    ran = slice(first, first + len(where))
    iterations = {name: values[ran] for name, values in records.iterations.items()}
    mine = records.requests["replica"] == replica
    requests = {name: values[mine] for name, values in records.requests.items()}
    inside = (records.gaps[:, 1] >= ran.start) & (records.gaps[:, 1] < ran.stop)
    return _moved(Records(requests, iterations, records.gaps[inside]), -first)


def _moved(records: Records, by: int) -> Records:
    """The same with iterations that are numbered ``by`` higher."""
    return Records(
        _shifted(records.requests, _TO_ITERATIONS, by),
        _shifted(records.iterations, ("previous_tick",), by),
        records.gaps + by,
    )


def _shifted(columns: Columns, names: Sequence[str], by: int) -> Columns:
    return {**columns, **{name: _shift(columns[name], by) for name in names}}


def _shift(at: NDArray[np.int64], by: int) -> NDArray[np.int64]:
    return np.where(at >= 0, at + by, at)

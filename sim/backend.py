"""The seam between the two worlds: who says how long an iteration took."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..scheduler.batch import Batch

Ticket = Any
"""Whatever a backend needs to recognise a launched batch."""


class Execution(NamedTuple):
    """When a batch ran. ``host_s`` is what the host took before the device could start, ``device_s`` the forward."""

    start_s: float
    end_s: float
    host_s: float
    device_s: float
    tokens: dict[str, int] | None = None
    """Request id → the token this step gave it; None where no model runs."""


class Backend(Protocol):
    """Runs a batch, really or in arithmetic."""

    def launch(self, batch: Batch, now_s: float) -> Ticket:
        """Start ``batch``; may return before it has run."""
        ...

    def wait(self, ticket: Ticket) -> Execution:
        """Wait for a launched batch. ``end_s`` never precedes the ``now_s`` of its launch."""
        ...

    def host(self, seconds: float) -> None:
        """Account for what the host itself took (scheduling, completing) since the last launch: a measured world
        adds it to its clock, a predicted one has a term of its own for it and ignores the figure.
        """
        ...

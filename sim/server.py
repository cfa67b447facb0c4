"""What clients talk to."""

from __future__ import annotations

from typing import Protocol

from simpy.events import Event

from ..scheduler.request import Request


class Server(Protocol):
    """A replica, or a router in front of several: a client cannot tell which."""

    def submit(self, request: Request, *, due_s: float | None = None) -> None:
        """A request arrives now. ``due_s`` is when its client meant to send it, if that was earlier."""
        ...

    def abort(self, request_id: str) -> None:
        """The client of a request gave up."""
        ...

    def finished(self, request: Request) -> Event:
        """An event that happens when ``request`` finishes or is aborted."""
        ...

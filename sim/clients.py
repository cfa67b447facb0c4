"""Who sends the requests."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from typing import Any

from simpy.events import Event

from ..scheduler.request import Request
from .clock import ARRIVAL, Clock
from .server import Server


def open_loop(clock: Clock, server: Server, requests: Iterable[Request]) -> None:
    """Send every request at its arrival time, whatever the server does."""
    clock.feed(requests, server.submit)


def closed_loop(
    clock: Clock, server: Server, requests: Iterable[Request], *, num_clients: int, think_s: float = 0.0
) -> None:
    """``num_clients`` clients share the requests in order. A client sends its next one when its last has ended and
    ``think_s`` have passed, never before the request's own arrival time; what a request waits at this gate is
    recorded apart (``due_s``) and is no part of its TTFT.
    """
    queue = iter(requests)
    for _, first in zip(range(num_clients), queue, strict=False):  # more clients than requests have nothing to do
        clock.process(_client(clock, server, chain((first,), queue), think_s))


def _client(clock: Clock, server: Server, queue: Iterator[Request], think_s: float) -> Generator[Event, Any, None]:
    for request in queue:
        due_s = request.arrival_s
        if due_s > clock.now:
            yield clock.at(due_s, ARRIVAL)
        ended = server.finished(request)
        server.submit(request, due_s=due_s)
        yield ended
        if think_s > 0:
            yield clock.at(clock.now + think_s, ARRIVAL)

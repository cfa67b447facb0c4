"""A router: several replicas that look like one server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from simpy.events import Event

from ..scheduler.hashing import block_names
from ..scheduler.request import Request
from .replica import Replica


class Rule(Protocol):
    """Says which replica gets a request."""

    def choose(self, request: Request, num_outstanding: Sequence[int]) -> int:
        """The replica's index; ``num_outstanding`` are the requests sent to each and not ended."""
        ...


class RoundRobin:
    """One after the other, whatever they have to do."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, num_outstanding: Sequence[int]) -> int:
        """The one after the last."""
        chosen = self._next
        self._next = (chosen + 1) % len(num_outstanding)
        return chosen


class LeastOutstanding:
    """Whoever has the fewest requests that were sent and have not ended; of several the first."""

    def choose(self, request: Request, num_outstanding: Sequence[int]) -> int:
        """The first of the least loaded."""
        return min(range(len(num_outstanding)), key=lambda index: num_outstanding[index])


class PrefixAffinity(LeastOutstanding):
    """Whoever was sent the longest beginning of this prompt, in whole KV blocks, and was so last: it may have them
    cached. If nobody was, whoever has least outstanding.

    It goes by what was sent, not by what a replica still holds. A beginning that all prompts share (a system prompt)
    sends everything to one replica; ``min_share`` is the share of a prompt's blocks from which a match counts.
    """

    def __init__(self, block_size: int, min_share: float = 0.0) -> None:
        self._block_size = block_size
        self._min_share = min_share
        self._last_sent: dict[int, int] = {}

    def choose(self, request: Request, num_outstanding: Sequence[int]) -> int:
        """Whoever knows the longest beginning. A block's name tells all before it too."""
        num_blocks = request.num_prompt_tokens // self._block_size
        prefixes = block_names(request, self._block_size, num_blocks)
        num_known = next((n for n in range(num_blocks, 0, -1) if prefixes[n - 1] in self._last_sent), 0)
        if num_known and num_known >= self._min_share * num_blocks:
            chosen = self._last_sent[prefixes[num_known - 1]]
        else:
            chosen = super().choose(request, num_outstanding)
        self._last_sent.update(dict.fromkeys(prefixes, chosen))
        return chosen


def make_rule(name: str, block_size: int, min_prefix_share: float = 0.0) -> Rule:
    """The rule of this name (``Scenario.router``)."""
    if name == "round_robin":
        return RoundRobin()
    if name == "least_outstanding":
        return LeastOutstanding()
    return PrefixAffinity(block_size, min_prefix_share)


class Router:
    """Sends each request to one of its replicas when it arrives, and for good. Routing takes no time."""

    def __init__(self, replicas: Sequence[Replica], rule: Rule) -> None:
        self.replicas = tuple(replicas)
        self.num_outstanding = [0] * len(self.replicas)
        self._rule = rule
        self._sent_to: dict[str, int] = {}
        self._done: dict[str, Event] = {}
        for replica in self.replicas:
            replica.notify(self._ended)

    def submit(self, request: Request, *, due_s: float | None = None) -> None:
        """A request arrives now and goes to a replica."""
        chosen = self._rule.choose(request, self.num_outstanding)
        self.replicas[chosen].submit(request, due_s=due_s)
        self._sent_to[request.request_id] = chosen
        self.num_outstanding[chosen] += 1

    def abort(self, request_id: str) -> None:
        """The client of a request gave up; unknown or ended ids are ignored."""
        if request_id in self._sent_to:
            self.replicas[self._sent_to[request_id]].abort(request_id)

    def finished(self, request: Request) -> Event:
        """An event that happens when ``request`` finishes or is aborted."""
        return self._done.setdefault(request.request_id, Event(self.replicas[0].clock))

    def _ended(self, request_id: str) -> None:
        sent_to = self._sent_to.pop(request_id, None)
        if sent_to is not None:
            self.num_outstanding[sent_to] -= 1
        event = self._done.pop(request_id, None)
        if event is not None:
            event.succeed()

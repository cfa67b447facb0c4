"""Playing a workload in the simulated world, every step watched."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from simpy.events import Event

from ..scheduler import Batch, Policy, Request, RequestRefused, RequestStatus
from ..sim.backend import Backend, Execution
from ..sim.clock import ARRIVAL, Clock
from ..sim.records import Recorder, Records
from ..sim.replica import Replica
from .violation import BLIND, CLOCK_AND_TOKENS, NOBODY_LOST, PolicyViolation
from .watched import Decision, Watched
from .workloads import Ask, Workload, is_servable

STEPS_A_TOKEN = 20
"""A run that takes more steps than so many for each token asked for makes no progress."""
_HOME = __name__.split(".", maxsplit=1)[0]


class Uneven:
    """A backend whose iterations take times that nothing in them explains."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def launch(self, batch: Batch, now_s: float) -> Execution:
        """Between 0.05 and 1.05 s, by the number of the step."""
        start_s = max(now_s, self._free_s)
        device_s = 0.05 + batch.step * 37 % 11 / 10
        self._free_s = start_s + device_s
        return Execution(start_s, self._free_s, 0.0, device_s)

    def wait(self, ticket: Execution) -> Execution:
        """The execution that ``launch`` computed."""
        return ticket

    def host(self, seconds: float) -> None:
        """The host takes nothing here."""


class Sealed(Request):
    """A request that shows its true output length to the scheduler, but not to the code of a policy."""

    __slots__ = ("_sealed_len",)

    @property
    def output_len(self) -> int:
        """The truth. Raises ``PolicyViolation`` for a reader that could not know it."""
        reader = sys._getframe(1)
        module = str(reader.f_globals.get("__name__", ""))
        if module.split(".", maxsplit=1)[0] != _HOME or module.startswith(f"{_HOME}.scheduler.policies"):
            raise PolicyViolation(
                BLIND,
                f"{module}, line {reader.f_lineno}, reads output_len, which no server knows: use max_tokens or "
                f"predicted_output_len, or declare is_oracle.",
            )
        return self._sealed_len

    @output_len.setter
    def output_len(self, value: int) -> None:
        self._sealed_len = value


@dataclass(frozen=True, slots=True)
class Played:
    """What was decided, step by step, and recorded."""

    decisions: list[Decision]
    records: Records
    refused: frozenset[str]
    aborted: frozenset[str]


def play(
    workload: Workload,
    policy: Policy,
    backend: Backend,
    *,
    leap: bool = False,
    offline: bool = False,
    other_lengths: bool = False,
) -> Played:
    """Play ``workload`` to its end. ``offline``: everybody is there at 0 and nobody gives up; ``other_lengths``: with
    the other true output lengths. Raises ``PolicyViolation``, or ``InfeasibleBatch`` if the policy says so.
    """
    clock = Clock()
    scheduler = Watched(workload.config, policy, 100 + STEPS_A_TOKEN * workload.num_tokens)
    recorder = Recorder(len(workload.asks))
    depth = 2 if workload.config.async_scheduling else 1
    replica = Replica(clock, scheduler, backend, recorder, depth=depth, leap=leap)
    refused: set[str] = set()
    requests = list(_requests(workload, sealed=not policy.is_oracle, other_lengths=other_lengths))
    clock.process(_feed(clock, replica, workload, requests, refused, offline=offline))
    clock.run()
    if scheduler.unended:
        raise PolicyViolation(NOBODY_LOST, f"{len(scheduler.unended)} requests have not ended, but nothing runs.")
    records = recorder.records()
    _check_clock(records)
    aborted = frozenset(request.request_id for request in requests if request.status is RequestStatus.ABORTED)
    return Played(scheduler.decisions, records, frozenset(refused), aborted)


def _requests(workload: Workload, *, sealed: bool, other_lengths: bool) -> Iterator[Request]:
    for index, ask in enumerate(workload.asks):
        yield (Sealed if sealed else Request)(
            str(index),
            ask.num_prompt_tokens,
            ask.other_output_len if other_lengths else ask.output_len,
            arrival_s=ask.arrival_s,
            prompt=ask.prompt,
            max_tokens=ask.max_tokens,
            predicted_output_len=ask.predicted_output_len,
            priority=ask.priority,
            client_id=ask.client_id,
            index=index,
        )


def _feed(
    clock: Clock, replica: Replica, workload: Workload, requests: list[Request], refused: set[str], *, offline: bool
) -> Generator[Event, Any, None]:
    """The clients: they send, and some give up."""
    sends = [(0.0 if offline else ask.arrival_s, 0, index) for index, ask in enumerate(workload.asks)]
    aborts = [] if offline else [(at_s, 1, index) for at_s, index in workload.aborts]
    for at_s, gives_up, index in sorted(sends + aborts):
        if at_s > clock.now:
            yield clock.at(at_s, ARRIVAL)
        if gives_up:
            replica.abort(str(index))
        elif not _submit(replica, requests[index], workload.asks[index]):
            refused.add(str(index))


def _submit(replica: Replica, request: Request, ask: Ask) -> bool:
    """Whether it was taken. Who could be served must be, and nobody else."""
    servable = is_servable(replica.scheduler.config, ask.num_prompt_tokens, request.output_len)
    try:
        replica.submit(request)
    except RequestRefused as error:
        if servable:
            raise PolicyViolation(NOBODY_LOST, f"a request that could be served is refused: {error}") from error
        return False
    if not servable:
        raise PolicyViolation(NOBODY_LOST, f"request {request.request_id!r} can never fit, but is taken.")
    return True


def _check_clock(records: Records) -> None:
    start_s, end_s = records.iterations["start_s"], records.iterations["end_s"]
    if (end_s < start_s).any() or (end_s[1:] < end_s[:-1]).any():
        raise PolicyViolation(CLOCK_AND_TOKENS, "the clock goes back.")
    first = records.requests["first_token_at"]
    if (end_s[first[first >= 0]] < records.requests["arrival_s"][first >= 0]).any():
        raise PolicyViolation(CLOCK_AND_TOKENS, "a first token precedes its request.")

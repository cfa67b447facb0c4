"""A scheduler that holds every step against the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..scheduler import Batch, BatchTwinError, Policy, Request, Scheduler, SchedulerConfig
from .contents import Contents, identities
from .violation import (
    BLOCKS,
    BUDGET,
    CLOCK_AND_TOKENS,
    NO_ERROR,
    NOBODY_LOST,
    OWN_BLOCKS,
    WORK,
    PolicyViolation,
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything that a step decided, by value."""

    rows: tuple[tuple[str, int, int, bool, tuple[int, ...]], ...]
    """(request, start, tokens, samples, block table) in scheduling order."""
    preempted: tuple[str, ...]
    copies: tuple[tuple[int, int], ...]
    num_padded_tokens: int
    finishing: tuple[str, ...]


class Watched(Scheduler):
    """Raises ``PolicyViolation`` in the step that breaks one of the rules 1 to 6."""

    def __init__(self, config: SchedulerConfig, policy: Policy, max_steps: int) -> None:
        super().__init__(config, policy)
        self.decisions: list[Decision] = []
        self.unended: dict[str, Request] = {}
        self._max_steps = max_steps
        self._num_in_flight = 0
        self._tokens: Counter[str] = Counter()
        self._contents = Contents(config.block_size)
        self._known_blocks: dict[str, int] = {}
        """Of each resident, how many blocks the prefix cache knew when the step began."""

    def add(self, request: Request) -> None:
        """Queue ``request``."""
        self._run(lambda: super(Watched, self).add(request))
        self.unended[request.request_id] = request

    def abort(self, request_id: str) -> None:
        """Drop a request."""
        self._run(lambda: super(Watched, self).abort(request_id))
        self.unended.pop(request_id, None)
        self._check_lasting()

    def schedule(self) -> Batch:
        """The next batch, checked."""
        if self.num_steps >= self._max_steps:
            raise PolicyViolation(
                NOBODY_LOST, f"after {self.num_steps} steps {_named(self.unended)} have not ended, and never will."
            )
        running = self.running()
        computed = {request.request_id: request.num_computed_tokens for request in running}
        self._known_blocks = {request.request_id: request.num_registered_blocks for request in running}
        batch = self._run(super().schedule)
        self._check_lasting()
        self._check_budget(batch)
        self._check_work(batch)
        self._check_rows(batch, computed)
        if wrong := self._contents.run(batch):
            self._fail(OWN_BLOCKS, wrong)
        self._num_in_flight += 1
        self.decisions.append(_decision(batch))
        return batch

    def evict(self, request: Request) -> list[tuple[int, int]]:
        """Preempt; what the cache has learnt of in this very step stays promised."""
        if request.seat is not None:
            self.kv.catch_up(request)
        size, known = self.config.block_size, self._known_blocks.get(request.request_id, 0)
        start, stop = max(request.num_computed_tokens, known * size), request.num_registered_blocks * size
        if start < stop:
            self._contents.promise(request, start, stop)
        return super().evict(request)

    def leap(self, num_steps: int) -> tuple[list[int], list[Request]]:
        """Steady steps at once: a token each for every decode."""
        before = [(seat.request, seat.request.num_computed_tokens) for seat in self.cohort.seats.values()]
        free, finishing = super().leap(num_steps)
        for request, computed in before:
            self._tokens[request.request_id] += num_steps
            self._contents.write(request, computed, computed + num_steps, request.block_table)
        return free, finishing

    def complete(self, batch: Batch) -> list[Request]:
        """``batch`` has run."""
        self._tokens.update(request.request_id for request in batch.samples())
        finished = self._run(lambda: super(Watched, self).complete(batch))
        self._num_in_flight -= 1
        self._check_lasting()
        return finished

    def finish(self, finishing: Sequence[Request]) -> list[Request]:
        """Who finishes got what was asked for."""
        finished = super().finish(finishing)
        for request in finished:
            self.unended.pop(request.request_id)
            got, asked = self._tokens[request.request_id], self.output_limit(request)
            if not got == asked == request.num_output_tokens:
                self._fail(CLOCK_AND_TOKENS, f"{_name(request)} ends with {got} tokens, not {asked}.")
        return finished

    def _run(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except (BatchTwinError, PolicyViolation):
            raise
        except Exception as error:
            raise PolicyViolation(NO_ERROR, f"step {self.num_steps} ends in {type(error).__name__}: {error}") from error

    def _fail(self, rule: str, what: str) -> None:
        raise PolicyViolation(rule, f"step {len(self.decisions)}: {what}")

    def _check_budget(self, batch: Batch) -> None:
        config = self.config
        num_tokens = sum(row.num_tokens for row in batch.order()) + batch.num_padded_tokens
        if num_tokens > config.max_num_batched_tokens:
            self._fail(
                BUDGET, f"{num_tokens} tokens are more than max_num_batched_tokens ({config.max_num_batched_tokens})."
            )
        num_running = len(self.running())
        if num_running > config.max_num_seqs:
            self._fail(BUDGET, f"{num_running} sequences are resident, max_num_seqs is {config.max_num_seqs}.")
        if (batch.num_tokens + batch.num_padded_tokens, batch.num_running) != (num_tokens, num_running):
            self._fail(BUDGET, f"the batch counts {batch.num_tokens} tokens, and {batch.num_running} residents.")

    def _check_lasting(self) -> None:
        self._check_everybody_is_somewhere()
        self._check_blocks()

    def _check_blocks(self) -> None:
        try:
            self.check_integrity()
        except BatchTwinError as error:
            raise PolicyViolation(BLOCKS, f"step {len(self.decisions)}: {error}") from error
        holders: dict[int, tuple[Request, int]] = {}
        for request in self.running():
            for position, block in enumerate(request.block_table):
                other, at = holders.setdefault(block, (request, position))
                if other is not request and not (at == position and self._begin_alike(request, other, position)):
                    self._fail(BLOCKS, f"{_name(request)} and {_name(other)} share block {block} without a prefix.")

    def _begin_alike(self, one: Request, other: Request, block: int) -> bool:
        num_tokens = (block + 1) * self.config.block_size
        return self.config.enable_prefix_caching and identities(one, num_tokens) == identities(other, num_tokens)

    def _check_everybody_is_somewhere(self) -> None:
        places = Counter(request.request_id for request in (*self.waiting, *self.running()))
        places.subtract(request.request_id for request in self.held)
        for request_id, request in self.unended.items():
            if places[request_id] == 0:
                self._fail(NOBODY_LOST, f"{_name(request)} neither waits nor runs.")
        for request_id, count in places.items():
            if count > 1 or (count == 1 and request_id not in self.unended):
                self._fail(NOBODY_LOST, f"request {request_id!r} is there twice or has ended before.")

    def _check_rows(self, batch: Batch, computed: dict[str, int]) -> None:
        served = Counter(row.request.request_id for row in batch.order())
        moved = {request.request_id for request in (*batch.preempted, *batch.admitted, *batch.resumed)}
        for row in batch.order():
            request = row.request
            if served[request.request_id] > 1 or row.num_tokens < 1:
                self._fail(NOBODY_LOST, f"{_name(request)} is served more than once, or with no token.")
            if request.request_id not in moved and row.start != computed.get(request.request_id):
                self._fail(
                    CLOCK_AND_TOKENS,
                    f"{_name(request)} goes on from token {row.start}, computed are "
                    f"{computed.get(request.request_id, 'none')}.",
                )

    def _check_work(self, batch: Batch) -> None:
        """Only with a batch in flight may nothing be left to do."""
        if not (batch.num_tokens or batch.preempted or self._num_in_flight):
            self._fail(WORK, f"nothing runs, although {_named(self.unended)} could.")


def _decision(batch: Batch) -> Decision:
    return Decision(
        tuple((r.request.request_id, r.start, r.num_tokens, r.samples, tuple(r.block_table)) for r in batch.order()),
        tuple(request.request_id for request in batch.preempted),
        (*batch.copies_out, *batch.copies_in),
        batch.num_padded_tokens,
        tuple(request.request_id for request in batch.finishing),
    )


def _name(request: Request) -> str:
    return f"request {request.request_id!r}"


def _named(requests: Iterable[str]) -> str:
    names = list(requests)
    listed = ", ".join(repr(name) for name in names[:4]) + (", …" if len(names) > 4 else "")
    return f"{len(names)} requests ({listed})"

"""A batch: one iteration, the contract between the simulated and the measured world."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from .cohort import Members, Seat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .cohort import Change, Cohort
    from .request import Request


class Bound(IntEnum):
    """What kept the scheduler from serving more in this step."""

    NONE = 0
    MAX_NUM_SEQS = 1
    MAX_NUM_BATCHED_TOKENS = 2
    KV_BLOCKS = 3


UNBOUND, BY_SEQS, BY_TOKENS, BY_BLOCKS = Bound
"""The same by name, for the loop: a member looked up in its class costs 70 ns (Python 3.11)."""


class Chunk(NamedTuple):
    """``num_tokens`` new tokens of one request after ``start`` computed ones: a prompt or a part of it, or tokens to
    be computed again after a preemption. ``samples`` tells whether the step completes its known tokens and so
    yields an output token.
    """

    request: Request
    rank: int
    start: int
    num_tokens: int
    samples: bool
    block_table: list[int]

    @property
    def is_decode(self) -> bool:
        """One token over existing context is a decode for the device, whatever the request calls it."""
        return self.num_tokens == 1 and self.start > 0


class Row(NamedTuple):
    """One sequence as the forward sees it."""

    request: Request
    start: int
    num_tokens: int
    samples: bool
    block_table: list[int]


@dataclass(init=False, eq=False)
class Batch:
    """One iteration. It depends on nothing that changes later: seats are immutable, ``members`` are those of the moment
    whatever the cohort is later, a block table is append-only and is read up to the sequence length.

    The sums are what a cost model needs; none is obtained by walking the running set.
    """

    step: int
    """Number of the ``schedule()`` call, from 0."""
    clock: int
    """The cohort's clock in this step: a seat's position is ``seat.offset + clock``."""
    num_members: int
    """How many decode in bulk in this step (nobody if the decodes stood still)."""
    chunks: Sequence[Chunk]
    """In scheduling order."""
    bound: Bound
    preempted: Sequence[Request] = ()
    admitted: Sequence[Request] = ()
    """Who left the waiting queue for the first time."""
    resumed: Sequence[Request] = ()
    """Who left it again, after a preemption."""
    stalled: Sequence[Request] = ()
    """Decodes that the budget did not reach in this step."""
    finishing: Sequence[Request] = ()
    """Who ends with the token this step gives, in scheduling order."""
    copies_out: Sequence[tuple[int, int]] = ()
    """Swap to the host: (device block, host block), in stream order."""
    copies_in: Sequence[tuple[int, int]] = ()
    num_running: int = 0
    """Resident sequences after ``schedule()``: what ``max_num_seqs`` bounds."""
    num_waiting: int = 0
    num_decode_kv_tokens: int = 0
    """Σ context of the decodes before this step's token: the KV tokens they read."""
    num_prefill_tokens: int = 0
    num_single_chunks: int = 0
    """Chunks that are decodes for the device (one token over existing context)."""
    prefill_attention_work: float = 0.0
    """Σ over prefill chunks of num_tokens · (start + num_tokens / 2): query-context pairs."""
    padding: Sequence[Chunk] = ()
    """Slots that are computed and thrown away (static batching): the rest of a row up to the longest, or one token
    of a row that has finished. They read and write the row's own blocks beyond what the row needs."""
    num_sampled_chunks: int = 0
    """Chunks that yield a token."""
    num_padded_tokens: int = 0
    num_padded_decodes: int = 0
    """Padding rows that are one token over existing context."""
    num_padded_kv_tokens: int = 0
    """Σ context of those."""
    padded_attention_work: float = 0.0
    """Query-context pairs of the other padding, as in ``prefill_attention_work``."""
    num_cached_tokens: int = 0
    """Prompt tokens of this step's admissions that the prefix cache already held."""
    num_recomputed_tokens: int = 0
    """Tokens of this step that had been computed before a preemption."""
    num_free_blocks: int = 0

    def __init__(
        self,
        step: int,
        clock: int,
        members: Members,
        chunks: Sequence[Chunk],
        preempted: Sequence[Request] = (),
        admitted: Sequence[Request] = (),
        **others: Any,
    ) -> None:
        """Of the others only what differs from its default is set, or is always read: a batch is made in every step."""
        self.step = step
        self.clock = clock
        self._members = members
        self._moment: tuple[Change, Cohort] | None = None
        self.num_members = members.count
        self.chunks = chunks
        self.preempted = preempted
        self.admitted = admitted
        self.num_prefill_tokens = self.num_single_chunks = self.num_sampled_chunks = 0
        self.prefill_attention_work = 0.0
        self.bound = UNBOUND
        self.num_recomputed_tokens = self.num_cached_tokens = 0
        self.copies_out = self.copies_in = self.padding = self.stalled = self.finishing = ()
        if others:
            self.__dict__.update(others)

    def decodes(self, since: Change, cohort: Cohort) -> None:
        """Everybody seated in ``cohort`` before the change ``since``, which comes next, decodes in this step."""
        self._moment = (since, cohort)
        self.num_members = len(cohort.ranks)

    @property
    def members(self) -> Members:
        """Who decodes in bulk in this step. Laid out when somebody asks: a simulation does not."""
        if self._moment is not None:
            self._members, self._moment = Members.before(*self._moment, self.num_members), None
        return self._members

    @property
    def num_decodes(self) -> int:
        """Sequences with one new token over existing context."""
        return self.num_members + self.num_single_chunks

    @property
    def num_prefills(self) -> int:
        """Chunks that are not decodes."""
        return len(self.chunks) - self.num_single_chunks

    @property
    def num_seqs(self) -> int:
        """Sequences served in this step (S)."""
        return self.num_members + len(self.chunks)

    @property
    def num_tokens(self) -> int:
        """New tokens of this step without padding (T)."""
        return self.num_members + self.num_single_chunks + self.num_prefill_tokens

    @property
    def num_samples(self) -> int:
        """Tokens this step yields."""
        return self.num_members + self.num_sampled_chunks

    @property
    def num_blocks_swapped(self) -> int:
        """Blocks copied between device and host."""
        return len(self.copies_out) + len(self.copies_in)

    def order(self) -> Iterator[Row]:
        """Everybody served, in vLLM's scheduling order: the running list's, then the admitted. O(S)."""
        chunks = iter(self.chunks)
        chunk = next(chunks, None)
        seats = self.members.seats
        for rank in self.members.ranks:
            while chunk is not None and chunk.rank < rank:
                yield Row(chunk.request, chunk.start, chunk.num_tokens, chunk.samples, chunk.block_table)
                chunk = next(chunks, None)
            yield self._decode_row(seats[rank])
        while chunk is not None:
            yield Row(chunk.request, chunk.start, chunk.num_tokens, chunk.samples, chunk.block_table)
            chunk = next(chunks, None)

    def samples(self) -> Iterator[Request]:
        """Who gets a token from this step, in scheduling order."""
        return (row.request for row in self.order() if row.samples)

    def rows(self, *, padding: bool = False) -> list[Row]:
        """Everybody served as a worker lays them out: decodes first, then prefills, each in scheduling order and,
        if asked for, followed by the padding of its kind.
        """
        ordered = list(self.order())
        if padding:
            ordered += [Row(c.request, c.start, c.num_tokens, False, c.block_table) for c in self.padding]
        decodes = [row for row in ordered if row.num_tokens == 1 and row.start > 0]
        return decodes + [row for row in ordered if row.num_tokens > 1 or row.start == 0]

    def _decode_row(self, seat: Seat) -> Row:
        return Row(seat.request, seat.offset + self.clock, 1, True, seat.block_table)

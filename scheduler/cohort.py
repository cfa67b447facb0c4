"""The decodes, kept together: everybody who gets one token a step, without walking them.

A request that decodes keeps *position − clock* constant, so the cohort only moves its clock. What happens to single
requests is found by appointment: the step in which one needs a new block (position divisible by the block size) and
the step in which one produces its last token.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .request import Request


@dataclass(slots=True, eq=False)
class Seat:
    """A request's place in the cohort; a new one each time it joins, so that old batches stay true. Never changed (not
    frozen by the class, which would quadruple what making one takes).
    """

    request: Request
    rank: int
    offset: int
    """Position minus the cohort's clock."""
    block_table: list[int]


class Change:
    """One change of membership, and the one after it: so only what somebody may still ask about is kept."""

    __slots__ = ("joined", "members", "next", "seat")
    joined: bool
    seat: Seat
    next: Change | None
    """Set by the cohort, as is ``members``: a constructor of our own would double what making one takes."""
    members: Members | None
    """Who decoded before it, if somebody asked."""


class Members:
    """Who decodes in bulk at one moment, whatever happens later. Laid out when somebody asks, from what the cohort is
    by then and the changes in between, undone.
    """

    __slots__ = ("_cohort", "_ranks", "_seats", "_since", "count")

    def __init__(self, seats: dict[int, Seat] | None = None) -> None:
        self.count = 0 if seats is None else len(seats)
        self._seats: dict[int, Seat] | None = {} if seats is None else seats
        self._ranks: list[int] | None = None
        self._cohort: Cohort | None = None
        self._since: Change | None = None

    @classmethod
    def before(cls, since: Change, cohort: Cohort, count: int) -> Members:
        """Those of ``cohort``, ``count``, before the change ``since``; the same object for everybody who asks."""
        if since.members is not None:
            return since.members
        members = since.members = cls.__new__(cls)
        members.count = count
        members._seats = members._ranks = None
        members._cohort, members._since = cohort, since
        return members

    @property
    def seats(self) -> Mapping[int, Seat]:
        """Rank → seat, in no particular order. O(members) the first time."""
        if self._seats is None:
            assert self._cohort is not None
            self._seats = _undone(self._cohort.seats.copy(), self._since)
            self._cohort = self._since = None
        return self._seats

    @property
    def ranks(self) -> Sequence[int]:
        """The keys of ``seats`` in ascending order, that is in running-list order."""
        if self._ranks is None:
            self._ranks = sorted(self.seats)
        return self._ranks


def _undone(seats: dict[int, Seat], since: Change | None) -> dict[int, Seat]:
    changes = []
    while since is not None and since.next is not None:
        changes.append(since)
        since = since.next
    for change in reversed(changes):
        if change.joined:
            del seats[change.seat.rank]
        else:
            seats[change.seat.rank] = change.seat
    return seats


NOBODY = Members()


class Cohort:
    """Requests that decode in bulk, by rank (their place in the running list)."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.clock = 0
        self.seats: dict[int, Seat] = {}
        self.ranks: list[int] = []
        self.sum_offset = 0
        self._crossers: list[dict[int, Seat]] = [{} for _ in range(block_size)]
        self._last_token: dict[int, list[Seat]] = {}
        self._last_clocks: list[int] = []  # heap of the keys of _last_token
        self.coming = Change()
        """The change of membership that comes next."""
        self.coming.next = self.coming.members = None

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def num_kv_tokens(self) -> int:
        """Σ context of all members before the coming token."""
        return self.sum_offset + len(self.ranks) * self.clock

    def join(self, request: Request, num_steps_left: int) -> None:
        """Seat ``request``, which has computed all its known tokens and produces ``num_steps_left`` more here."""
        offset = request._computed_tokens - self.clock
        seat = Seat(request, request.rank, offset, request.block_table)
        self._note(seat, True)
        self.seats[seat.rank] = seat
        if self.ranks and self.ranks[-1] > seat.rank:
            insort(self.ranks, seat.rank)
        else:
            self.ranks.append(seat.rank)
        self.sum_offset += offset
        self._crossers[-offset % self.block_size][seat.rank] = seat
        last_clock = self.clock + num_steps_left - 1
        if last_clock in self._last_token:
            self._last_token[last_clock].append(seat)
        else:
            self._last_token[last_clock] = [seat]
            heappush(self._last_clocks, last_clock)
        request.seat, request.cohort = seat, self

    def leave(self, request: Request) -> None:
        """Unseat ``request``; its progress is written back to it."""
        seat = request.seat
        assert seat is not None
        self._note(seat, False)
        request.seat = request.cohort = None
        request._computed_tokens = computed = seat.offset + self.clock
        request._output_tokens = computed + 1 - request.num_prompt_tokens
        del self.seats[seat.rank]
        del self.ranks[bisect_left(self.ranks, seat.rank)]
        self.sum_offset -= seat.offset
        del self._crossers[-seat.offset % self.block_size][seat.rank]

    def crossers(self) -> dict[int, Seat]:
        """Rank → seat of those whose next token starts a new block. In no particular order; do not change it."""
        return self._crossers[self.clock % self.block_size]

    def lacks_block(self, seat: Seat) -> bool:
        """Whether a member's next token has no block yet: one that was padded may have it already."""
        return len(seat.block_table) * self.block_size <= seat.offset + self.clock

    def fillers(self) -> dict[int, Seat]:
        """Rank → seat of those whose next token fills its block."""
        return self._crossers[(self.clock + 1) % self.block_size]

    def num_before(self, rank: int) -> int:
        """How many members stand before ``rank`` in the running list."""
        return bisect_left(self.ranks, rank)

    def num_steady_steps(self, num_free_blocks: int) -> int:
        """How many steps all members can take until one gets its last token, that step included, or the blocks run
        out.
        """
        clocks = self._last_clocks
        while clocks[0] < self.clock:
            heappop(clocks)
        left, num_steps = num_free_blocks, clocks[0] + 1 - self.clock
        if left >= len(self.ranks) * (num_steps // self.block_size + 1):  # enough, however they cross
            return num_steps
        for clock in range(self.clock, clocks[0] + 1):
            left -= len(self._crossers[clock % self.block_size])
            if left < 0:
                return clock - self.clock
        return num_steps

    def free_after_steps(self, num_free_blocks: int, num_steps: int) -> list[int]:
        """Free blocks after each of so many steps of all members."""
        crossers, block_size, free = self._crossers, self.block_size, []
        for clock in range(self.clock, self.clock + num_steps):
            num_free_blocks -= len(crossers[clock % block_size])
            free.append(num_free_blocks)
        return free

    def members(self) -> Members:
        """The members as they are now, to be kept by a batch."""
        return Members.before(self.coming, self, len(self.ranks))

    def tick(self) -> list[Seat]:
        """Move everybody one token on; returns, by rank, those for whom that was the last one."""
        clock = self.clock
        self.clock = clock + 1
        return self._in_order(clock) if clock in self._last_token else []

    def take_last(self) -> list[Seat]:
        """Those for whom the token just taken was the last one, by rank; told once."""
        clock = self.clock - 1
        return self._in_order(clock) if clock in self._last_token else []

    def _in_order(self, last_clock: int) -> list[Seat]:
        last = [seat for seat in self._last_token.pop(last_clock) if seat.request.seat is seat]
        if len(last) > 1:
            last.sort(key=lambda seat: seat.rank)
        return last

    def _note(self, seat: Seat, joined: bool) -> None:
        change = self.coming
        change.seat, change.joined = seat, joined
        change.next = self.coming = coming = Change()
        coming.next = coming.members = None

"""One ``schedule()`` call in the making: the verbs a policy decides with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .batch import Batch, Bound, Chunk
from .request import Request, RequestStatus

if TYPE_CHECKING:
    from .cohort import Seat
    from .config import SchedulerConfig
    from .scheduler import Scheduler
    from .waiting import WaitingQueue


class Step:
    """A batch being formed. It holds what is left of the token budget and what was decided so far; the scheduler's
    lasting state is changed through its verbs only.
    """

    __slots__ = (
        "_admitted",
        "_bound",
        "_chunks",
        "_padding",
        "_preempted",
        "_resumed",
        "_scheduler",
        "_stalled",
        "_ticks",
        "budget_tokens",
    )

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.budget_tokens = scheduler.config.max_num_batched_tokens
        self._chunks: list[Chunk] = []
        self._preempted: list[Request] = []
        self._admitted: list[Request] = []
        self._resumed: list[Request] = []
        self._stalled: list[Request] = []
        self._padding: list[Chunk] = []
        self._ticks = False
        self._bound = Bound.NONE

    # What a policy may look at.

    @property
    def waiting(self) -> WaitingQueue:
        """Who waits, in order."""
        return self._scheduler.waiting

    @property
    def num_running(self) -> int:
        """Resident sequences."""
        return self._scheduler.num_running

    @property
    def held(self) -> list[Request]:
        """Finished requests whose rows are still resident (only with ``keeps_finished_rows``)."""
        return self._scheduler.held

    @property
    def config(self) -> SchedulerConfig:
        """The knobs."""
        return self._scheduler.config

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out now."""
        return self._scheduler.pool.num_free

    @property
    def num_blocks_to_decode(self) -> int:
        """Blocks that one more token for every decode takes."""
        return len(self._scheduler.cohort.crossers())

    @property
    def num_preempted(self) -> int:
        """Preemptions of this step so far."""
        return len(self._preempted)

    @property
    def has_chunks(self) -> bool:
        """Whether anybody got prompt tokens in this step."""
        return bool(self._chunks)

    # What it may do.

    def advance_running(self) -> None:
        """Serve everybody resident in the order of the running list, as vLLM V1 does: a decode gets one token, an
        unfinished prompt what is left. Where blocks run out the last of the list is preempted.
        """
        scheduler = self._scheduler
        crossers = scheduler.cohort.crossers()
        if scheduler.prefilling or len(crossers) > scheduler.pool.num_free:
            self._advance_in_order(crossers)
        elif crossers:
            take = scheduler.pool.take_one
            for rank in sorted(crossers):
                crossers[rank].block_table.append(take())
        self._ticks = True
        self.budget_tokens -= len(scheduler.cohort)

    def admit_next(self, *, whole: bool = False) -> bool:
        """Admit the head of the queue with as many of its tokens as the budget allows (``whole``: all or nothing).
        False if a bound forbids it; who stands behind is not looked at.
        """
        scheduler = self._scheduler
        config = scheduler.config
        if scheduler.num_running >= config.admission_limit_seqs:
            return self._held_back_by(Bound.MAX_NUM_SEQS)
        request = scheduler.waiting.head
        num_tokens = request.num_tokens
        want = min(num_tokens, self.budget_tokens)
        if want <= 0 or (whole and want < num_tokens):
            return self._held_back_by(Bound.MAX_NUM_BATCHED_TOKENS)
        fit = min(num_tokens, config.max_model_len) if config.scheduler_reserve_full_isl else want
        if -(-max(fit, want) // config.block_size) > scheduler.pool.num_free:
            return self._held_back_by(Bound.KV_BLOCKS)
        scheduler.waiting.pop()
        (self._resumed if request.status is RequestStatus.PREEMPTED else self._admitted).append(request)
        scheduler.settle(request)
        self._grow(request, want)
        self._serve(request, want)
        return True

    def preempt(self, request: Request) -> None:
        """Take everything from ``request`` and queue it again; what it had computed is computed anew later."""
        self._scheduler.evict(request)
        self._preempted.append(request)

    def pad(self, request: Request, start: int, num_tokens: int) -> None:
        """Have the device compute ``num_tokens`` slots of ``request``'s row that nobody needs."""
        self._grow(request, start + num_tokens)
        self._padding.append(Chunk(request, request.rank, start, num_tokens, False, request.block_table))
        self.budget_tokens -= num_tokens

    def close(self) -> Batch:
        """The batch; from here on its tokens count as computed, as in vLLM."""
        scheduler = self._scheduler
        cohort = scheduler.cohort
        if self._ticks:
            kv_tokens, clock = cohort.num_kv_tokens, cohort.clock
            seats, ranks = cohort.lend()
            finishing = scheduler.tick()
        else:
            kv_tokens, clock, seats, ranks, finishing = 0, cohort.clock, {}, [], []
        batch = Batch(scheduler.num_steps, clock, seats, ranks, self._chunks, self._preempted, self._admitted)
        batch.num_decode_kv_tokens = kv_tokens
        batch.resumed, batch.stalled = self._resumed, self._stalled
        if self._chunks:
            finishing = self._close_chunks(batch, finishing)
        if self._padding:
            _sum_padding(batch, self._padding)
        batch.finishing = finishing
        batch.num_running = scheduler.num_running
        batch.num_waiting = len(scheduler.waiting)
        batch.num_free_blocks = scheduler.pool.num_free
        batch.bound = Bound.KV_BLOCKS if self._preempted else self._bound
        return batch

    # How.

    def _held_back_by(self, bound: Bound) -> bool:
        self._bound = bound
        return False

    def _advance_in_order(self, crossers: dict[int, Seat]) -> None:
        cohort, prefilling = self._scheduler.cohort, self._scheduler.prefilling
        for rank in sorted([*crossers, *prefilling]):
            left = self.budget_tokens - cohort.num_before(rank)
            if left <= 0:
                break
            request = prefilling.get(rank)
            if request is not None:
                want = self._wanted(request, left)
                if want == 0:
                    continue
                if not self._grow(request, request.num_computed_tokens + want):
                    break
                self._serve(request, want)
            elif (seat := cohort.seats.get(rank)) is not None and not self._grow(
                seat.request, seat.request.num_computed_tokens + 1
            ):
                break
        while cohort and self._budget_before(cohort.ranks[-1]) <= 0:
            request = cohort.seats[cohort.ranks[-1]].request
            self._scheduler.stall(request)
            self._stalled.append(request)

    def _budget_before(self, rank: int) -> int:
        """What is left of the whole budget when the running list has been served up to ``rank``."""
        used = self._scheduler.cohort.num_before(rank) + sum(c.num_tokens for c in self._chunks if c.rank < rank)
        return self._scheduler.config.max_num_batched_tokens - used

    def _wanted(self, request: Request, left: int) -> int:
        computed = request.num_computed_tokens
        want = request.num_tokens - computed
        if want > left:
            self._bound = Bound.MAX_NUM_BATCHED_TOKENS
            want = left
        return min(want, self._scheduler.config.max_model_len - computed - 1)

    def _grow(self, request: Request, num_tokens: int) -> bool:
        """Give ``request`` the blocks for ``num_tokens`` tokens, preempting from the end of the running list while
        there are too few. False if that took the request itself.
        """
        scheduler = self._scheduler
        missing = -(-num_tokens // scheduler.config.block_size) - len(request.block_table)
        while missing > scheduler.pool.num_free:
            victim = scheduler.last_running()
            self.preempt(victim)
            if victim is request:
                return False
        if missing > 0:
            request.block_table.extend(scheduler.pool.take(missing))
        return True

    def _serve(self, request: Request, num_tokens: int) -> None:
        start = request.num_computed_tokens
        known = request.num_tokens
        if start + num_tokens < known:
            self._bound = Bound.MAX_NUM_BATCHED_TOKENS
        samples = start + num_tokens == known
        self._chunks.append(Chunk(request, request.rank, start, num_tokens, samples, request.block_table))
        self.budget_tokens -= num_tokens

    def _close_chunks(self, batch: Batch, finishing: list[Request]) -> list[Request]:
        ended = [chunk.request for chunk in self._chunks if self._scheduler.move_on(chunk)]
        for chunk in self._chunks:
            batch.num_sampled_chunks += chunk.samples
            if chunk.is_decode:
                batch.num_single_chunks += 1
                batch.num_decode_kv_tokens += chunk.start
            else:
                batch.num_prefill_tokens += chunk.num_tokens
                batch.prefill_attention_work += chunk.num_tokens * (chunk.start + chunk.num_tokens / 2)
            again = chunk.request._tokens_to_recompute - chunk.start
            if again > 0:
                batch.num_recomputed_tokens += min(again, chunk.num_tokens)
        if not ended:
            return finishing
        return sorted([*finishing, *ended], key=lambda request: request.rank)


def _sum_padding(batch: Batch, padding: Sequence[Chunk]) -> None:
    batch.padding = padding
    for chunk in padding:
        batch.num_padded_tokens += chunk.num_tokens
        if chunk.is_decode:
            batch.num_padded_decodes += 1
            batch.num_padded_kv_tokens += chunk.start
        else:
            batch.padded_attention_work += chunk.num_tokens * (chunk.start + chunk.num_tokens / 2)

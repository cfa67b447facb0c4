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
        "_cached_tokens",
        "_chunks",
        "_copies_in",
        "_copies_out",
        "_limit_tokens",
        "_padding",
        "_preempted",
        "_resumed",
        "_scheduler",
        "_stalled",
        "_ticks",
        "budget_tokens",
        "carries_prefill",
        "holds_prefills",
        "threshold_tokens",
    )

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.budget_tokens = self._limit_tokens = scheduler.config.max_num_batched_tokens
        self.threshold_tokens = scheduler.threshold_tokens()
        """Most prompt tokens one request may get in this step; 0 is no cap."""
        self.holds_prefills = scheduler.holds_prefills()
        """Whether ``prefill_schedule_interval`` keeps prompts out of this step."""
        self.carries_prefill = False
        """Whether ``prefill_schedule_interval`` counts this step as one with prompt tokens: an unfinished prompt was
        served, even if it lost its tokens again, or somebody was admitted with more than one token to compute."""
        self._chunks: list[Chunk] = []
        self._preempted: list[Request] = []
        self._admitted: list[Request] = []
        self._resumed: list[Request] = []
        self._stalled: list[Request] = []
        self._padding: list[Chunk] = []
        self._copies_out: list[tuple[int, int]] = []
        self._copies_in: list[tuple[int, int]] = []
        self._cached_tokens = 0
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
    def num_decoding(self) -> int:
        """Residents that get their next token in bulk."""
        return len(self._scheduler.cohort)

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
        cohort = self._scheduler.cohort
        return sum(cohort.lacks_block(seat) for seat in cohort.crossers().values())

    @property
    def num_preempted(self) -> int:
        """Preemptions of this step so far."""
        return len(self._preempted)

    @property
    def has_chunks(self) -> bool:
        """Whether anybody got prompt tokens in this step."""
        return bool(self._chunks)

    def running(self) -> list[Request]:
        """The running list, in order. O(running): most policies need not ask."""
        return self._scheduler.running()

    # What it may do.

    def advance_running(self) -> None:
        """Serve everybody resident in the order of the running list, as vLLM V1 does: a decode gets one token, an
        unfinished prompt what is left. Where blocks run out a victim is preempted.
        """
        scheduler = self._scheduler
        crossers = scheduler.cohort.crossers()
        if scheduler.prefilling or len(crossers) > scheduler.pool.num_free:
            self._advance_in_order(crossers, scheduler.prefilling)
        else:
            self._advance_in_bulk(crossers)
        self._ticks = True
        self.budget_tokens -= len(scheduler.cohort)

    def advance_decodes(self) -> None:
        """Serve the decodes only, before any prompt: one token each, preempting where blocks run out."""
        scheduler = self._scheduler
        crossers = scheduler.cohort.crossers()
        if len(crossers) > scheduler.pool.num_free:
            self._advance_in_order(crossers, {})
        else:
            self._advance_in_bulk(crossers)
        self._ticks = True
        self.budget_tokens -= len(scheduler.cohort)

    def advance_prefills(self) -> None:
        """Serve the unfinished prompts, in order, from what is left of the budget (after ``advance_decodes``)."""
        for rank in sorted(self._scheduler.prefilling):
            request = self._scheduler.prefilling.get(rank)
            if request is None:
                continue
            if self.budget_tokens <= 0 or not self._advance_prefill(request, self.budget_tokens):
                break

    def limit_tokens(self, num_tokens: int) -> None:
        """Serve no more than ``num_tokens`` in this step. Called before anybody is served."""
        self.budget_tokens = self._limit_tokens = min(self.budget_tokens, num_tokens)

    def held_back_by_blocks(self) -> None:
        """Say that somebody waits for KV blocks, where a policy decides so by itself."""
        self._bound = Bound.KV_BLOCKS

    def admit_next(self, *, whole: bool = False, reserve_tokens: int = 0) -> bool:
        """Admit the head of the queue with as many of its tokens as the budget allows (``whole``: all or nothing),
        if blocks for it (and for ``reserve_tokens`` in all) are free. False if a bound forbids it; who stands behind
        is not looked at.
        """
        scheduler = self._scheduler
        config = scheduler.config
        if scheduler.num_running >= config.admission_limit_seqs:
            return self._held_back_by(Bound.MAX_NUM_SEQS)
        request = scheduler.waiting.head
        known = request.num_tokens
        hits = scheduler.find_cached(request)
        start = len(hits) * config.block_size if hits else request.num_computed_tokens
        want = self._capped(known - start)
        if self.budget_tokens <= 0 or (whole and want > self.budget_tokens):
            return self._held_back_by(Bound.MAX_NUM_BATCHED_TOKENS)
        if self.holds_prefills and known - start > 1:
            return False
        want = min(want, self.budget_tokens)
        fit = min(known, config.max_model_len) if config.scheduler_reserve_full_isl else 0
        if not scheduler.has_room(max(fit, start + want, reserve_tokens), hits):
            return self._held_back_by(Bound.KV_BLOCKS)
        scheduler.waiting.pop()
        (self._resumed if request.status is RequestStatus.PREEMPTED else self._admitted).append(request)
        self._copies_in += scheduler.settle(request, hits, start + want)
        self._cached_tokens += len(hits) * config.block_size
        self._serve(request, want)
        self.carries_prefill |= known - start > 1
        return True

    def preempt(self, request: Request) -> None:
        """Take everything from ``request`` and queue it again; what it had computed is computed anew later, or
        swapped back in. What it was given in this very step returns to the budget.
        """
        for i, chunk in enumerate(self._chunks):
            if chunk.request is request:
                self.budget_tokens += chunk.num_tokens
                del self._chunks[i]
                break
        self._copies_out += self._scheduler.evict(request)
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
        if self._copies_in or self._copies_out:
            batch.copies_in, batch.copies_out = self._copies_in, self._copies_out
        batch.finishing = finishing
        batch.num_cached_tokens = self._cached_tokens
        batch.num_running = scheduler.num_running
        batch.num_waiting = len(scheduler.waiting)
        batch.num_free_blocks = scheduler.pool.num_free
        batch.bound = Bound.KV_BLOCKS if self._preempted else self._bound
        return batch

    # How.

    def _held_back_by(self, bound: Bound) -> bool:
        self._bound = bound
        return False

    def _capped(self, want: int) -> int:
        return min(want, self.threshold_tokens) if self.threshold_tokens else want

    def _advance_in_bulk(self, crossers: dict[int, Seat]) -> None:
        """Everybody decodes and blocks suffice: only who begins or fills a block is touched."""
        scheduler = self._scheduler
        if crossers:
            take, lacks_block = scheduler.pool.take_one, scheduler.cohort.lacks_block
            for rank in sorted(crossers):
                if lacks_block(crossers[rank]):
                    crossers[rank].block_table.append(take())
        if scheduler.pool.caches_prefixes:
            fillers = scheduler.fillers()
            for rank in sorted(fillers):
                scheduler.register_decode(fillers[rank].request)

    def _advance_in_order(self, crossers: dict[int, Seat], prefilling: dict[int, Request]) -> None:
        scheduler = self._scheduler
        cohort = scheduler.cohort
        fillers = scheduler.fillers() if scheduler.pool.caches_prefixes else {}
        for rank in sorted({*crossers, *prefilling, *fillers}):
            left = self.budget_tokens - cohort.num_before(rank)
            if left <= 0:
                break
            if rank in prefilling:
                if not self._advance_prefill(prefilling[rank], left):
                    break
            elif (seat := cohort.seats.get(rank)) is not None:
                request = seat.request
                if not self._grow(request, request.num_computed_tokens + 1):
                    if scheduler.stops_at_own_preemption:
                        break
                    continue
                if rank in fillers:
                    scheduler.register_decode(request)
        while cohort and self._budget_before(cohort.ranks[-1]) <= 0:
            request = cohort.seats[cohort.ranks[-1]].request
            scheduler.stall(request)
            self._stalled.append(request)

    def _budget_before(self, rank: int) -> int:
        """What is left of the whole budget when the running list has been served up to ``rank``."""
        used = self._scheduler.cohort.num_before(rank) + sum(c.num_tokens for c in self._chunks if c.rank < rank)
        return self._limit_tokens - used

    def _advance_prefill(self, request: Request, left: int) -> bool:
        """Serve a resident's next tokens, at most ``left``. False if the running list ends here."""
        computed = request.num_computed_tokens
        missing = request.num_tokens - computed
        is_prefill = request.rank not in self._scheduler.stalled
        if self.holds_prefills and is_prefill:
            return True
        want = self._capped(missing)
        if want > left:
            self._bound = Bound.MAX_NUM_BATCHED_TOKENS
            want = left
        want = min(want, self._scheduler.config.max_model_len - computed - 1)
        if want <= 0:
            return True
        if not self._grow(request, computed + want):
            return not self._scheduler.stops_at_own_preemption
        self._serve(request, want)
        self.carries_prefill |= is_prefill
        return True

    def _grow(self, request: Request, num_tokens: int) -> bool:
        """Give ``request`` the blocks for ``num_tokens`` tokens, preempting victims while there are too few. False if
        that took the request itself.
        """
        scheduler = self._scheduler
        missing = -(-num_tokens // scheduler.config.block_size) - len(request.block_table)
        while missing > scheduler.pool.num_free:
            victim = scheduler.victim()
            self.preempt(victim)
            if victim is request:
                return False
        if missing > 0:
            request.block_table.extend(scheduler.pool.take(missing))
        return True

    def _serve(self, request: Request, num_tokens: int) -> None:
        start = request.num_computed_tokens
        stop, known = start + num_tokens, request.num_tokens
        if stop < known:
            self._bound = Bound.MAX_NUM_BATCHED_TOKENS
        self._chunks.append(Chunk(request, request.rank, start, num_tokens, stop == known, request.block_table))
        self.budget_tokens -= num_tokens
        if self._scheduler.pool.caches_prefixes:
            self._scheduler.register(request, min(stop, known))

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

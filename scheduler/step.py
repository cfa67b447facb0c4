"""One ``schedule()`` call in the making: the verbs a policy decides with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .batch import BY_BLOCKS, BY_SEQS, BY_TOKENS, UNBOUND, Batch, Bound, Chunk
from .cohort import NOBODY
from .request import PREEMPTED, Request

if TYPE_CHECKING:
    from .cohort import Seat
    from .scheduler import Scheduler


class Step:
    """A batch being formed. It holds what is left of the token budget and what was decided so far; the scheduler's
    lasting state is changed through its verbs only.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        config = scheduler.config
        self._scheduler = scheduler
        self.config = config
        """The knobs."""
        self.waiting = scheduler.waiting
        """Who waits, in order."""
        self.budget_tokens = self._limit_tokens = config.max_num_batched_tokens
        self.threshold_tokens = scheduler.threshold_tokens() if config.long_prefill_token_threshold else 0
        """Most prompt tokens one request may get in this step; 0 is no cap."""
        self.holds_prefills = config.prefill_schedule_interval > 1 and scheduler.holds_prefills()
        """Whether ``prefill_schedule_interval`` keeps prompts out of this step."""
        self.carries_prefill = False
        """Whether ``prefill_schedule_interval`` counts this step as one with prompt tokens: an unfinished prompt was
        served, even if it lost its tokens again, or somebody was admitted with more than one token to compute."""
        self.num_preempted = 0
        """Preemptions of this step so far."""
        self._chunks: list[Chunk] = []
        self._admitted: list[Request] = []
        self._preempted: Sequence[Request] = ()
        self._resumed: Sequence[Request] = ()
        self._stalled: Sequence[Request] = ()
        self._padding: Sequence[Chunk] = ()
        self._copies_out: Sequence[tuple[int, int]] = ()
        self._copies_in: Sequence[tuple[int, int]] = ()
        self._cached_tokens = 0
        self._ticks = False
        self._bound: Bound = UNBOUND

    # What a policy may look at.

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
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out now."""
        return self._scheduler.pool.num_free

    @property
    def num_blocks_to_decode(self) -> int:
        """Blocks that one more token for every decode takes."""
        return self._scheduler.kv.num_to_hand_out(self._scheduler.cohort.crossers())

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
        cohort, prefilling = scheduler.cohort, scheduler.prefilling
        crossers = cohort.crossers()
        if len(crossers) > scheduler.pool.num_free or (prefilling and not self._ends_with(prefilling)):
            self._advance_in_order(crossers, prefilling)
        else:
            if crossers or scheduler.caches_prefixes:
                self._advance_in_bulk(crossers)
            if prefilling:
                self._serve_prefills()
        self._ticks = True
        self.budget_tokens -= len(cohort.ranks)

    def advance_decodes(self) -> None:
        """Serve the decodes only, before any prompt: one token each, preempting where blocks run out."""
        scheduler = self._scheduler
        crossers = scheduler.cohort.crossers()
        if len(crossers) > scheduler.pool.num_free:
            self._advance_in_order(crossers, {})
        else:
            self._advance_in_bulk(crossers)
        self._ticks = True
        self.budget_tokens -= len(scheduler.cohort.ranks)

    def advance_prefills(self) -> None:
        """Serve the unfinished prompts, in order, from what is left of the budget (after ``advance_decodes``)."""
        self._serve_prefills()

    def limit_tokens(self, num_tokens: int) -> None:
        """Serve no more than ``num_tokens`` in this step. Called before anybody is served."""
        self.budget_tokens = self._limit_tokens = min(self.budget_tokens, num_tokens)

    def held_back_by_blocks(self) -> None:
        """Say that somebody waits for KV blocks, where a policy decides so by itself."""
        self._bound = BY_BLOCKS

    def admit_next(self, *, whole: bool = False, reserve_tokens: int = 0) -> bool:
        """Admit the head of the queue with as many of its tokens as the budget allows (``whole``: all or nothing),
        if blocks for it (and for ``reserve_tokens`` in all) are free. False if a bound forbids it; who stands behind
        is not looked at.
        """
        scheduler, config, kv = self._scheduler, self.config, self._scheduler.kv
        if scheduler.num_running >= scheduler.admission_limit_seqs:
            self._bound = BY_SEQS
            return False
        request = self.waiting.head
        is_known = request is scheduler.blocked and scheduler.pool.num_free < scheduler.blocked_blocks
        if is_known and self.budget_tokens > 0 and not whole:
            self._bound = BY_BLOCKS
            return False
        known = request.num_prompt_tokens + request._output_tokens
        hits = kv.find(request) if scheduler.caches_prefixes else []
        start = len(hits) * config.block_size if hits else request._computed_tokens
        want, budget = known - start, self.budget_tokens
        if self.threshold_tokens and want > self.threshold_tokens:
            want = self.threshold_tokens
        if budget <= 0 or (want > budget and whole):
            self._bound = BY_TOKENS
            return False
        if self.holds_prefills and known - start > 1:
            return False
        want = min(want, budget)
        room_tokens = start + want
        if config.scheduler_reserve_full_isl and known > room_tokens:
            room_tokens = max(room_tokens, min(known, config.max_model_len))
        if not kv.has_room(max(room_tokens, reserve_tokens), hits, scheduler.num_running > 0):
            self._bound = BY_BLOCKS
            if scheduler.needs_all_blocks:
                scheduler.blocked = request
                scheduler.blocked_blocks = -(-min(known, config.max_model_len) // config.block_size)
            return False
        self._take_in(request, hits, start, want)
        self.carries_prefill = self.carries_prefill or known - start > 1
        return True

    def _take_in(self, request: Request, hits: list[int], start: int, num_tokens: int) -> None:
        self.waiting.pop()
        if request.status is PREEMPTED:
            self._resumed = [*self._resumed, request]
        else:
            self._admitted.append(request)
        copies_in = self._scheduler.settle(request, hits, start + num_tokens)
        if copies_in:
            self._copies_in = [*self._copies_in, *copies_in]
        if hits:
            self._cached_tokens += len(hits) * self.config.block_size
        self._serve(request, start, num_tokens)

    def preempt(self, request: Request) -> None:
        """Take everything from ``request`` and queue it again; what it had computed is computed anew later, or
        swapped back in. What it was given in this very step returns to the budget.
        """
        for i, chunk in enumerate(self._chunks):
            if chunk.request is request:
                self.budget_tokens += chunk.num_tokens
                del self._chunks[i]
                break
        self._copies_out = [*self._copies_out, *self._scheduler.evict(request)]
        self._preempted = [*self._preempted, request]
        self.num_preempted += 1

    def pad(self, request: Request, start: int, num_tokens: int) -> None:
        """Have the device compute ``num_tokens`` slots of ``request``'s row that nobody needs."""
        self._scheduler.kv.has_padded = True
        self._grow(request, start + num_tokens)
        padding = Chunk(request, request.rank, start, num_tokens, False, request.block_table)
        self._padding = [*self._padding, padding]
        self.budget_tokens -= num_tokens

    def close(self) -> Batch:
        """The batch; from here on its tokens count as computed, as in vLLM."""
        scheduler = self._scheduler
        cohort = scheduler.cohort
        batch = Batch(scheduler.num_steps, cohort.clock, NOBODY, self._chunks, self._preempted, self._admitted)
        finishing: Sequence[Request] = ()
        if self._ticks:
            batch.decodes(cohort.coming, cohort)
            batch.num_decode_kv_tokens = cohort.num_kv_tokens
            if last := cohort.tick():
                finishing = scheduler.drain(last)
        if self._chunks:
            finishing = self._close_chunks(batch, finishing)
        if finishing:
            batch.finishing = finishing
        batch.num_running = scheduler.num_running
        batch.num_waiting = len(self.waiting)
        batch.num_free_blocks = scheduler.pool.num_free
        batch.bound = self._bound
        if self._preempted or self._resumed or self._stalled or self._padding or self._cached_tokens:
            self._close_the_rest(batch)
        return batch

    # How.

    def _close_the_rest(self, batch: Batch) -> None:
        """What few steps have."""
        batch.resumed, batch.stalled = self._resumed, self._stalled
        batch.copies_in, batch.copies_out = self._copies_in, self._copies_out
        batch.num_cached_tokens = self._cached_tokens
        if self._preempted:
            batch.bound = BY_BLOCKS
        if self._padding:
            _sum_padding(batch, self._padding)

    def _serve_prefills(self) -> None:
        """Serve the unfinished prompts from what the budget leaves them and, if they are still to come, the decodes."""
        cohort, prefilling = self._scheduler.cohort, self._scheduler.prefilling
        for rank in sorted(prefilling):
            left = self.budget_tokens if self._ticks else self.budget_tokens - len(cohort.ranks)
            if left <= 0:
                break
            if rank in prefilling and not self._advance_prefill(prefilling[rank], left):
                break

    def _ends_with(self, prefilling: dict[int, Request]) -> bool:
        """Whether the unfinished prompts stand at the end of the running list and the budget reaches all decodes."""
        ranks = self._scheduler.cohort.ranks
        return not ranks or (min(prefilling) > ranks[-1] and self.budget_tokens > len(ranks))

    def _capped(self, want: int) -> int:
        return min(want, self.threshold_tokens) if self.threshold_tokens else want

    def _advance_in_bulk(self, crossers: dict[int, Seat]) -> None:
        """Everybody decodes and blocks suffice: only who begins or fills a block is touched."""
        scheduler = self._scheduler
        if crossers:
            scheduler.kv.hand_out(crossers)
        if scheduler.caches_prefixes:
            scheduler.kv.all_served()

    def _advance_in_order(self, crossers: dict[int, Seat], prefilling: dict[int, Request]) -> None:
        scheduler = self._scheduler
        cohort = scheduler.cohort
        fillers = scheduler.kv.fillers() if scheduler.caches_prefixes else {}
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
                    scheduler.kv.register_decode(request)
        while cohort and self._budget_before(cohort.ranks[-1]) <= 0:
            request = cohort.seats[cohort.ranks[-1]].request
            scheduler.stall(request)
            self._stalled = [*self._stalled, request]

    def _budget_before(self, rank: int) -> int:
        """What is left of the whole budget when the running list has been served up to ``rank``."""
        used = self._scheduler.cohort.num_before(rank) + sum(c.num_tokens for c in self._chunks if c.rank < rank)
        return self._limit_tokens - used

    def _advance_prefill(self, request: Request, left: int) -> bool:
        """Serve a resident's next tokens, at most ``left``. False if the running list ends here."""
        computed = request._computed_tokens
        missing = request.num_prompt_tokens + request._output_tokens - computed
        is_prefill = request.rank not in self._scheduler.stalled
        if self.holds_prefills and is_prefill:
            return True
        want = self._capped(missing)
        if want > left:
            self._bound = BY_TOKENS
            want = left
        want = min(want, self._scheduler.config.max_model_len - computed - 1)
        if want <= 0:
            return True
        if not self._grow(request, computed + want):
            return not self._scheduler.stops_at_own_preemption
        self._serve(request, computed, want)
        self.carries_prefill = self.carries_prefill or is_prefill
        return True

    def _grow(self, request: Request, num_tokens: int) -> bool:
        """Give ``request`` the blocks for ``num_tokens`` tokens, preempting victims while there are too few. False if
        that took the request itself.
        """
        scheduler = self._scheduler
        missing = -(-num_tokens // scheduler.config.block_size) - scheduler.kv.held(request)
        while missing > scheduler.pool.num_free:
            victim = scheduler.victim()
            self.preempt(victim)
            if victim is request:
                return False
        if missing > 0:
            scheduler.kv.grow(request, missing)
        return True

    def _serve(self, request: Request, start: int, num_tokens: int) -> None:
        stop, known = start + num_tokens, request.num_prompt_tokens + request._output_tokens
        if stop < known:
            self._bound = BY_TOKENS
        chunk = (request, request.rank, start, num_tokens, stop == known, request.block_table)
        self._chunks.append(tuple.__new__(Chunk, chunk))
        self.budget_tokens -= num_tokens
        if self._scheduler.caches_prefixes:
            self._scheduler.kv.register(request, min(stop, known))

    def _close_chunks(self, batch: Batch, finishing: Sequence[Request]) -> Sequence[Request]:
        move_on = self._scheduler.move_on
        ended = []
        for chunk in self._chunks:
            request, _, start, num_tokens, samples, _ = chunk
            if num_tokens == 1 and start > 0:
                batch.num_single_chunks += 1
                batch.num_decode_kv_tokens += start
            else:
                batch.num_prefill_tokens += num_tokens
                batch.prefill_attention_work += num_tokens * (start + num_tokens / 2)
            if request._tokens_to_recompute > start:
                batch.num_recomputed_tokens += min(request._tokens_to_recompute - start, num_tokens)
            if samples:
                batch.num_sampled_chunks += 1
            if move_on(chunk):
                ended.append(request)
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

"""The scheduler: who waits, who runs, who holds which blocks; a policy decides, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from .batch import Batch, Bound, Chunk
from .blocks import BlockPool, PrefixCachingPool
from .cohort import Cohort, Seat
from .config import SchedulerConfig
from .errors import BatchTwinError, RequestRefused
from .hashing import extend_hashes
from .policies import Policy, load_policy
from .request import Request, RequestStatus
from .step import Step
from .waiting import WaitingQueue


class Scheduler:
    """Decides every iteration, in simulation and on a device alike: ``schedule()`` forms a batch, ``complete()``
    says that it has run.

    Whoever is resident is in exactly one place: ``cohort`` (decodes in bulk), ``prefilling`` (has known tokens left
    to compute), ``draining`` (its last token is under way) or, under static batching, ``held`` (finished, its row
    computed on). ``rank``, the admission number, orders the running list.
    """

    def __init__(
        self, config: SchedulerConfig, policy: Policy | str = "vllm_v1", *, refuse_unservable: bool = True
    ) -> None:
        self.config = config
        self.policy = load_policy(policy) if isinstance(policy, str) else policy
        self.policy.check(config)
        self.waiting: WaitingQueue = self.policy.make_queue()
        self.pool = (PrefixCachingPool if config.enable_prefix_caching else BlockPool)(config.num_gpu_blocks)
        self.host_pool = BlockPool(config.num_cpu_blocks + 1)
        self.cohort = Cohort(config.block_size)
        self.prefilling: dict[int, Request] = {}
        self.draining: dict[int, Request] = {}
        self.stalled: set[int] = set()  # ranks of those in ``prefilling`` that decode and only lacked budget
        self.held: list[Request] = []
        self.num_steps = 0
        self.num_running = 0
        """Resident sequences: what ``max_num_seqs`` bounds."""
        self.admission_limit_seqs = config.admission_limit_seqs
        self.stops_at_own_preemption = self._victim_rule == "last"
        self.has_padded = False
        """Whether a decode may have a block already that it does not need yet."""
        self._refuse_unservable = refuse_unservable
        self._requests: dict[str, Request] = {}
        self._next_rank = 0
        self._host_returns: list[int] = []
        self._steps_since_prefill = config.prefill_schedule_interval
        self._aborted = False  # since the last step
        self._left_waiting = False  # by the last admission pass that was open to prompts

    @property
    def has_work(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self._requests)

    def running(self) -> list[Request]:
        """The running list, in order. O(running)."""
        residents = {rank: seat.request for rank, seat in self.cohort.seats.items()}
        residents |= self.prefilling | self.draining | {request.rank: request for request in self.held}
        return [residents[rank] for rank in sorted(residents)]

    def add(self, request: Request) -> None:
        """Queue ``request``. Raises ``RequestRefused`` if it could never be served with these knobs."""
        if request.request_id in self._requests:
            raise RequestRefused(f"Request {request.request_id!r} is already here; request ids must be unique.")
        if request.num_prompt_tokens < 1 or request.output_len < 1:
            raise RequestRefused(
                f"Request {request.request_id!r} has {request.num_prompt_tokens} prompt and {request.output_len} "
                f"output tokens; both must be at least 1."
            )
        if self._refuse_unservable:
            self._check_servable(request)
        request.status = RequestStatus.WAITING
        self._requests[request.request_id] = request
        self.waiting.push(request)

    def abort(self, request_id: str) -> None:
        """Drop a request wherever it is; its blocks return to the pool. Unknown or ended ids are ignored."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        self._aborted = True
        if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            self._unqueue(request)
            request.status = RequestStatus.ABORTED
        else:
            request.status = RequestStatus.ABORTED
            self._release(request)
        if self.held and self.num_running == len(self.held):
            self._release_held()

    def schedule(self) -> Batch:
        """The next batch. It may be empty: a step that only preempts, or one in which nothing can run."""
        self._aborted = False
        step = Step(self)
        self.policy.schedule(step)
        batch = step.close()
        if self._host_returns:  # only now: a later copy out of this step must not overwrite what is copied in
            self.host_pool.give_back(self._host_returns)
            self._host_returns = []
        self.num_steps += 1
        if self.config.prefill_schedule_interval > 1:
            self._note_prefill(step, batch)
        return batch

    def complete(self, batch: Batch) -> list[Request]:
        """``batch`` has run. Returns who finished with it, in scheduling order; their blocks are free again."""
        finished: list[Request] = []
        for request in batch.finishing:
            if self._requests.pop(request.request_id, None) is not None:
                self._end(request)
                finished.append(request)
        if self.held and self.num_running == len(self.held):
            self._release_held()
        return finished

    def num_steady_steps(self, last: Batch) -> int:
        """How many steps after ``last``, which has just completed, differ in nothing but one more token for every
        decode, if nobody arrives: nobody can be admitted, none finishes or prefills, and blocks suffice.
        """
        others = self.prefilling or self.draining or self.held
        if others or not self.cohort or not self.policy.can_leap or self.config.async_scheduling:
            return 0
        if self.waiting and not self._stays_blocked(last):
            return 0
        return self.cohort.num_steady_steps(self.pool.num_free)

    def leap(self, num_steps: int) -> list[int]:
        """Take so many steady steps at once; returns the free blocks after each."""
        cohort, pool = self.cohort, self.pool
        free = []
        for _ in range(num_steps):
            crossers = cohort.crossers()
            if crossers:
                self.hand_out(crossers)
            if pool.caches_prefixes:
                fillers = cohort.fillers()
                for rank in sorted(fillers):
                    self.register_decode(fillers[rank].request)
            cohort.clock += 1
            free.append(pool.num_free)
        self.num_steps += num_steps
        self._steps_since_prefill += num_steps
        self._left_waiting = False  # where this counts, only an empty queue leaps
        return free

    def output_limit(self, request: Request) -> int:
        """Output tokens after which ``request`` ends: its own length or ``max_model_len``, whichever comes first."""
        return min(request.output_len, self.config.max_model_len - request.num_prompt_tokens)

    def check_integrity(self) -> None:
        """Blocks are conserved, sums agree with a walk. Raises ``BatchTwinError``. O(everything)."""
        residents = self.running()
        self.pool.check_integrity([request.block_table for request in residents])
        self.host_pool.check_integrity([request.host_table for request in self.waiting])
        walked = sum(seat.request.num_computed_tokens for seat in self.cohort.seats.values())
        if walked != self.cohort.num_kv_tokens:
            raise BatchTwinError(f"The cohort sums {self.cohort.num_kv_tokens} KV tokens, a walk finds {walked}.")
        if self.num_running != len(residents):
            raise BatchTwinError(f"{self.num_running} requests are said to be resident, a walk finds {len(residents)}.")
        if len(residents) - len(self.held) + len(self.waiting) != len(self._requests):
            raise BatchTwinError("A request is neither waiting nor running, or both.")

    # What a step asks.

    def threshold_tokens(self) -> int:
        """The cap on prompt tokens a request and step; 0 is none. It is void for a request that is alone."""
        config = self.config
        threshold = config.long_prefill_token_threshold
        if threshold == 0:  # adaptive or not
            return 0
        eligible = self.num_running + len(self.waiting)
        if eligible <= 1:
            return 0
        if config.long_prefill_token_threshold_adaptive:
            return max(threshold, config.max_num_batched_tokens // eligible)
        return threshold

    def holds_prefills(self) -> bool:
        """Whether ``prefill_schedule_interval`` keeps prompts out: not enough steps have passed since the last prompt,
        somebody decodes, and the last open admission left nobody waiting.
        """
        interval = self.config.prefill_schedule_interval
        if interval == 1 or self._steps_since_prefill >= interval - 1 or self._left_waiting:
            return False
        return len(self.cohort) + len(self.draining) + len(self.stalled) > 0

    def fillers(self) -> dict[int, Seat]:
        """Decodes whose block the prefix cache learns of in this step: those who fill it or, where its last token is
        still under way when the step is formed (asynchronous scheduling), those who filled it in the step before.
        """
        return self.cohort.crossers() if self.config.async_scheduling else self.cohort.fillers()

    def hand_out(self, crossers: dict[int, Seat]) -> None:
        """A block each for decodes whose next token starts one, in running-list order. There are enough."""
        ranks = sorted(crossers)
        if self.has_padded:
            ranks = [rank for rank in ranks if self.cohort.lacks_block(crossers[rank])]
        for rank, block in zip(ranks, self.pool.take(len(ranks)), strict=True):
            crossers[rank].block_table.append(block)

    def find_cached(self, request: Request) -> list[int]:
        """Blocks that hold a cached prefix of ``request``; at least one token is left to compute."""
        if not isinstance(self.pool, PrefixCachingPool) or request.num_computed_tokens:
            return []
        num_blocks = (request.num_tokens - 1) // self.config.block_size
        return self.pool.find(extend_hashes(request, self.config.block_size, num_blocks)[:num_blocks])

    def has_room(self, num_tokens: int, hits: Sequence[int]) -> bool:
        """Whether a request of ``num_tokens`` tokens that finds ``hits`` in the cache may be admitted."""
        config, pool = self.config, self.pool
        needed = -(-num_tokens // config.block_size) - len(hits)
        if hits and isinstance(pool, PrefixCachingPool):
            needed += pool.num_idle(hits)
        if config.watermark and self.num_running:
            needed += int(config.watermark * config.num_gpu_blocks)
        return needed <= pool.num_free

    def victim(self) -> Request:
        """Who is preempted next."""
        if self._victim_rule == "last":
            return self._last_running()
        if self._victim_rule == "cheapest":
            return min(self.running(), key=lambda request: (request.num_computed_tokens, -request.rank))
        return max(self.running(), key=lambda request: (request.priority, request.arrival_s, request.rank))

    # What a step does to the lasting state.

    def settle(self, request: Request, hits: list[int], num_tokens: int) -> list[tuple[int, int]]:
        """Make ``request`` resident, at the end of the running list, with blocks for ``num_tokens`` tokens, the cached
        ``hits`` first. Returns the copies that bring back what was swapped out.
        """
        request.rank = self._next_rank
        self._next_rank += 1
        self.num_running += 1
        request.status = RequestStatus.RUNNING
        self.prefilling[request.rank] = request
        if hits and isinstance(self.pool, PrefixCachingPool):
            self.pool.hold(hits)
            request._computed_tokens = len(hits) * self.config.block_size
        request.num_registered_blocks = len(hits)
        missing = -(-num_tokens // self.config.block_size) - len(hits)
        request.block_table = hits + self.pool.take(missing)
        if not request.host_table:
            return []
        copies = list(zip(request.block_table, request.host_table, strict=False))
        self._host_returns += request.host_table
        request.host_table = []
        return copies

    def evict(self, request: Request) -> list[tuple[int, int]]:
        """Take ``request`` off the device and queue it again: to be computed anew or, where the host has room, to be
        swapped back. Returns the copies to the host.
        """
        computed = request.num_computed_tokens
        copies: list[tuple[int, int]] = []
        swapped = -(-computed // self.config.block_size)
        if self.config.preemption_mode == "swap" and 0 < swapped <= self.host_pool.num_free:
            request.host_table = self.host_pool.take(swapped)
            copies = list(zip(request.block_table, request.host_table, strict=False))
        else:
            request._tokens_to_recompute = max(request._tokens_to_recompute, computed)
        request.status = RequestStatus.PREEMPTED
        self._release(request)
        request._computed_tokens = computed if copies else 0
        request.num_registered_blocks = 0
        request.num_preemptions += 1
        self.waiting.push_back(request)
        return copies

    def register(self, request: Request, num_tokens: int) -> None:
        """Let the prefix cache know the full blocks among the first ``num_tokens`` tokens."""
        full = num_tokens // self.config.block_size
        known = request.num_registered_blocks
        if full > known and isinstance(self.pool, PrefixCachingPool):
            hashes = extend_hashes(request, self.config.block_size, full)
            for block in range(known, full):
                self.pool.register(request.block_table[block], hashes[block])
            request.num_registered_blocks = full

    def register_decode(self, request: Request) -> None:
        """Register what a decode has filled with its known tokens when this step has run."""
        under_way = 1 if self.config.async_scheduling else 0
        self.register(request, request.num_computed_tokens + 1 - under_way)

    def stall(self, request: Request) -> None:
        """Have a decode wait for budget: it is served one by one until it can join the cohort again."""
        self.cohort.leave(request)
        self.prefilling[request.rank] = request
        self.stalled.add(request.rank)

    def _last_running(self) -> Request:
        """The end of the running list: vLLM's victim."""
        ranks = [max(place) for place in (self.prefilling, self.draining) if place]
        if self.cohort.ranks:
            ranks.append(self.cohort.ranks[-1])
        return self._resident(max(ranks))

    def tick(self) -> list[Request]:
        """Every decode moves on by one token; returns those who get their last one, in running-list order."""
        ended = [seat.request for seat in self.cohort.tick()]
        for request in ended:
            self.cohort.leave(request)
            self.draining[request.rank] = request
        return ended

    def move_on(self, chunk: Chunk) -> bool:
        """Account for a served chunk; a request whose known tokens are all computed decodes from now on. True if
        the token of this step is its last.
        """
        request = chunk.request
        request._computed_tokens = chunk.start + chunk.num_tokens
        if not chunk.samples:
            return False
        del self.prefilling[request.rank]
        self.stalled.discard(request.rank)
        num_steps_left = self.output_limit(request) - request._output_tokens - 1
        if num_steps_left > 0:
            self.cohort.join(request, num_steps_left)
            return False
        request._output_tokens += 1
        self.draining[request.rank] = request
        return True

    @property
    def _victim_rule(self) -> str:
        return self.config.victim or self.policy.victim

    def _stays_blocked(self, last: Batch) -> bool:
        """Whether the head of the queue, which ``last`` could not admit, cannot be admitted until somebody ends."""
        is_plain = not (last.chunks or last.preempted or last.finishing or last.stalled)
        changed = self._aborted or not is_plain or last.num_waiting != len(self.waiting)
        if changed or self.config.prefill_schedule_interval > 1:
            return False
        if last.bound is Bound.NONE:
            return False
        return last.bound is Bound.MAX_NUM_SEQS or not self.pool.caches_prefixes  # what decodes fill could be a hit

    def _note_prefill(self, step: Step, batch: Batch) -> None:
        if step.carries_prefill:
            self._steps_since_prefill = 0
        elif batch.num_tokens:
            self._steps_since_prefill += 1
        if not step.holds_prefills and not batch.preempted:
            self._left_waiting = bool(self.waiting)

    def _end(self, request: Request) -> None:
        was_preempted = request.status is RequestStatus.PREEMPTED  # its last token was under way then
        request.status = RequestStatus.FINISHED
        if was_preempted:
            self._unqueue(request)
        elif self.policy.keeps_finished_rows:
            del self.draining[request.rank]
            self.held.append(request)
        else:
            if self.config.async_scheduling:
                self.register(request, request.num_computed_tokens)
            self._release(request)

    def _unqueue(self, request: Request) -> None:
        self.waiting.remove(request)
        self.host_pool.give_back(request.host_table)
        request.host_table = []

    def _resident(self, rank: int) -> Request:
        seat = self.cohort.seats.get(rank)
        if seat is not None:
            return seat.request
        return self.prefilling[rank] if rank in self.prefilling else self.draining[rank]

    def _release(self, request: Request) -> None:
        """Take ``request`` out of the running list and its blocks back. Batches that hold its old table keep it."""
        if request.seat is not None:
            self.cohort.leave(request)
        else:
            self.prefilling.pop(request.rank, None)
            self.draining.pop(request.rank, None)
            self.stalled.discard(request.rank)
        self.num_running -= 1
        self.pool.give_back(request.block_table)
        request.block_table = []
        self.policy.left(request)

    def _release_held(self) -> None:
        for request in self.held:
            self._release(request)
        self.held = []

    def _check_servable(self, request: Request) -> None:
        config = self.config
        if request.num_prompt_tokens >= config.max_model_len:
            raise RequestRefused(
                f"Request {request.request_id!r} has a prompt of {request.num_prompt_tokens} tokens, but max_model_len "
                f"is {config.max_model_len} and must leave room for an output token: raise max_model_len or shorten "
                f"the prompt."
            )
        tokens = request.num_prompt_tokens + self.output_limit(request) - 1
        blocks = -(-tokens // config.block_size)
        if blocks > config.num_usable_blocks:
            raise RequestRefused(
                f"Request {request.request_id!r} needs {blocks} KV blocks of {config.block_size} tokens, but only "
                f"{config.num_usable_blocks} exist: raise num_gpu_blocks (or the KV memory) or shorten the request."
            )

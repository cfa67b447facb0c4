"""The scheduler: who waits, who runs, who holds which blocks; a policy decides, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from .batch import BY_SEQS, UNBOUND, Batch, Chunk
from .cohort import Cohort, Seat
from .config import SchedulerConfig
from .errors import BatchTwinError, RequestRefused
from .kv_cache import CountedKVCache, KVCache
from .policies import Policy, load_policy
from .request import ABORTED, FINISHED, PREEMPTED, RUNNING, WAITING, Request
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
        self,
        config: SchedulerConfig,
        policy: Policy | str = "vllm_v1",
        *,
        refuse_unservable: bool = True,
        names_blocks: bool = True,
    ) -> None:
        self.config = config
        self.policy = load_policy(policy) if isinstance(policy, str) else policy
        self.policy.check(config)
        self.waiting: WaitingQueue = self.policy.make_queue()
        self.cohort = Cohort(config.block_size)
        shares = config.enable_prefix_caching or config.preemption_mode == "swap" or self.policy.reads_blocks
        self.kv = (KVCache if names_blocks or shares else CountedKVCache)(config, self.cohort)
        self.pool, self.host_pool = self.kv.pool, self.kv.host_pool
        self.caches_prefixes = self.pool.caches_prefixes
        self.prefilling: dict[int, Request] = {}
        self.draining: dict[int, Request] = {}
        self.stalled: set[int] = set()  # ranks of those in ``prefilling`` that decode and only lacked budget
        self.held: list[Request] = []
        self.num_steps = 0
        self.num_running = 0
        """Resident sequences: what ``max_num_seqs`` bounds."""
        self.admission_limit_seqs = config.admission_limit_seqs
        self.stops_at_own_preemption = self._victim_rule == "last"
        self.needs_all_blocks = (
            config.scheduler_reserve_full_isl and not self.caches_prefixes and config.prefill_schedule_interval == 1
        )
        """Whether the head of the queue needs blocks for all its known tokens, whatever the step."""
        self.blocked: Request | None = None
        """Who needed more than there were when it was last looked at: ``blocked_blocks`` at least."""
        self.blocked_blocks = 0
        self._can_leap = self.policy.can_leap and not config.async_scheduling
        self._refuse_unservable = refuse_unservable
        self._always_fits_tokens = min(config.max_model_len, config.num_usable_blocks * config.block_size)
        self._requests: dict[str, Request] = {}
        self._next_rank = 0
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
        if self._refuse_unservable and request.num_prompt_tokens + request.output_len > self._always_fits_tokens:
            self._check_servable(request)
        request.status = WAITING
        self._requests[request.request_id] = request
        self.waiting.push(request)

    def abort(self, request_id: str) -> None:
        """Drop a request wherever it is; its blocks return to the pool. Unknown or ended ids are ignored."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        self._aborted = True
        if request.status in (WAITING, PREEMPTED):
            self._unqueue(request)
            request.status = ABORTED
        else:
            request.status = ABORTED
            self._release(request)
        if self.held and self.num_running == len(self.held):
            self._release_held()

    def schedule(self) -> Batch:
        """The next batch. It may be empty: a step that only preempts, or one in which nothing can run."""
        self._aborted = False
        step = Step(self)
        self.policy.schedule(step)
        batch = step.close()
        if batch.copies_in:
            self.kv.free_swapped_in()
        self.num_steps += 1
        if self.config.prefill_schedule_interval > 1:
            self._note_prefill(step, batch)
        return batch

    def complete(self, batch: Batch) -> list[Request]:
        """``batch`` has run. Returns who finished with it, in scheduling order; their blocks are free again."""
        finished = self.finish(batch.finishing) if batch.finishing else []
        if self.held and self.num_running == len(self.held):
            self._release_held()
        return finished

    def finish(self, finishing: Sequence[Request]) -> list[Request]:
        """The step that gave these their last token has run. Returns them, without whoever was aborted meanwhile."""
        finished = []
        for request in finishing:
            if self._requests.pop(request.request_id, None) is not None:
                self._end(request)
                finished.append(request)
        return finished

    def num_steady_steps(self, last: Batch) -> int:
        """How many steps after ``last``, which has just completed, differ in nothing but one more token for every
        decode, if nobody arrives: nobody can be admitted, none prefills, blocks suffice, and none finishes before the
        last of them.
        """
        if self.prefilling or self.draining or self.held or not self._can_leap or not self.cohort.ranks:
            return 0
        if self.waiting and not self._stays_blocked(last):
            return 0
        return self.cohort.num_steady_steps(self.pool.num_free)

    def leap(self, num_steps: int) -> tuple[list[int], list[Request]]:
        """Take so many steady steps at once. Returns the free blocks in each, and who ends with the last of them, to be
        given to ``finish`` when that has run.
        """
        free = self.kv.leap(num_steps)
        self.num_steps += num_steps
        self._steps_since_prefill += num_steps
        self._left_waiting = False  # where this counts, only an empty queue leaps
        return free, self.drain(self.cohort.take_last())

    def output_limit(self, request: Request) -> int:
        """Output tokens after which ``request`` ends: its own length or ``max_model_len``, whichever comes first."""
        limit = self.config.max_model_len - request.num_prompt_tokens
        return request.output_len if request.output_len < limit else limit

    def check_integrity(self) -> None:
        """Blocks are conserved, sums agree with a walk. Raises ``BatchTwinError``. O(everything)."""
        residents = self.running()
        self.kv.check_integrity(residents, self.waiting)
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
        request.status = RUNNING
        self.prefilling[request.rank] = request
        return self.kv.admit(request, hits, num_tokens)

    def evict(self, request: Request) -> list[tuple[int, int]]:
        """Take ``request`` off the device and queue it again: to be computed anew or, where the host has room, to be
        swapped back. Returns the copies to the host.
        """
        computed = request.num_computed_tokens
        copies = self.kv.swap_out(request)
        if not copies:
            request._tokens_to_recompute = max(request._tokens_to_recompute, computed)
        request.status = PREEMPTED
        self._release(request)
        request._computed_tokens = computed if copies else 0
        request.num_registered_blocks = 0
        request.num_preemptions += 1
        self.waiting.push_back(request)
        return copies

    def stall(self, request: Request) -> None:
        """Have a decode wait for budget: it is served one by one until it can join the cohort again."""
        self.kv.unseat(request)
        self.cohort.leave(request)
        self.prefilling[request.rank] = request
        self.stalled.add(request.rank)

    def _last_running(self) -> Request:
        """The end of the running list: vLLM's victim."""
        ranks = [max(place) for place in (self.prefilling, self.draining) if place]
        if self.cohort.ranks:
            ranks.append(self.cohort.ranks[-1])
        return self._resident(max(ranks))

    def drain(self, last: list[Seat]) -> list[Request]:
        """These decodes get their last token in this step; returns their requests."""
        ended = []
        for seat in last:
            request = seat.request
            self.kv.unseat(request)
            self.cohort.leave(request)
            self.draining[request.rank] = request
            ended.append(request)
        return ended

    def move_on(self, chunk: Chunk) -> bool:
        """Account for a served chunk; a request whose known tokens are all computed decodes from now on. True if
        the token of this step is its last.
        """
        request, rank, start, num_tokens, samples, _ = chunk
        request._computed_tokens = start + num_tokens
        if not samples:
            return False
        del self.prefilling[rank]
        if self.stalled:
            self.stalled.discard(rank)
        num_steps_left = self.output_limit(request) - request._output_tokens - 1
        if num_steps_left > 0:
            self.cohort.join(request, num_steps_left)
            if self.caches_prefixes:
                self.kv.seated(request)
            return False
        request._output_tokens += 1
        self.draining[request.rank] = request
        return True

    @property
    def _victim_rule(self) -> str:
        return self.config.victim or self.policy.victim

    def _stays_blocked(self, last: Batch) -> bool:
        """Whether the head of the queue, which ``last`` could not admit, cannot be admitted until somebody ends."""
        if last.chunks or last.finishing or last.preempted or last.stalled:
            return False
        if self._aborted or last.num_waiting != len(self.waiting) or self.config.prefill_schedule_interval > 1:
            return False
        if last.bound is UNBOUND:
            return False
        return last.bound is BY_SEQS or not self.caches_prefixes  # what decodes fill could be a hit

    def _note_prefill(self, step: Step, batch: Batch) -> None:
        if step.carries_prefill:
            self._steps_since_prefill = 0
        elif batch.num_tokens:
            self._steps_since_prefill += 1
        if not step.holds_prefills and not batch.preempted:
            self._left_waiting = bool(self.waiting)

    def _end(self, request: Request) -> None:
        was_preempted = request.status is PREEMPTED  # its last token was under way then
        request.status = FINISHED
        if was_preempted:
            self._unqueue(request)
        elif self.policy.keeps_finished_rows:
            del self.draining[request.rank]
            self.held.append(request)
        else:
            if self.config.async_scheduling:
                self.kv.register(request, request.num_computed_tokens)
            self._release(request)

    def _unqueue(self, request: Request) -> None:
        self.waiting.remove(request)
        self.kv.forget_swapped(request)

    def _resident(self, rank: int) -> Request:
        seat = self.cohort.seats.get(rank)
        if seat is not None:
            return seat.request
        return self.prefilling[rank] if rank in self.prefilling else self.draining[rank]

    def _release(self, request: Request) -> None:
        """Take ``request`` out of the running list and its blocks back."""
        self.kv.release(request)
        if request.seat is not None:
            self.cohort.leave(request)
        elif self.draining.pop(request.rank, None) is None:
            self.prefilling.pop(request.rank, None)
            self.stalled.discard(request.rank)
        self.num_running -= 1
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
                f"Request {request.request_id!r} needs {blocks} KV blocks of {config.block_size} tokens, but of "
                f"num_gpu_blocks {config.num_gpu_blocks} only {config.num_usable_blocks} can be used (block 0 is never "
                f"handed out, as in vLLM): raise num_gpu_blocks (or the KV memory) or shorten the request."
            )

"""The scheduler: who waits, who runs, who holds which blocks; a policy decides, step by step."""

from __future__ import annotations

from .batch import Batch, Chunk
from .blocks import BlockPool
from .cohort import Cohort
from .config import SchedulerConfig
from .errors import BatchTwinError, RequestRefused
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
        self.waiting = WaitingQueue()
        self.pool = BlockPool(config.num_gpu_blocks)
        self.cohort = Cohort(config.block_size)
        self.prefilling: dict[int, Request] = {}
        self.draining: dict[int, Request] = {}
        self.held: list[Request] = []
        self.num_steps = 0
        self._refuse_unservable = refuse_unservable
        self._requests: dict[str, Request] = {}
        self._next_rank = 0

    @property
    def num_running(self) -> int:
        """Resident sequences: what ``max_num_seqs`` bounds."""
        return len(self.cohort) + len(self.prefilling) + len(self.draining) + len(self.held)

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
        if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            self.waiting.remove(request)
        else:
            self._release(request)
        request.status = RequestStatus.ABORTED
        if self.held and self.num_running == len(self.held):
            self._release_held()

    def schedule(self) -> Batch:
        """The next batch. It may be empty: a step that only preempts, or one in which nothing can run."""
        step = Step(self)
        self.policy.schedule(step)
        batch = step.close()
        self.num_steps += 1
        return batch

    def complete(self, batch: Batch) -> list[Request]:
        """``batch`` has run. Returns who finished with it, in scheduling order; their blocks are free again."""
        finished = [request for request in batch.finishing if request.status is RequestStatus.RUNNING]
        for request in finished:
            request.status = RequestStatus.FINISHED
            del self._requests[request.request_id]
            if self.policy.keeps_finished_rows:
                del self.draining[request.rank]
                self.held.append(request)
            else:
                self._release(request)
        if self.held and self.num_running == len(self.held):
            self._release_held()
        return finished

    def output_limit(self, request: Request) -> int:
        """Output tokens after which ``request`` ends: its own length or ``max_model_len``, whichever comes first."""
        return min(request.output_len, self.config.max_model_len - request.num_prompt_tokens)

    def check_integrity(self) -> None:
        """Blocks are conserved, sums agree with a walk. Raises ``BatchTwinError``. O(everything)."""
        residents = self.running()
        self.pool.check_integrity([request.block_table for request in residents])
        walked = sum(seat.request.num_computed_tokens for seat in self.cohort.seats.values())
        if walked != self.cohort.num_kv_tokens:
            raise BatchTwinError(f"The cohort sums {self.cohort.num_kv_tokens} KV tokens, a walk finds {walked}.")
        if len(residents) - len(self.held) + len(self.waiting) != len(self._requests):
            raise BatchTwinError("A request is neither waiting nor running, or both.")

    # What a step does to the lasting state.

    def settle(self, request: Request) -> None:
        """Make ``request`` resident, at the end of the running list."""
        request.rank = self._next_rank
        self._next_rank += 1
        request.status = RequestStatus.RUNNING
        self.prefilling[request.rank] = request

    def evict(self, request: Request) -> None:
        """Take ``request`` off the device and back to the front of the queue, to be computed anew."""
        request._tokens_to_recompute = max(request._tokens_to_recompute, request.num_computed_tokens)
        self._release(request)
        request._computed_tokens = 0
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.waiting.push_back(request)

    def stall(self, request: Request) -> None:
        """Have a decode wait for budget: it is served one by one until it can join the cohort again."""
        self.cohort.leave(request)
        self.prefilling[request.rank] = request

    def last_running(self) -> Request:
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
        num_steps_left = self.output_limit(request) - request._output_tokens - 1
        if num_steps_left > 0:
            self.cohort.join(request, num_steps_left)
            return False
        request._output_tokens += 1
        self.draining[request.rank] = request
        return True

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
        self.pool.give_back(request.block_table)
        request.block_table = []

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

"""vLLM 0.33.0's V1 scheduler a second time, as plainly as it can be written: lists, loops, nothing kept that can be
counted.

``replay`` takes the ``config`` and ``requests`` of a recorded schedule and gives the whole recording back. It shares no
line and no idea with ``batchtwin.scheduler``, so where the two agree on random workloads, both mean the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from naive_blocks import NaivePool, Token


class TooManySteps(Exception):
    """The workload was not done within the steps it was given."""


@dataclass(eq=False)
class NaiveRequest:
    """A request and how far it is."""

    id: str
    order: int
    """Place in the order of arrival."""
    num_prompt_tokens: int
    max_tokens: int
    priority: int
    tokens: list[Token]
    """Prompt and delivered outputs."""
    computed: int = 0
    placeholders: int = 0
    """Outputs scheduled but not delivered (asynchronous scheduling only)."""
    table: list[int] = field(default_factory=list)
    num_hashed_blocks: int = 0
    was_preempted: bool = False
    prefilling: bool = False
    """The last step that served it left known tokens uncomputed."""
    ended: bool = False

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def key(self) -> tuple[int, int]:
        return self.priority, self.order


@dataclass
class Row:
    """What one request gets from one step."""

    request: NaiveRequest
    tokens: int
    start: int
    new_blocks: list[int]
    samples: bool = False


@dataclass
class NaiveStep:
    """One call of ``schedule()``: what is left to give while it runs, and what was decided."""

    budget: int
    cap: int
    """Most tokens a request may get, 0 for no cap."""
    held: bool
    """No prefill in this step (``prefill_schedule_interval``)."""
    rows: dict[str, Row] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    carries_prefill: bool = False


class NaiveScheduler:
    """``schedule`` and ``deliver``, as vLLM decides them."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.pool = NaivePool(config["num_gpu_blocks"], config["block_size"])
        self.waiting: list[NaiveRequest] = []
        self.running: list[NaiveRequest] = []
        self.outstanding: list[NaiveStep] = []
        self.steps_with_tokens = 0
        self.last_prefill_step = -int(config["prefill_schedule_interval"])
        self.capacity_bound = False

    @property
    def is_priority(self) -> bool:
        return bool(self.config["policy"] == "priority")

    def enqueue(self, request: NaiveRequest) -> None:
        self.waiting.append(request)
        if self.is_priority:
            self.waiting.sort(key=lambda r: r.key)

    def schedule(self) -> NaiveStep:
        step = NaiveStep(self.config["max_num_batched_tokens"], self._cap(), self._holds_prefills())
        self._serve_running(step)
        if not step.preempted:
            while self._admit_head(step):
                pass
            if not step.held:
                self.capacity_bound = bool(self.waiting)
        self.steps_with_tokens += bool(step.rows)
        if step.carries_prefill:
            self.last_prefill_step = self.steps_with_tokens
        for row in step.rows.values():
            self._advance(row)
        self.outstanding.append(step)
        return step

    def _cap(self) -> int:
        eligible = len(self.running) + len(self.waiting)
        cap = int(self.config["long_prefill_token_threshold"])
        if eligible <= 1 or cap == 0:
            return 0
        if self.config["long_prefill_token_threshold_adaptive"]:
            cap = max(cap, self.config["max_num_batched_tokens"] // eligible)
        return cap

    def _holds_prefills(self) -> bool:
        since = self.steps_with_tokens + 1 - self.last_prefill_step
        somebody_decodes = any(not request.prefilling for request in self.running)
        return since < self.config["prefill_schedule_interval"] and not self.capacity_bound and somebody_decodes

    def _serve_running(self, step: NaiveStep) -> None:
        for request in list(self.running):
            if step.budget == 0:
                break
            if request not in self.running:
                continue
            want = self._want(request, step)
            if want == 0 or not self._make_room(request, want, step):
                continue
            step.carries_prefill |= request.prefilling
            self._grant(request, want, step)

    def _want(self, request: NaiveRequest, step: NaiveStep) -> int:
        last_token_is_under_way = (
            request.placeholders > 0
            and request.computed + 2 - request.placeholders >= request.num_prompt_tokens + request.max_tokens
        )
        if last_token_is_under_way or (step.held and request.prefilling):
            return 0
        want = len(request.tokens) + request.placeholders - request.computed
        if 0 < step.cap < want:
            want = step.cap
        return int(min(want, step.budget, self.config["max_model_len"] - 1 - request.computed))

    def _make_room(self, request: NaiveRequest, want: int, step: NaiveStep) -> bool:
        while self._blocks_for(request.computed + want) - len(request.table) > len(self.pool.free):
            victim = max(self.running, key=lambda r: r.key) if self.is_priority else self.running[-1]
            self._preempt(victim, step)
            if victim is request:
                return False
        return True

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.pool.block_size)

    def _preempt(self, victim: NaiveRequest, step: NaiveStep) -> None:
        step.preempted.append(victim.id)
        undone = step.rows.pop(victim.id, None)
        step.budget += undone.tokens if undone else 0
        self.pool.release(victim.table)
        victim.table, victim.num_hashed_blocks = [], 0
        victim.computed = victim.placeholders = 0
        victim.was_preempted = True
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        if self.is_priority:
            self.waiting.sort(key=lambda r: r.key)

    def _grant(self, request: NaiveRequest, want: int, step: NaiveStep) -> None:
        blocks = self.pool.take(self._blocks_for(request.computed + want) - len(request.table))
        request.table += blocks
        step.budget -= want
        step.rows[request.id] = Row(request, want, request.computed, blocks)
        self._name_blocks(request, min(request.computed + want, len(request.tokens)))

    def _name_blocks(self, request: NaiveRequest, num_tokens: int) -> None:
        """Make the full blocks among the first ``num_tokens`` tokens findable."""
        if not self.config["enable_prefix_caching"]:
            return
        full = num_tokens // self.pool.block_size
        names = self.pool.names(request.tokens, full)
        for index in range(request.num_hashed_blocks, full):
            self.pool.name(request.table[index], names[index])
        request.num_hashed_blocks = max(request.num_hashed_blocks, full)

    def _admit_head(self, step: NaiveStep) -> bool:
        """Move the head of the queue to ``running``; False if it, and so everybody behind it, has to wait."""
        most = self.config["max_num_active_seqs"] or self.config["max_num_seqs"]
        if step.budget == 0 or not self.waiting or len(self.running) >= most:
            return False
        request = self.waiting[0]
        hits = self.pool.hits(request.tokens) if self.config["enable_prefix_caching"] else []
        num_tokens, hit_tokens = len(request.tokens), len(hits) * self.pool.block_size
        if step.held and num_tokens - hit_tokens > 1:
            return False
        want = num_tokens - hit_tokens
        if 0 < step.cap < want:
            want = step.cap
        if want > step.budget and not self.config["enable_chunked_prefill"]:
            return False
        want = min(want, step.budget)
        if self.config["scheduler_reserve_full_isl"] and not self._fits(num_tokens, hits):
            return False
        if not self._fits(hit_tokens + want, hits):
            return False
        self._admit(request, hits, want, step)
        return True

    def _fits(self, num_tokens: int, hits: list[int]) -> bool:
        """A hit block that nobody uses leaves the free list as well."""
        kept_back = int(self.config["watermark"] * self.config["num_gpu_blocks"]) if self.running else 0
        unused_hits = sum(self.pool.users[block] == 0 for block in hits)
        missing = self._blocks_for(num_tokens) - len(hits)
        return missing + unused_hits + kept_back <= len(self.pool.free)

    def _admit(self, request: NaiveRequest, hits: list[int], want: int, step: NaiveStep) -> None:
        self.waiting.pop(0)
        self.running.append(request)
        self.pool.touch(hits)
        request.table, request.num_hashed_blocks = list(hits), len(hits)
        request.computed = len(hits) * self.pool.block_size
        step.carries_prefill |= request.computed < len(request.tokens) - 1
        self._grant(request, want, step)
        step.rows[request.id].new_blocks = list(request.table)
        (step.resumed if request.was_preempted else step.new).append(request.id)

    def _advance(self, row: Row) -> None:
        request = row.request
        request.computed += row.tokens
        request.prefilling = request.computed < len(request.tokens) + request.placeholders
        row.samples = not request.prefilling
        if row.samples and self.config["async_scheduling"]:
            request.placeholders += 1

    def deliver_oldest(self) -> list[str]:
        """Process the output of the oldest step that is outstanding; the ids that end with it."""
        step = self.outstanding.pop(0)
        return [row.request.id for row in step.rows.values() if row.samples and self._deliver(row)]

    def _deliver(self, row: Row) -> bool:
        request = row.request
        if request.ended:
            return False
        request.tokens.append((f"out:{request.id}", request.num_outputs))
        if request.placeholders:  # none where it was preempted since: the token counts, nothing else does
            request.placeholders -= 1
            self._name_blocks(request, request.computed - self._tokens_in_flight(request))
        if len(request.tokens) < self.config["max_model_len"] and request.num_outputs < request.max_tokens:
            return False
        request.ended = True
        self.pool.release(request.table)
        (self.running if request in self.running else self.waiting).remove(request)
        return True

    def _tokens_in_flight(self, request: NaiveRequest) -> int:
        rows = [step.rows[request.id] for step in self.outstanding if request.id in step.rows]
        return sum(row.tokens for row in rows)


def replay(golden: dict[str, Any], *, max_steps: int = 3_000) -> dict[str, Any]:
    """The recording of ``golden``'s config and requests in full detail: ``steps``, ``rejected``, ``stalled``."""
    return _Recorder(golden, max_steps).record()


def compact(steps: Iterable[dict[str, Any]]) -> list[list[Any]]:
    """Steps in full detail, told in the form of a recording whose detail is "compact"."""
    return [[s["t"], [row[:2] for row in s["sched"]], s["preempted"], s["finished"], s["free"]] for s in steps]


class _Recorder:
    """The loop around the scheduler: arrivals, steps, deliveries, and what is written down of them."""

    def __init__(self, golden: dict[str, Any], max_steps: int) -> None:
        self.golden = golden
        self.is_async = golden["config"]["async_scheduling"]
        self.max_steps = max_steps
        self.scheduler = NaiveScheduler(golden["config"])
        self.to_come = sorted(golden["requests"], key=lambda spec: spec["arrival_step"])
        self.num_arrived = 0
        self.rejected: list[str] = []
        self.steps: list[dict[str, Any]] = []
        self.num_quiet = 0
        """Steps in a row that gave nothing and ended nothing while nothing was to come."""

    def record(self) -> dict[str, Any]:
        t = 0
        while self.num_quiet < 3:
            self._add_arrivals(t)
            if self._is_idle():
                if not self.to_come:
                    break
                t = self.to_come[0]["arrival_step"]
                continue
            if len(self.steps) == self.max_steps:
                raise TooManySteps(f"not done after {self.max_steps} steps")
            step = {"t": t, **self._step()}
            self.steps.append(step)
            self.num_quiet = 0 if self.to_come or step["sched"] or step["finished"] else self.num_quiet + 1
            t += 1
        left = [request.id for request in (*self.scheduler.running, *self.scheduler.waiting)]
        told = {"rejected": self.rejected, "stalled": left}
        return {**self.golden, "detail": "full", "steps": self.steps} | {k: v for k, v in told.items() if v}

    def _add_arrivals(self, t: int) -> None:
        while self.to_come and self.to_come[0]["arrival_step"] <= t:
            spec = self.to_come.pop(0)
            if spec["prompt_len"] >= self.golden["config"]["max_model_len"]:
                self.rejected.append(spec["id"])
                continue
            segments = spec.get("prompt", [[f"p:{spec['id']}", 0, spec["prompt_len"]]])
            tokens = [(stream, start + i) for stream, start, length in segments for i in range(length)]
            priority = spec.get("priority", 0)
            self.scheduler.enqueue(
                NaiveRequest(spec["id"], self.num_arrived, len(tokens), spec["output_len"], priority, tokens)
            )
            self.num_arrived += 1

    def _is_idle(self) -> bool:
        scheduler = self.scheduler
        return not (scheduler.waiting or scheduler.running or scheduler.outstanding)

    def _step(self) -> dict[str, Any]:
        scheduler = self.scheduler
        if scheduler.waiting or scheduler.running:
            step = scheduler.schedule()
            entry = self._entry(step)
            is_due = not self.is_async or len(scheduler.outstanding) == 2 or not step.rows
        else:
            entry, is_due = {"sched": [], "preempted": []}, True
        finished = scheduler.deliver_oldest() if is_due else []
        free = len(scheduler.pool.free)
        return {"free": free, **entry, "finished": finished, "free_end": free}

    def _entry(self, step: NaiveStep) -> dict[str, Any]:
        rows = step.rows
        return {
            "sched": [[name, row.tokens, row.start] for name, row in rows.items()],
            "preempted": step.preempted,
            "new": step.new,
            "resumed": step.resumed,
            "samples": [name for name, row in rows.items() if row.samples],
            "blocks": {name: row.new_blocks for name, row in rows.items() if row.new_blocks},
            "waiting": [request.id for request in self.scheduler.waiting],
            "running": [request.id for request in self.scheduler.running],
            "free": len(self.scheduler.pool.free),
        }

"""Holding our scheduler against schedules recorded from the real vLLM."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..scheduler.batch import Batch
from ..scheduler.config import SchedulerConfig
from ..scheduler.request import Request
from ..scheduler.scheduler import Scheduler
from .errors import ExperimentError

POLICY_OF = {"fcfs": "vllm_v1", "priority": "priority"}
QUIET_STEPS = 3
"""A recording ends when so many steps in a row do nothing."""
WORDS = {
    "t": "step number",
    "sched": "scheduled [request, tokens, computed before]",
    "preempted": "preempted",
    "new": "admitted",
    "resumed": "resumed",
    "samples": "sampled",
    "blocks": "new blocks",
    "waiting": "waiting",
    "running": "running",
    "free": "free blocks after schedule()",
    "finished": "finished",
    "free_end": "free blocks after the output",
}
COMPACT = ("t", "sched", "preempted", "finished", "free")


def load_golden(path: Path) -> dict[str, Any]:
    """Read a recording. Raises ``ExperimentError`` if it is none."""
    try:
        golden = json.loads(path.read_bytes())
        missing = [key for key in ("config", "requests", "detail", "steps") if key not in golden]
    except (OSError, ValueError, TypeError) as error:
        raise ExperimentError(f"{path} cannot be read as a recorded schedule ({error}).") from error
    if missing:
        raise ExperimentError(f"{path} is not a recorded schedule: it has no {missing[0]!r}.")
    return dict(golden)


def first_difference(golden: dict[str, Any]) -> str | None:
    """In words, the first step in which our scheduler decides otherwise; None if it never does."""
    player = _Player(golden)
    for expected, got in zip_longest(golden["steps"], player.steps()):
        if expected is None:
            return f"step {_step_number(got)}: the recording has ended, but our scheduler goes on with {got}"
        if got is None:
            return f"step {_step_number(expected)}: our scheduler has ended, the recording goes on with {expected}"
        if expected != got:
            return _in_words(_named(expected), _named(got))
    for what, ours in (("rejected", player.rejected), ("stalled", player.stalled)):
        if sorted(golden.get(what, [])) != sorted(ours):  # their order means nothing
            return f"at the end: {what}: expected {golden.get(what, [])}, got {ours}"
    return None


class _Player:
    """Plays a recording's requests through our scheduler, in the order of events its README defines."""

    def __init__(self, golden: dict[str, Any]) -> None:
        raw = dict(golden["config"])
        policy = POLICY_OF[raw.pop("policy")]
        self._scheduler = Scheduler(SchedulerConfig(**raw), policy, refuse_unservable=False)
        self._compact = golden["detail"] == "compact"
        self._pending = deque(sorted(golden["requests"], key=lambda request: request["arrival_step"]))
        self._outstanding: deque[Batch] = deque()
        self._num_arrived = 0
        self.rejected: list[str] = []
        self.stalled: list[str] = []

    def steps(self) -> Iterator[Any]:
        """Each step in the recording's own form."""
        t, quiet = 0, 0
        scheduler = self._scheduler
        while True:
            self._arrive(t)
            if not scheduler.has_work and not self._outstanding:
                if not self._pending:
                    return
                t = self._pending[0]["arrival_step"]
                continue
            step = self._step(t)
            yield step
            quiet = 0 if self._pending or step[1 if self._compact else "sched"] or self._ended else quiet + 1
            if quiet == QUIET_STEPS:
                self.stalled = _ids([*scheduler.running(), *scheduler.waiting])
                return
            t += 1

    def _arrive(self, t: int) -> None:
        while self._pending and self._pending[0]["arrival_step"] <= t:
            raw = self._pending.popleft()
            if raw["prompt_len"] >= self._scheduler.config.max_model_len:
                self.rejected.append(raw["id"])
                continue
            prompt = [(stream, start, length) for stream, start, length in raw["prompt"]] if "prompt" in raw else None
            self._num_arrived += 1
            self._scheduler.add(
                Request(
                    raw["id"],
                    raw["prompt_len"],
                    raw["output_len"],
                    arrival_s=float(self._num_arrived),
                    prompt=prompt,
                    priority=raw.get("priority", 0),
                )
            )

    def _step(self, t: int) -> Any:
        scheduler = self._scheduler
        if not scheduler.has_work:
            return self._skipped(t)
        before = {request.request_id: len(request.block_table) for request in scheduler.running()}
        batch = scheduler.schedule()
        scheduler.check_integrity()
        row = _full(scheduler, batch, t, before)
        self._outstanding.append(batch)
        depth = 2 if scheduler.config.async_scheduling else 1
        due = len(self._outstanding) == depth or not batch.num_tokens
        row["finished"] = self._ended = _ids(scheduler.complete(self._outstanding.popleft())) if due else []
        row["free_end"] = scheduler.pool.num_free
        scheduler.check_integrity()
        return _compact(row) if self._compact else row

    def _skipped(self, t: int) -> Any:
        """Nobody waits or runs, but an output is outstanding."""
        self._ended = _ids(self._scheduler.complete(self._outstanding.popleft()))
        free = self._scheduler.pool.num_free
        row = {"t": t, "sched": [], "preempted": [], "finished": self._ended, "free_end": free, "free": free}
        return _compact(row) if self._compact else row


def _full(scheduler: Scheduler, batch: Batch, t: int, before: dict[str, int]) -> dict[str, Any]:
    fresh = {*_ids(batch.admitted), *_ids(batch.resumed)}
    rows = list(batch.order())
    gained = {
        r.request.request_id: r.block_table[0 if (i := r.request.request_id) in fresh else before[i] :] for r in rows
    }
    return {
        "t": t,
        "sched": [[row.request.request_id, row.num_tokens, row.start] for row in rows],
        "preempted": _ids(batch.preempted),
        "new": _ids(batch.admitted),
        "resumed": _ids(batch.resumed),
        "samples": _ids(row.request for row in rows if row.samples),
        "blocks": {name: blocks for name, blocks in gained.items() if blocks},
        "waiting": _ids(scheduler.waiting),
        "running": _ids(scheduler.running()),
        "free": scheduler.pool.num_free,
    }


def _compact(row: dict[str, Any]) -> list[Any]:
    served = [[name, tokens] for name, tokens, *_ in row["sched"]]
    return [row["t"], served, row["preempted"], row["finished"], row["free"]]


def _ids(requests: Iterable[Request]) -> list[str]:
    return [request.request_id for request in requests]


def _named(step: Any) -> dict[str, Any]:
    return dict(zip(COMPACT, step, strict=True)) if isinstance(step, list) else step


def _step_number(step: Any) -> int:
    return int(_named(step)["t"])


def _in_words(expected: dict[str, Any], got: dict[str, Any]) -> str:
    for key, words in WORDS.items():
        if expected.get(key) != got.get(key):
            who = _whom(expected.get(key), got.get(key))
            return f"step {expected['t']}: {words}{who}: expected {expected.get(key)}, got {got.get(key)}"
    return f"step {expected['t']}: expected {expected}, got {got}"


def _whom(expected: Any, got: Any) -> str:
    """The first request about which two lists or mappings differ."""
    if isinstance(expected, dict) and isinstance(got, dict):
        names = [name for name in {**expected, **got} if expected.get(name) != got.get(name)]
        return f" of request {names[0]}" if names else ""
    if isinstance(expected, list) and isinstance(got, list):
        for one, other in zip_longest(expected, got):
            if one != other:
                first = one if one is not None else other
                return f" (first at request {first[0] if isinstance(first, list) else first})"
    return ""

"""Replaying a recorded schedule of vLLM (tests/data/vllm-0.33.0) through our scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from batchtwin.scheduler import Batch, Request, Scheduler, SchedulerConfig

DATA = Path(__file__).resolve().parent.parent / "data" / "vllm-0.33.0"
NAMES = [
    "max_num_seqs",
    "max_num_active_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_size",
    "num_gpu_blocks",
    "enable_chunked_prefill",
    "scheduler_reserve_full_isl",
]


def load(name: str) -> dict[str, Any]:
    return json.loads((DATA / f"{name}.json").read_text())


def replay(golden: dict[str, Any]) -> list[Any]:
    """The steps our scheduler takes on the recorded requests, in the recording's own form."""
    config = SchedulerConfig(**{name: golden["config"][name] for name in NAMES})
    scheduler = Scheduler(config, "vllm_v1")
    pending = sorted(golden["requests"], key=lambda r: r["arrival_step"])
    steps: list[Any] = []
    t = 0
    while pending or scheduler.has_work:
        if not scheduler.has_work:
            t = max(t, pending[0]["arrival_step"])
        while pending and pending[0]["arrival_step"] <= t:
            raw = pending.pop(0)
            if raw["prompt_len"] < config.max_model_len:
                scheduler.add(Request(raw["id"], raw["prompt_len"], raw["output_len"], arrival_s=raw["arrival_step"]))
        if scheduler.has_work:
            steps.append(_step(scheduler, t, golden["detail"]))
            t += 1
    return steps


def _step(scheduler: Scheduler, t: int, detail: str) -> Any:
    before = {r.request_id: len(r.block_table) for r in scheduler.running()}
    batch = scheduler.schedule()
    scheduler.check_integrity()
    if detail == "compact":
        sched = [[row.request.request_id, row.num_tokens] for row in batch.order()]
        preempted = _ids(batch.preempted)
        free = scheduler.pool.num_free
        return [t, sched, preempted, _ids(scheduler.complete(batch)), free]
    step = _full(scheduler, batch, t, before)
    step["finished"] = _ids(scheduler.complete(batch))
    step["free_end"] = scheduler.pool.num_free
    scheduler.check_integrity()
    return step


def _full(scheduler: Scheduler, batch: Batch, t: int, before: dict[str, int]) -> dict[str, Any]:
    fresh = set(_ids(batch.admitted)) | set(_ids(batch.resumed))
    blocks = {}
    for row in batch.order():
        name = row.request.request_id
        gained = row.block_table[0 if name in fresh else before[name] :]
        if gained:
            blocks[name] = gained
    return {
        "t": t,
        "sched": [[row.request.request_id, row.num_tokens, row.start] for row in batch.order()],
        "preempted": _ids(batch.preempted),
        "new": _ids(batch.admitted),
        "resumed": _ids(batch.resumed),
        "samples": _ids(batch.samples()),
        "blocks": blocks,
        "waiting": _ids(scheduler.waiting),
        "running": _ids(scheduler.running()),
        "free": scheduler.pool.num_free,
    }


def _ids(requests: Any) -> list[str]:
    return [request.request_id for request in requests]

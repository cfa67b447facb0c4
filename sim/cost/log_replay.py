"""What an iteration line does not say: whose context how long was. The schedule is replayed with our own scheduler.

A line tells how many requests and tokens an iteration had. Requests are admitted first come, first served, so who they
were follows from the trace and from how many each line admits: just so many are handed to the scheduler before each
step. Where it then decides what the line says, the batch is known with every length; where not, the line is not used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from ...scheduler.batch import Batch, Chunk
from ...scheduler.config import SchedulerConfig
from ...scheduler.errors import BatchTwinError
from ...scheduler.request import Request
from ...scheduler.scheduler import Scheduler
from ...traces.trace import Trace
from .features import Features, features_of
from .iteration_log import IterationLog, LoggedIteration, stretch_noise_percent
from .timings import FEWEST, Timings, TimingsBuilder, TimingsError, told

LOOK_AHEAD = 200
"""Lines by which it is judged where in the log the trace begins."""
MOST_BEGINNINGS = 30
DIFFERS = "our schedule differs"
LOST = "after the schedules parted for good"
PARTED = 200
"""So many lines in a row that differ, and the rest is not tried."""


@dataclass(slots=True)
class _Driven:
    """A scheduler whose arrivals follow the log."""

    scheduler: Scheduler
    requests: Iterator[Request]
    depth: int
    in_flight: deque[Batch] = field(default_factory=deque)
    longest: int = 0

    def step(self, line: LoggedIteration) -> Batch | None:
        """The batch that our scheduler forms at ``line``; None if it has nothing to do."""
        scheduler = self.scheduler
        going_on = sum(_is_context(r) for r in scheduler.prefilling.values())
        fresh = sum(not request.num_preemptions for request in scheduler.waiting)
        for request in islice(self.requests, max(0, line.num_context_requests - going_on - fresh)):
            scheduler.add(request)
            self.longest = max(self.longest, request.num_prompt_tokens + request.output_len)
        if not scheduler.has_work:
            return None
        batch = scheduler.schedule()
        self.in_flight.append(batch)
        while len(self.in_flight) >= self.depth:
            scheduler.complete(self.in_flight.popleft())
        return batch


def replay_log(log: IterationLog, trace: Trace, config: SchedulerConfig) -> Timings:
    """The iterations of ``log`` with the features that ``trace`` under ``config`` gives them (policy ``vllm_v1``).

    What the server did before the trace began (a test prompt, a warm-up) is skipped: the trace is taken to begin at
    the line, among those with nobody decoding, from which most lines agree. Raises ``TimingsError`` if too few do.
    """
    start = _beginning(log.iterations, trace, config)
    builder = TimingsBuilder(left_out=log.left_out.copy())
    if start:
        builder.left_out["before the trace begins"] = start
    driven = _drive(trace, config)
    usage: list[float] = []
    differing = 0
    lines = log.iterations[start:]
    for at, line in enumerate(lines):
        batch = _step(driven, line)
        if batch is None or not agrees(batch, line):
            builder.left_out[DIFFERS] += 1
            differing += 1
            if differing >= PARTED:
                builder.left_out[LOST] = len(lines) - at - 1
                break
            continue
        differing = 0
        builder.add(features_of(batch), line.elapsed_s)
        if line.kv_usage is not None:
            used = 1 - driven.scheduler.pool.num_free / config.num_usable_blocks
            usage.append(100 * abs(used - line.kv_usage))
    if len(lines) < FEWEST:
        raise TimingsError(
            f"{log.name} has {len(lines):,} iteration{'s' if len(lines) > 1 else ''} from where the trace begins on, "
            f"but a fit needs at least {FEWEST}: log for longer, or give the whole log."
        )
    if len(builder.rows) < FEWEST:
        raise TimingsError(
            f"Only {len(builder.rows):,} of {len(lines):,} iterations of {log.name} are what our scheduler makes of "
            f"the trace{told(builder.left_out)}: are trace, max_num_seqs ({config.max_num_seqs}), "
            f"max_num_batched_tokens ({config.max_num_batched_tokens}) and the other knobs those of the server?"
        )
    notes = [f"{len(builder.rows):,} of {len(lines):,} iterations replayed alike with {len(trace):,} requests"]
    if usage:
        notes.append(f"KV usage replayed within {np.median(usage):.1f} points of the log's (median)")
    built = builder.build(log.name, notes, stretch_noise_percent(log.iterations))
    return Timings(
        built.features, built.seconds, built.left_out, built.notes, built.repeat_noise_percent, driven.longest
    )


def agrees(batch: Batch, line: LoggedIteration) -> bool:
    """Whether ``batch`` has the line's counts. A request that resumes after a preemption is context for one of vLLM's
    two model runners and generation for the other.
    """
    if (batch.num_seqs, batch.num_tokens) != (line.num_requests, line.num_tokens):
        return False
    resumed = {request.request_id for request in batch.resumed}
    sure = [chunk for chunk in batch.chunks if _is_prompt(chunk) and not chunk.request.num_preemptions]
    again = [chunk for chunk in batch.chunks if chunk.request.request_id in resumed]
    logged = (line.num_context_requests, line.num_context_tokens)
    return logged in (_count(sure), _count([*sure, *again]))


def _count(chunks: Sequence[Chunk]) -> tuple[int, int]:
    return len(chunks), sum(chunk.num_tokens for chunk in chunks)


def _is_prompt(chunk: Chunk) -> bool:
    return chunk.start < chunk.request.num_prompt_tokens


def _is_context(request: Request) -> bool:
    return request.num_output_tokens == 0 and not request.num_preemptions


def _drive(trace: Trace, config: SchedulerConfig) -> _Driven:
    return _Driven(Scheduler(config), trace.iter_requests(), depth=2 if config.async_scheduling else 1)


def _step(driven: _Driven, line: LoggedIteration) -> Batch | None:
    """A step; a request that these knobs could never serve ends the replay, not the program."""
    try:
        return driven.step(line)
    except BatchTwinError as error:
        raise type(error)(f"The trace cannot be replayed: {error}") from error


def _beginning(lines: Sequence[LoggedIteration], trace: Trace, config: SchedulerConfig) -> int:
    idle = [i for i, line in enumerate(lines) if not line.num_generation_requests and line.num_context_requests]
    best, most = 0, -1.0
    for start in idle[:MOST_BEGINNINGS] or [0]:
        driven = _drive(trace, config)
        window = lines[start : start + LOOK_AHEAD]
        batches = ((_step(driven, line), line) for line in window)
        agreeing = sum(batch is not None and agrees(batch, line) for batch, line in batches)
        share = agreeing / max(len(window), 1)
        if share > most and (most < 0 or agreeing):
            best, most = start, share
        if share == 1:
            break
    return best


def from_usage(log: IterationLog, num_gpu_blocks: int, block_size: int) -> Timings:
    """The iterations of ``log`` without a trace: the context that decodes read is what was held after the iteration
    before, which its KV usage tells, less half a block a sequence; chunks are taken for whole prompts of equal length.
    Rougher than ``replay_log``, and noted.
    """
    builder = TimingsBuilder(left_out=log.left_out.copy())
    usable_tokens = (num_gpu_blocks - 1) * block_size
    for before, line in zip((None, *log.iterations), log.iterations, strict=False):
        if line.num_generation_tokens != line.num_generation_requests:
            builder.left_out["recomputes after a preemption"] += 1
        elif not line.num_generation_requests:
            builder.add(_rough_features(line, 0.0), line.elapsed_s)
        elif before is None or before.kv_usage is None:
            builder.left_out["no KV usage in the line before"] += 1
        else:
            held_tokens = before.kv_usage * usable_tokens - line.num_generation_requests * block_size / 2
            builder.add(_rough_features(line, held_tokens), line.elapsed_s)
    notes = (
        "context lengths from the KV usage that the log prints, not replayed: give the trace to know them exactly",
    )
    return builder.build(log.name, notes, stretch_noise_percent(log.iterations))


def _rough_features(line: LoggedIteration, held_tokens: float) -> Features:
    chunks, tokens, decodes = line.num_context_requests, line.num_context_tokens, line.num_generation_requests
    return Features(
        num_tokens=line.num_tokens,
        num_decodes=decodes,
        num_decode_kv_tokens=max(held_tokens, float(decodes)),
        num_prefills=chunks,
        num_prefill_tokens=tokens,
        prefill_attention_work=tokens * tokens / (2 * chunks) if chunks else 0.0,
        num_samples=line.num_requests,
        num_blocks_swapped=0,
        num_seqs=line.num_requests,
    )

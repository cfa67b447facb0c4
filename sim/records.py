"""What a replay leaves behind: one row a request, one row an iteration, and the gaps between tokens.

Requests point to iterations (first scheduled, first token, last token), and times are looked up there; so the same
record can be laid under another clock (``retimed``), which is how an error is split into its parts.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..scheduler.batch import Batch, Bound
from ..scheduler.request import Request
from .backend import Execution
from .cost.features import Features
from .cost_backend import Steady
from .iteration_rows import CHUNK_ROWS, FLOATS, RECORDED, IterationRows, pack

FloatArray = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]

ITERATION_COLUMNS = (*RECORDED, "replica")
REQUEST_COLUMNS = (
    "due_s",
    "arrival_s",
    "num_prompt_tokens",
    "num_output_tokens",
    "scheduled_at",
    "first_token_at",
    "last_token_at",
    "num_preemptions",
    "replica",
)
"""``…_at`` are iterations, −1 if it never happened; ``due_s`` is when the client meant to send the request, ``replica``
who got it (−1 if nobody).
"""
FLOAT_COLUMNS = frozenset((*FLOATS, "due_s", "arrival_s"))


@dataclass(frozen=True, slots=True)
class Records:
    """Columns of one replay, as written to disk."""

    requests: Columns
    iterations: Columns
    gaps: NDArray[np.int64]
    """[G, 2] iterations (from, to) of successive tokens of one request that ``previous_tick`` does not tell."""
    num_replicas: int = 1
    """Iterations of several replicas stand one replica after the other (``sim.merge``)."""

    def retimed(self, start_s: FloatArray, end_s: FloatArray) -> Records:
        """The same decisions under another clock."""
        return replace(self, iterations={**self.iterations, "start_s": start_s, "end_s": end_s})


class SteadyState(NamedTuple):
    """What stays the same over a stretch of steady iterations."""

    num_running: int
    num_waiting: int
    bound: Bound


class Recorder:
    """Collects the records of one replica. It touches a request only when something happens to it."""

    def __init__(self, num_requests: int, replica: int = 0) -> None:
        self.replica = replica
        self._base = 0  # the first request whose row is here
        self._requests: dict[str, array[Any]] = {
            name: array("d" if name in FLOAT_COLUMNS else "q", (-1,)) * num_requests for name in REQUEST_COLUMNS
        }
        self._bind()
        # Iteration of the last token so far, of those that left the cohort.
        self._last = array("q", (-1,)) * num_requests
        self._seated = array("b", (0,)) * num_requests
        self._rows = IterationRows()
        self._blocks: list[Columns] = []
        self._gaps: list[tuple[int, int]] = []
        self._last_tick = -1
        self._fresh: dict[int, Request] = {}  # who joined the cohort in an iteration without a tick
        self.num_iterations = 0
        self._next_flush = CHUNK_ROWS

    def _bind(self) -> None:
        self._due, self._arrival, self._prompts, self._outputs, *columns = (
            self._requests[name] for name in REQUEST_COLUMNS
        )
        self._scheduled, self._first, self._last_at, self._preemptions, self._replicas = columns

    def arrived(self, request: Request, due_s: float) -> None:
        """A request reached the server at ``request.arrival_s``."""
        row = request.index - self._base
        self._due[row] = due_s
        self._arrival[row] = request.arrival_s
        self._prompts[row] = request.num_prompt_tokens
        self._replicas[row] = self.replica

    def completed(self, batch: Batch, launched_s: float, execution: Execution, finished: list[Request]) -> None:
        """A batch ended."""
        i = self.num_iterations
        for request in batch.admitted:
            self._scheduled[request.index - self._base] = i
        if batch.preempted or batch.stalled:
            self._unseat(batch)
        previous_tick, num_itl = -1, batch.num_members
        if num_itl:
            previous_tick, self._last_tick = self._last_tick, i
            if self._fresh:
                num_itl -= self._tick_fresh(batch, i)
        if batch.chunks:
            self._first_tokens(batch, i)
        if (
            batch.preempted
            or batch.copies_in
            or batch.padding
            or batch.num_cached_tokens
            or batch.num_recomputed_tokens
        ):
            self._rows.few(_few(batch))
        num_ticked, num_singles = batch.num_members, batch.num_single_chunks
        self._rows.steps += pack(
            launched_s,
            execution[1],
            execution[2],
            execution[3],
            batch.num_running,
            batch.num_waiting,
            num_ticked + num_singles,
            batch.num_decode_kv_tokens,
            len(batch.chunks) - num_singles,
            batch.num_prefill_tokens,
            batch.prefill_attention_work,
            num_ticked + batch.num_sampled_chunks,
            batch.num_free_blocks,
            batch.bound,
            previous_tick,
            num_itl,
        )
        self.num_iterations = i + 1
        if finished:
            self.finished(finished)
        if self.num_iterations >= self._next_flush:
            self._flush()

    @property
    def is_settled(self) -> bool:
        """Whether everybody in the cohort got a token in the iteration recorded last."""
        return not self._fresh and self._last_tick == self.num_iterations - 1

    def leapt(
        self,
        features: Features,
        state: SteadyState,
        began_s: float,
        steady: Steady,
        free: list[int],
        joined: Sequence[int] = (),
    ) -> None:
        """A stretch of steady iterations ended (only if ``is_settled``). ``joined`` are those of them, from 0, that
        were the first to see one more waiting.
        """
        at, num_steps = self.num_iterations, len(free)
        num_running, num_waiting, bound = state
        host_s, devices_s, ends_s = steady
        _, decodes, kv_tokens, *_ = features
        if len(ends_s) > num_steps:
            devices_s, ends_s = devices_s[:num_steps], ends_s[:num_steps]
        first = pack(
            began_s,
            ends_s[0],
            host_s,
            devices_s[0],
            num_running,
            num_waiting,
            decodes,
            kv_tokens,
            0,
            0,
            0.0,
            decodes,
            free[0],
            bound,
            at - 1,
            decodes,
        )
        self._rows.stretch(first, ends_s, devices_s, free, joined)
        self.num_iterations = at + num_steps
        self._last_tick = self.num_iterations - 1
        if self.num_iterations >= self._next_flush:
            self._flush()

    def finished(self, requests: list[Request]) -> None:
        """These got their last token in the iteration recorded last."""
        for request in requests:
            row = request.index - self._base
            self._last_at[row] = self.num_iterations - 1
            self._outputs[row] = request._output_tokens
            self._preemptions[row] = request.num_preemptions

    def records(self) -> Records:
        """Everything so far, as columns."""
        self._flush()
        iterations = {name: np.concatenate([block[name] for block in self._blocks]) for name in RECORDED}
        return Records(
            requests={name: column(name, np.array(values)) for name, values in self._requests.items()},
            iterations=self._with_replica(iterations),
            gaps=np.array(self._gaps, dtype=np.int64).reshape(-1, 2),
        )

    def _with_replica(self, iterations: Columns) -> Columns:
        return {**iterations, "replica": np.full(len(iterations["end_s"]), self.replica, dtype=np.int64)}

    def _unseat(self, batch: Batch) -> None:
        for request in (*batch.preempted, *batch.stalled):
            row = request.index - self._base
            if row >= 0 and self._seated[row]:
                self._last[row] = max(self._last[row], self._last_tick)
                self._seated[row] = 0

    def _tick_fresh(self, batch: Batch, i: int) -> int:
        """Gaps of those who joined the cohort without a tick in the same iteration, and so are not like the others;
        how many they are.
        """
        seats, count = batch.members.seats, 0
        for request in self._fresh.values():
            seat = seats.get(request.rank)
            if seat is not None and seat.request is request:
                self._gaps.append((self._last[request.index - self._base], i))
                count += 1
        self._fresh = {}
        return count

    def _first_tokens(self, batch: Batch, i: int) -> None:
        for chunk in batch.chunks:
            if not chunk.samples:
                continue
            request = chunk.request
            row = request.index - self._base
            if self._first[row] < 0:
                self._first[row] = i
            else:
                self._gaps.append((self._last[row], i))
            self._last[row] = i
            self._seated[row] = 1
            if not batch.num_members:
                self._fresh[row] = request

    def _flush(self) -> None:
        self._next_flush = self.num_iterations + CHUNK_ROWS
        self._blocks.append(self._rows.take())


def _few(batch: Batch) -> tuple[float, ...]:
    return (
        batch.num_padded_tokens,
        len(batch.padding),
        batch.num_padded_decodes,
        batch.num_padded_kv_tokens,
        batch.padded_attention_work,
        len(batch.copies_out) + len(batch.copies_in),
        len(batch.preempted),
        batch.num_recomputed_tokens,
        batch.num_cached_tokens,
    )


def column(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """``values`` contiguous and of the type that this column has."""
    return np.ascontiguousarray(values, dtype=np.float64 if name in FLOAT_COLUMNS else np.int64)

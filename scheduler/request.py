"""A request: what was asked for, and how far it is."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cohort import Cohort, Seat
    from .hashing import Run

Segment = tuple[str, int, int]
"""Tokens ``(stream, start) … (stream, start + length − 1)``: two tokens are the same iff stream and offset are."""


class RequestStatus(IntEnum):
    """Where a request stands, in vLLM's words."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED = 3
    ABORTED = 4


WAITING, RUNNING, PREEMPTED, FINISHED, ABORTED = RequestStatus
"""The same by name: a member looked up in its class costs 70 ns (Python 3.11)."""


class Request:
    """One request of a trace. The scheduler owns its progress; everybody else only reads it.

    ``output_len`` is the truth that the trace knows (the tokens to be produced); ``max_tokens`` is the limit a
    server would be told, if any, and ``predicted_output_len`` somebody's guess. A policy may look at these two, never
    at the first.
    """

    __slots__ = (
        "_computed_tokens",
        "_num_blocks",
        "_output_tokens",
        "_prompt",
        "_tokens_to_recompute",
        "arrival_s",
        "block_table",
        "client_id",
        "cohort",
        "host_table",
        "index",
        "max_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_registered_blocks",
        "output_len",
        "predicted_output_len",
        "priority",
        "rank",
        "request_id",
        "runs",
        "seat",
        "status",
    )

    def __init__(
        self,
        request_id: str,
        num_prompt_tokens: int,
        output_len: int,
        *,
        arrival_s: float = 0.0,
        prompt: Sequence[Segment] | None = None,
        max_tokens: int | None = None,
        predicted_output_len: int | None = None,
        priority: int = 0,
        client_id: str = "",
        index: int = 0,
    ) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.output_len = output_len
        self.arrival_s = arrival_s
        self._prompt = prompt
        self.max_tokens = max_tokens
        self.predicted_output_len = predicted_output_len
        self.priority = priority
        self.client_id = client_id
        self.index = index

        self.status = WAITING
        self.block_table: list[int] = []
        self.runs: tuple[Run, ...] = ()  # its tokens as runs of one stream, if they were needed
        self.num_registered_blocks = 0  # leading blocks of its table that the prefix cache knows
        self.num_preemptions = 0
        self.host_table: list[int] = []  # host blocks with what was swapped out
        self.rank = -1  # place in the running list: the admission number
        self.seat: Seat | None = None  # set while it decodes in the cohort
        self.cohort: Cohort | None = None
        self._computed_tokens = 0
        self._output_tokens = 0
        self._num_blocks = 0  # where they are only counted
        self._tokens_to_recompute = 0  # how many had been computed when it was preempted

    @property
    def prompt(self) -> tuple[Segment, ...]:
        """The prompt's tokens; a stream of its own unless they were given."""
        if self._prompt is None:
            return ((f"p:{self.request_id}", 0, self.num_prompt_tokens),)
        return tuple(self._prompt)

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV has been computed (or is being computed by the batch scheduled last)."""
        if self.seat is not None and self.cohort is not None:
            return self.seat.offset + self.cohort.clock
        return self._computed_tokens

    @property
    def num_output_tokens(self) -> int:
        """Output tokens delivered so far."""
        if self.seat is not None and self.cohort is not None:
            return self.seat.offset + self.cohort.clock + 1 - self.num_prompt_tokens
        return self._output_tokens

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and the outputs delivered so far."""
        return self.num_prompt_tokens + self.num_output_tokens

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, prompt={self.num_prompt_tokens}, output={self.num_output_tokens}"
            f"/{self.output_len}, computed={self.num_computed_tokens}, {self.status.name.lower()})"
        )

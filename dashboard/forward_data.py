"""What one iteration gives the model, arranged for drawing: the flat batch, the KV pool, and the padded rectangle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..scheduler.batch import Batch, Bound
from ..scheduler.config import SchedulerConfig
from ..scheduler.request import Request
from ..scheduler.shapes import ForwardShapes, PaddedRectangle, forward_shapes, padded_rectangle

IntArray = NDArray[np.int64]
NULL, FREE, SHARED = -1, -2, -3
"""Blocks of the pool that belong to nobody in the batch: block 0, those that no sequence of the batch reads (free, or
held by somebody not served), and those that several read (a cached prefix)."""


@dataclass(frozen=True, slots=True)
class Forward:
    """One iteration as its forward sees it. S sequences are served, decodes first; T new tokens in all."""

    shapes: ForwardShapes
    config: SchedulerConfig
    names: tuple[str, ...]
    """[S] What the requests are called."""
    request: IntArray
    """[S] Their rows in the trace: what gives each its colour."""
    starts: IntArray
    """[S] Tokens of each that were computed before."""
    owner: IntArray
    """[num_gpu_blocks] Whose each physical block is: a sequence, or ``NULL``, ``FREE``, ``SHARED``."""
    written: IntArray
    """Physical blocks that this forward writes to."""
    rectangle: PaddedRectangle
    """The same tokens padded to the longest, as static batching would compute them."""
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_padded_tokens: int
    """Slots that the policy itself pads (``static_batch``); not in T."""
    bound: Bound
    events: tuple[str, ...]
    """Who came, went, or was preempted, in words."""

    @property
    def num_tokens(self) -> int:
        """T"""
        return len(self.shapes.input_tokens)

    @property
    def num_seqs(self) -> int:
        """S"""
        return len(self.names)

    @property
    def seq_of_token(self) -> IntArray:
        """[T]"""
        return np.repeat(np.arange(self.num_seqs), self.shapes.query_lens)

    def tokens(self) -> pd.DataFrame:
        """One row a token of the flat batch."""
        seq = self.seq_of_token
        return pd.DataFrame(
            {
                "row": np.arange(self.num_tokens),
                "request": np.array(self.names, dtype=object)[seq],
                "input_token_identity": self.shapes.input_tokens,
                "position": self.shapes.positions,
                "slot_mapping": self.shapes.slot_mapping,
                "sampled": np.isin(np.arange(self.num_tokens), self.shapes.sample_rows),
            }
        )

    def sequences(self) -> pd.DataFrame:
        """One row a sequence, with its block table."""
        shapes, size = self.shapes, self.config.block_size
        tables = (" ".join(map(str, shapes.readable_blocks(i, size))) for i in range(self.num_seqs))
        return pd.DataFrame(
            {
                "request": self.names,
                "query_start_loc": shapes.query_start_loc[:-1],
                "query_len": shapes.query_lens,
                "seq_len": shapes.seq_lens,
                "padded_len": np.full(self.num_seqs, self.rectangle.length_tokens),
                "block_table": list(tables),
            }
        )


def forward(batch: Batch, config: SchedulerConfig) -> Forward:
    """Arrange one batch."""
    shapes = forward_shapes(batch, config.block_size)
    return Forward(
        shapes=shapes,
        config=config,
        names=tuple(name_of(request) for request in shapes.requests),
        request=np.array([request.index for request in shapes.requests], dtype=np.int64),
        starts=shapes.seq_lens - shapes.query_lens,
        owner=_owners(shapes, config),
        written=np.unique(shapes.slot_mapping // config.block_size),
        rectangle=padded_rectangle(shapes.query_lens.tolist()),
        num_running=batch.num_running,
        num_waiting=batch.num_waiting,
        num_free_blocks=batch.num_free_blocks,
        num_padded_tokens=batch.num_padded_tokens,
        bound=batch.bound,
        events=tuple(_events(batch)),
    )


def name_of(request: Request) -> str:
    """A name that says it is one (``A``), or the row in the trace."""
    return request.request_id if request.request_id.isalpha() else f"request {request.index:,}"


def _owners(shapes: ForwardShapes, config: SchedulerConfig) -> IntArray:
    owner = np.full(config.num_gpu_blocks, FREE, dtype=np.int64)
    owner[0] = NULL
    for seq in range(len(shapes.requests)):
        table = np.array(shapes.readable_blocks(seq, config.block_size), dtype=np.int64)
        owner[table] = np.where(owner[table] == FREE, seq, SHARED)
    return owner


def _events(batch: Batch) -> list[str]:
    kinds = (
        ("admitted", batch.admitted),
        ("resumed", batch.resumed),
        ("preempted", batch.preempted),
        ("ends with this token", batch.finishing),
        ("waits for budget", batch.stalled),
    )
    return [f"{_listed([name_of(request) for request in who])} {what}" for what, who in kinds if who]


def _listed(names: list[str], most: int = 4) -> str:
    if len(names) > most:
        return f"{len(names):,} requests"
    return ", ".join(names)

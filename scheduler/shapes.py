"""What a model receives: a batch laid out as the arrays of one forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from .batch import Batch
from .request import Request

IntArray = NDArray[np.int64]
TokenIds = Callable[[Request, int, int], IntArray]
"""``(request, start, stop) -> ids`` of the tokens at those positions."""


@dataclass(frozen=True, slots=True)
class ForwardShapes:
    """One forward over a flattened batch: T new tokens of S sequences, decodes first.

    With padding (static batching, if asked for) its rows count in S and T, but not in the four ``num_*`` below.
    """

    requests: list[Request]
    """[S], in layout order."""
    input_tokens: IntArray
    """[T] token ids."""
    positions: IntArray
    """[T] position of each token in its own sequence."""
    query_start_loc: IntArray
    """[S + 1] where each sequence's new tokens start in the flat batch."""
    seq_lens: IntArray
    """[S] context length including this step's tokens."""
    block_tables: IntArray
    """[S, max_blocks] physical block of each logical block; unused entries are 0, the null block."""
    slot_mapping: IntArray
    """[T] physical KV slot (block · block_size + offset) each new token is written to."""
    sample_rows: IntArray
    """Rows of [T] whose logits are needed."""
    sample_seqs: IntArray
    """Sequence (index into [S]) of each sampled row."""
    num_decode_rows: int
    """Leading rows that are one token over existing context, padding included."""
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    num_prefill_tokens: int

    @property
    def query_lens(self) -> IntArray:
        """[S] new tokens a sequence."""
        return np.diff(self.query_start_loc)

    def readable_blocks(self, seq: int, block_size: int) -> list[int]:
        """Physical blocks that the queries of sequence ``seq`` may read: its own, up to its length."""
        table: list[int] = self.block_tables[seq, : -(-int(self.seq_lens[seq]) // block_size)].tolist()
        return table

    def visible_positions(self, token: int) -> range:
        """Positions of its own sequence that the flat token ``token`` attends to: causal, itself included."""
        return range(int(self.positions[token]) + 1)


def identity_token_ids(request: Request, start: int, stop: int) -> IntArray:
    """Symbolic ids: a token's identity is (stream, offset), here mixed into one integer. Equal iff (but for a
    collision of 32 bits) the identities are.
    """
    segments = [*request.prompt, (f"out:{request.request_id}", 0, max(stop - request.num_prompt_tokens, 0))]
    parts: list[IntArray] = []
    at = 0
    for stream, first, length in segments:
        low, high = max(start, at), min(stop, at + length)
        if low < high:
            offsets = np.arange(first + low - at, first + high - at, dtype=np.int64)
            parts.append((crc32(stream.encode()) + offsets * 2654435761) & 0xFFFFFFFF)
        at += length
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def forward_shapes(
    batch: Batch, block_size: int, token_ids: TokenIds = identity_token_ids, *, padding: bool = False
) -> ForwardShapes:
    """Lay ``batch`` out for a forward. Called after later ``schedule()`` calls it gives the same arrays.

    ``token_ids`` is asked for the ids of each row's new tokens (for padding rows too, where ids are arbitrary).
    """
    rows = batch.rows(padding=padding)
    lens = np.array([row.num_tokens for row in rows], dtype=np.int64)
    starts = np.array([row.start for row in rows], dtype=np.int64)
    query_start_loc = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lens)))
    seq_lens = starts + lens
    block_tables = _block_tables([row.block_table for row in rows], -(-seq_lens // block_size))

    seq_of_token = np.repeat(np.arange(len(rows)), lens)
    positions = np.arange(query_start_loc[-1]) - np.repeat(query_start_loc[:-1] - starts, lens)
    slot_mapping = block_tables[seq_of_token, positions // block_size] * block_size + positions % block_size
    tokens = [token_ids(row.request, row.start, row.start + row.num_tokens) for row in rows]
    sample_seqs = np.array([i for i, row in enumerate(rows) if row.samples], dtype=np.int64)
    num_decodes, num_prefills = batch.num_decodes, batch.num_prefills
    return ForwardShapes(
        requests=[row.request for row in rows],
        input_tokens=np.concatenate(tokens) if tokens else np.zeros(0, dtype=np.int64),
        positions=positions,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        block_tables=block_tables,
        slot_mapping=slot_mapping,
        sample_rows=query_start_loc[sample_seqs + 1] - 1,
        sample_seqs=sample_seqs,
        num_decode_rows=int(np.count_nonzero((lens == 1) & (starts > 0))),
        num_decodes=num_decodes,
        num_prefills=num_prefills,
        num_decode_tokens=num_decodes,
        num_prefill_tokens=batch.num_prefill_tokens,
    )


def _block_tables(tables: list[list[int]], num_blocks: IntArray) -> IntArray:
    out = np.zeros((len(tables), int(num_blocks.max(initial=0))), dtype=np.int64)
    for row, table, n in zip(out, tables, num_blocks.tolist(), strict=True):
        row[:n] = table[:n]
    return out


@dataclass(frozen=True, slots=True)
class PaddedRectangle:
    """The static ``[B, L_max]`` layout of the same tokens, with its waste."""

    num_rows: int
    length_tokens: int
    num_real_tokens: int

    @property
    def num_slots(self) -> int:
        """Slots the rectangle computes."""
        return self.num_rows * self.length_tokens

    @property
    def num_wasted_tokens(self) -> int:
        """Slots that hold no token."""
        return self.num_slots - self.num_real_tokens

    @property
    def waste_percent(self) -> float:
        """Wasted slots in per cent of all slots."""
        return 100.0 * self.num_wasted_tokens / self.num_slots if self.num_slots else 0.0


def padded_rectangle(lengths_tokens: list[int], pad_to_tokens: int | None = None) -> PaddedRectangle:
    """Pad ``lengths_tokens`` to ``pad_to_tokens``, or to the longest of them (padding per batch)."""
    longest = max(lengths_tokens, default=0)
    length = longest if pad_to_tokens is None else pad_to_tokens
    if length < longest:
        raise ValueError(f"cannot pad to {length} tokens: the longest row has {longest}")
    return PaddedRectangle(len(lengths_tokens), length, sum(lengths_tokens))

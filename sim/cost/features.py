"""What a cost model sees of an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ...scheduler.batch import Batch
    from ..records import Columns

Number = Any
"""A plain number for one iteration, or a column [N] for many."""
FloatArray = NDArray[np.float64]


class Features(NamedTuple):
    """Sums over the sequences of one iteration, or columns of them over many. Padding counts as the work it is."""

    num_tokens: Number
    """New tokens the model computes (T), padding included."""
    num_decodes: Number
    """Sequences with one new token over existing context."""
    num_decode_kv_tokens: Number
    """Σ of their contexts: KV tokens read."""
    num_prefills: Number
    """Other sequences (chunks)."""
    num_prefill_tokens: Number
    prefill_attention_work: Number
    """Σ num_tokens · (start + num_tokens / 2) over the chunks: query-context pairs."""
    num_samples: Number
    """Rows that reach the LM head."""
    num_blocks_swapped: Number
    num_seqs: Number
    """Sequences served, padding rows left out: what the host handles."""


def features_of(batch: Batch) -> Features:
    """The features of one batch, as plain numbers."""
    num_decodes = batch.num_members + batch.num_single_chunks
    num_chunks = len(batch.chunks)
    if not batch.padding:
        sums = (
            num_decodes + batch.num_prefill_tokens,
            num_decodes,
            batch.num_decode_kv_tokens,
            num_chunks - batch.num_single_chunks,
            batch.num_prefill_tokens,
            batch.prefill_attention_work,
            batch.num_members + batch.num_sampled_chunks,
            len(batch.copies_out) + len(batch.copies_in),
            batch.num_members + num_chunks,
        )
        return tuple.__new__(Features, sums)  # half of what Features(...) takes, in every step
    padded_prefill_tokens = batch.num_padded_tokens - batch.num_padded_decodes
    return Features(
        num_decodes + batch.num_prefill_tokens + batch.num_padded_tokens,
        num_decodes + batch.num_padded_decodes,
        batch.num_decode_kv_tokens + batch.num_padded_kv_tokens,
        num_chunks - batch.num_single_chunks + len(batch.padding) - batch.num_padded_decodes,
        batch.num_prefill_tokens + padded_prefill_tokens,
        batch.prefill_attention_work + batch.padded_attention_work,
        batch.num_members + batch.num_sampled_chunks,
        len(batch.copies_out) + len(batch.copies_in),
        batch.num_members + num_chunks,
    )


def features_of_columns(iterations: Columns) -> Features:
    """The features of every recorded iteration, as columns: what ``features_of`` gave batch by batch."""
    c = {name: np.asarray(values, dtype=np.float64) for name, values in iterations.items()}
    padded_prefill_tokens = c["num_padded_tokens"] - c["num_padded_decodes"]
    return Features(
        num_tokens=c["num_tokens"] + c["num_padded_tokens"],
        num_decodes=c["num_decodes"] + c["num_padded_decodes"],
        num_decode_kv_tokens=c["num_decode_kv_tokens"] + c["num_padded_kv_tokens"],
        num_prefills=c["num_prefills"] + c["num_padded_rows"] - c["num_padded_decodes"],
        num_prefill_tokens=c["num_prefill_tokens"] + padded_prefill_tokens,
        prefill_attention_work=c["prefill_attention_work"] + c["padded_attention_work"],
        num_samples=c["num_samples"],
        num_blocks_swapped=c["num_blocks_swapped"],
        num_seqs=c["num_seqs"],
    )


def stack(rows: list[Features]) -> Features:
    """Features of single batches as columns."""
    table = np.array(rows, dtype=np.float64).reshape(-1, len(Features._fields))
    return Features(*table.T)

"""What both attention kernels and the KV write have to know of a batch: built once, read in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .errors import KernelError
from .launch import IntArray, most_splits, num_kv_splits

_ALIGNED = 4  # int32 elements: 16 bytes
NO_SLOT = -1
"""In ``slot_mapping``: a padding token, whose key and value are not stored (vLLM's PAD_SLOT_ID)."""


@dataclass(frozen=True, slots=True)
class Splits:
    """How the decodes' KV is shared out among programs, for one sliding window."""

    start_loc: Tensor
    """[num_decodes + 1] int32: sequence s owns splits ``start_loc[s] … start_loc[s + 1] − 1``."""
    grid: int
    """Programs launched a KV head; those from ``start_loc[num_decodes]`` on leave at once."""
    merged: bool
    """Whether some sequence may have more than one split."""


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """S sequences of T new tokens on a device, decodes first. Every size that shapes a grid is a host integer, so
    nothing is read back; all index arrays are views of ``packed``, which is sent in one copy.
    """

    packed: Tensor
    query_start_loc: Tensor
    """[S + 1] int32: where each sequence's new tokens start."""
    seq_lens: Tensor
    """[S] int32 context lengths, this step's tokens included; 0 for padding."""
    block_tables: Tensor
    """[S, max_blocks] int32."""
    slot_mapping: Tensor
    """[T] int32 slot of each new token, or ``NO_SLOT``."""
    splits: dict[int, Splits]
    """By sliding window (0: none)."""
    num_seqs: int
    num_decodes: int
    """Leading sequences of one new token each."""
    num_tokens: int

    def replace(self, host: Tensor) -> None:
        """Send another batch of the same sizes, packed by ``pack`` with ``static``: what a captured graph replays."""
        if host.shape != self.packed.shape:
            raise KernelError(
                f"A batch of {host.numel()} packed indices cannot be replayed in metadata of {self.packed.numel()}: "
                f"pad it to the same sequences, tokens and blocks."
            )
        self.packed.copy_(host, non_blocking=True)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch's index arrays one after the other in one int32 host tensor, each at a multiple of 16 bytes."""

    host: Tensor
    shapes: tuple[tuple[int, ...], ...]
    windows: tuple[int, ...]
    grids: tuple[int, ...]
    merged: tuple[bool, ...]
    num_decodes: int

    def to(self, device: torch.device | str) -> AttentionMetadata:
        """One copy; asynchronous where the host tensor is pinned."""
        packed = self.host.to(device, non_blocking=True)
        views, at = [], 0
        for shape in self.shapes:
            size = int(np.prod(shape))
            views.append(packed[at : at + size].view(shape))
            at += -(-size // _ALIGNED) * _ALIGNED
        starts, lens, tables, slots, *split_starts = views
        splits = {
            window: Splits(start_loc, grid, merged)
            for window, start_loc, grid, merged in zip(self.windows, split_starts, self.grids, self.merged, strict=True)
        }
        return AttentionMetadata(
            packed, starts, lens, tables, slots, splits, lens.shape[0], self.num_decodes, slots.shape[0]
        )


def pack(
    query_start_loc: IntArray,
    seq_lens: IntArray,
    block_tables: IntArray,
    slot_mapping: IntArray,
    *,
    num_decodes: int,
    num_kv_heads: int,
    num_processors: int,
    windows: Sequence[int] = (0,),
    static: bool = False,
    pin: bool = False,
) -> PackedBatch:
    """Lay a batch out on the host: [S + 1], [S], [S, max_blocks], [T], of which the first ``num_decodes`` sequences
    have one new token each.

    ``windows``: every sliding window of the model's layers. ``static``: grids become upper bounds that depend on
    sizes only, for a graph that is replayed with other lengths. Raises ``KernelError`` where sizes contradict.
    """
    _check(query_start_loc, seq_lens, block_tables, slot_mapping, num_decodes)
    arrays = [query_start_loc, seq_lens, block_tables, slot_mapping]
    grids, merged = [], []
    for window in windows:
        lens = seq_lens[:num_decodes]
        counts = num_kv_splits(np.minimum(lens, window) if window else lens, num_kv_heads, num_processors)
        arrays.append(np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts))))
        grids.append(most_splits(num_decodes, num_kv_heads, num_processors) if static else int(counts.sum()))
        merged.append(grids[-1] > num_decodes)
    sizes = [-(-array.size // _ALIGNED) * _ALIGNED for array in arrays]
    host = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=pin)
    flat, at = host.numpy(), 0
    for array, size in zip(arrays, sizes, strict=True):
        flat[at : at + array.size] = array.ravel()
        at += size
    shapes = tuple(array.shape for array in arrays)
    return PackedBatch(host, shapes, tuple(windows), tuple(grids), tuple(merged), num_decodes)


def _check(
    query_start_loc: IntArray, seq_lens: IntArray, block_tables: IntArray, slot_mapping: IntArray, num_decodes: int
) -> None:
    num_seqs = seq_lens.size
    if query_start_loc.size != num_seqs + 1 or block_tables.shape[0] != num_seqs or num_decodes > num_seqs:
        raise KernelError(
            f"A batch of {num_seqs} seq_lens has {query_start_loc.size} query_start_loc, {block_tables.shape[0]} block "
            f"tables and {num_decodes} decodes: give one more, as many, and at most as many."
        )
    if slot_mapping.size != query_start_loc[-1]:
        raise KernelError(
            f"A batch of {query_start_loc[-1]} new tokens has {slot_mapping.size} slots: give one a token."
        )

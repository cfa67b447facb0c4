"""A batch's index arrays in one tensor: what the kernels read is what the scheduler laid out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from batchtwin.kernels.errors import KernelError
from batchtwin.kernels.metadata import NO_SLOT, PackedBatch, pack

STARTS = np.array([0, 1, 2, 7])
LENS = np.array([900, 17, 25])
TABLES = np.arange(3 * 57).reshape(3, 57)
SLOTS = np.array([899, 16, 20, 21, 22, 23, NO_SLOT])


def _packed(lens: np.ndarray = LENS, *, static: bool = False, windows: tuple[int, ...] = (0, 300)) -> PackedBatch:
    return pack(
        STARTS, lens, TABLES, SLOTS, num_decodes=2, num_kv_heads=1, num_processors=132, windows=windows, static=static
    )


def test_every_array_arrives_as_it_was_in_one_copy_at_multiples_of_16_bytes() -> None:
    metadata = _packed().to("cpu")
    views = [metadata.query_start_loc, metadata.seq_lens, metadata.block_tables, metadata.slot_mapping]
    for view, array in zip(views, (STARTS, LENS, TABLES, SLOTS), strict=True):
        assert view.dtype == torch.int32
        assert np.array_equal(view.numpy(), array)
    for view in (*views, *(splits.start_loc for splits in metadata.splits.values())):
        assert view.untyped_storage().data_ptr() == metadata.packed.untyped_storage().data_ptr()
        assert view.storage_offset() * 4 % 16 == 0
    assert (metadata.num_seqs, metadata.num_decodes, metadata.num_tokens) == (3, 2, 7)


def test_decodes_are_cut_by_what_a_window_lets_them_see() -> None:
    """One KV head: parts of 256 tokens. 900 tokens make 4 (900/256 = 3.5), within a window of 300 one."""
    metadata = _packed().to("cpu")
    assert metadata.splits[0].start_loc.tolist() == [0, 4, 5]
    assert metadata.splits[300].start_loc.tolist() == [0, 1, 2]
    assert (metadata.splits[0].grid, metadata.splits[0].merged) == (5, True)
    assert (metadata.splits[300].grid, metadata.splits[300].merged) == (2, False)


def test_static_grids_depend_on_sizes_only() -> None:
    short, long = (_packed(lens, static=True) for lens in (np.array([1, 1, 5]), np.array([900, 900, 25])))
    assert short.grids == long.grids
    assert short.merged == long.merged
    assert short.shapes == long.shapes


def test_another_batch_of_the_same_sizes_replaces_the_numbers_in_place() -> None:
    metadata = _packed(static=True).to("cpu")
    before = metadata.seq_lens.data_ptr()
    metadata.replace(_packed(np.array([40, 41, 42]), static=True).host)
    assert metadata.seq_lens.tolist() == [40, 41, 42]
    assert metadata.seq_lens.data_ptr() == before


def test_a_batch_of_other_sizes_is_refused() -> None:
    with pytest.raises(KernelError, match="pad it to the same sequences"):
        _packed().to("cpu").replace(torch.zeros(3, dtype=torch.int32))


def test_sizes_that_contradict_are_named() -> None:
    with pytest.raises(KernelError, match="3 seq_lens has 3 query_start_loc"):
        pack(STARTS[:3], LENS, TABLES, SLOTS, num_decodes=0, num_kv_heads=1, num_processors=1)
    with pytest.raises(KernelError, match="7 new tokens has 6 slots"):
        pack(STARTS, LENS, TABLES, SLOTS[:6], num_decodes=0, num_kv_heads=1, num_processors=1)

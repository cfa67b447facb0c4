"""vLLM's capture sizes, as its logs show them, and the padding to them."""

from __future__ import annotations

import pytest

from batchtwin.scheduler.graph_sizes import capture_sizes, padded_size


@pytest.mark.parametrize(
    ("max_num_seqs", "budget", "count", "last"),
    [(1024, 8192, 51, 512), (256, 2048, 51, 512), (128, 2048, 35, 256), (100, 300, 29, 200)],
)
def test_captured_sizes_are_vllms(max_num_seqs: int, budget: int, count: int, last: int) -> None:
    """Figures seen in vLLM 0.33.0 (scheduler.md §10 of the shared notes)."""
    sizes = capture_sizes(max_num_seqs, budget)
    assert (len(sizes), sizes[-1]) == (count, last)


def test_short_lists_hold_the_knobs_themselves() -> None:
    """The lists that the shared notes give."""
    assert capture_sizes(10, 2048) == (1, 2, 4, 8, 10, 16)
    assert capture_sizes(3, 2048) == (1, 2, 3, 4)
    assert 100 in capture_sizes(100, 300)


def test_a_batch_is_padded_to_the_next_captured_size_and_not_beyond_the_last() -> None:
    sizes = (1, 2, 4, 8, 16)
    assert [padded_size(n, sizes) for n in (1, 2, 3, 5, 8, 9, 16)] == [1, 2, 4, 8, 8, 16, 16]
    assert padded_size(17, sizes) is None
    assert padded_size(0, sizes) is None
    assert padded_size(5, ()) is None

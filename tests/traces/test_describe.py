"""What ``describe`` counts, against hand calculations, and what it looks like."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from rich.console import Console

from batchtwin.traces import LengthBin, Trace, describe, render
from batchtwin.traces.describe import length_bins
from batchtwin.traces.render import bar, spark


def trace(**changes: object) -> Trace:
    columns: dict[str, object] = {
        "name": "hand [made]",
        "arrival_s": np.array([0.0, 2.0, 3.0, 59.9, 60.0, 130.0]),
        "num_prompt_tokens": np.array([1, 2, 3, 4, 7, 64]),
        "output_len": np.array([10, 20, 30, 40, 50, 60]),
        "source": "by hand",
    }
    return Trace(**(columns | changes))  # type: ignore[arg-type]


def test_rates_and_burstiness_are_those_of_the_gaps() -> None:
    found = describe(trace())
    assert (found.num_requests, found.span_s) == (6, 130.0)
    assert found.rate_per_s == pytest.approx(5 / 130)
    gaps = [2.0, 1.0, 56.9, 0.1, 70.0]
    mean = sum(gaps) / 5
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / 5)
    assert found.interarrival_cv == pytest.approx(deviation / mean)


def test_the_peak_minute_is_counted_from_the_first_arrival() -> None:
    assert describe(trace()).peak_minute_share == pytest.approx(4 / 6)


def test_percentiles_are_interpolated_linearly() -> None:
    output = describe(trace()).output
    assert (output.mean, output.max) == (35.0, 60)
    assert [output.p10, output.p50, output.p90, output.p99] == pytest.approx([15.0, 35.0, 55.0, 59.5])


def test_length_bins_double_and_hold_every_request() -> None:
    assert describe(trace()).prompt.bins == (
        LengthBin(1, 1, 1),
        LengthBin(2, 3, 2),
        LengthBin(4, 7, 2),
        LengthBin(8, 15, 0),
        LengthBin(16, 31, 0),
        LengthBin(32, 63, 0),
        LengthBin(64, 127, 1),
    )


def test_length_bins_start_at_powers_of_two_exactly() -> None:
    for power in range(1, 30):
        edges = np.array([2**power - 1, 2**power])
        assert [(one.low_tokens, one.count) for one in length_bins(edges)] == [(2 ** (power - 1), 1), (2**power, 1)]


def test_what_arrives_at_once_has_no_rate() -> None:
    for at_once in (trace().offline(), trace().head(1)):
        found = describe(at_once)
        assert (found.rate_per_s, found.interarrival_cv, found.peak_minute_share) == (None, None, None)
        assert "all at once" in drawn(at_once)


def test_a_block_is_shared_if_it_and_all_before_it_came_earlier() -> None:
    blocks = [[1, 2], [1, 2], [1, 3], [9, 2], [1, 3, 2]]
    found = describe(
        Trace(
            name="blocks",
            arrival_s=np.zeros(5),
            num_prompt_tokens=np.array([20, 20, 20, 20, 30]),
            output_len=np.ones(5, dtype=np.int64),
            prompt_blocks=tuple(np.array(ids) for ids in blocks),
            hash_block_tokens=10,
        )
    )
    assert found.shared_block_share == pytest.approx((0 + 2 + 1 + 0 + 3) / 11)
    assert describe(trace()).shared_block_share is None


def drawn(one: Trace, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render(describe(one)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_picture_shows_the_facts_and_both_histograms_side_by_side() -> None:
    text = drawn(trace())
    assert "hand [made]" in text
    for part in (
        "6",
        "130.0 s",
        "0.0385 requests/s",
        "66.7% of all requests",
        "mean 35.0",
        "p99 60",
        trace().digest()[:16],
    ):
        assert part in text
    (titles,) = [line for line in text.splitlines() if "prompt tokens" in line]
    assert "output tokens" in titles
    assert "shared prefixes" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_picture_fits_the_terminal(width: int) -> None:
    assert max(map(len, drawn(trace(), width).splitlines())) <= width


def test_bars_are_drawn_in_eighths_and_never_vanish() -> None:
    assert [bar(value, 16, 2) for value in (16, 8, 9, 1, 0)] == ["██", "█", "█▏", "▏", ""]
    assert bar(1, 100_000, 10) == "▏"


def test_the_rate_line_has_one_character_a_slice() -> None:
    assert spark([0, 1, 4, 8]) == " ▁▄█"

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import pytest

from batchtwin.dashboard import forward_figures
from batchtwin.dashboard.colors import REQUEST_TEXT, REQUESTS, request_color, tint
from batchtwin.dashboard.forward_data import Forward, forward
from batchtwin.dashboard.forward_figures import flat_batch
from batchtwin.dashboard.padding_figures import gauges, rectangle
from batchtwin.dashboard.pool_figure import Grid, block_hovers, pool_map
from batchtwin.experiments.examples import examples
from batchtwin.scheduler import Batch, SchedulerConfig
from batchtwin.scheduler.cohort import NOBODY


@pytest.fixture(scope="module")
def mixed() -> Forward:
    example = examples()["one-mixed-iteration"]
    return forward(example.batches()[example.start], example.config)


@pytest.fixture(scope="module")
def padding() -> Forward:
    example = examples()["what-padding-costs"]
    return forward(example.batches()[example.start], example.config)


def _of(figure: go.Figure, name: str) -> go.Bar | go.Scatter | go.Heatmap:
    (found,) = [trace for trace in figure.data if trace.name == name]
    return found


def test_few_tokens_are_cells_with_their_numbers(mixed: Forward) -> None:
    figure = flat_batch(mixed)
    tokens = _of(figure, "input_tokens")
    assert list(tokens.text) == [
        f"{name}<sub>{i}</sub>" for name, i in zip("BCAAAAA", (7, 2, 0, 1, 2, 3, 4), strict=True)
    ]
    assert list(tokens.marker.color) == [request_color(i) for i in (1, 2, 0, 0, 0, 0, 0)]
    assert list(_of(figure, "positions").text) == list("7201234")
    assert list(_of(figure, "slot_mapping").text) == ["87", "30", "20", "21", "22", "23", "72"]
    assert list(figure.layout.xaxis.tickvals) == [0, 1, 2, 7]
    assert [a.x for a in figure.layout.annotations if a.text == "▲"] == [0.5, 1.5, 6.5]  # rows 0, 1 and 6


def test_a_token_tells_which_blocks_it_may_read(mixed: Forward) -> None:
    hovers = _of(flat_batch(mixed), "positions").customdata
    assert "positions 0 … 7" in hovers[0]
    assert "in blocks 10, 21" in hovers[0]
    assert "slot 87 = block 21 × 4 + 3" in hovers[0]
    assert "in block 5<br>" in hovers[4]  # A's third token sees its first block only
    assert "in blocks 5, 18" in hovers[6]


def test_many_tokens_are_drawn_to_scale(padding: Forward) -> None:
    figure = flat_batch(padding)
    strip = _of(figure, "input_tokens")
    np.testing.assert_array_equal(strip.x - np.array(strip.width) / 2, [0, 16, 144, 1168])
    assert list(strip.width) == [16, 128, 1024, 2048]
    assert list(_of(figure, "seq_lens").y) == [16, 128, 1024, 2048]
    ramps = _of(figure, "positions")
    assert [v for v in ramps.y if not np.isnan(v)] == [0, 16, 0, 128, 0, 1024, 0, 2048]
    strokes = [trace for trace in figure.data if trace.name == "slot_mapping" and trace.mode == "lines"]
    ends = [y for stroke in strokes for y in stroke.y if not np.isnan(y)]
    assert sum(high - low + 1 for low, high in zip(ends[::2], ends[1::2], strict=True)) == 3216


def test_a_single_slot_is_a_point(monkeypatch: pytest.MonkeyPatch, mixed: Forward) -> None:
    """B's and C's slots 87 and 30, and A's last, 72, which is in another block than its 20 to 23."""
    monkeypatch.setattr(forward_figures, "MOST_CELLS", 0)
    traces = [trace for trace in flat_batch(mixed).data if trace.name == "slot_mapping"]
    points = {(x, y) for trace in traces if trace.mode == "markers" for x, y in zip(trace.x, trace.y, strict=True)}
    assert points == {(0, 87), (1, 30), (6, 72)}
    (stroke,) = [trace for trace in traces if trace.mode == "lines" and len(trace.x)]
    assert list(stroke.x[:2]) == [2, 5]
    assert list(stroke.y[:2]) == [20, 23]


def test_an_iteration_that_serves_nobody_says_so() -> None:
    config = SchedulerConfig(num_gpu_blocks=20)
    empty = forward(Batch(0, 0, NOBODY, []), config)
    assert "only preempts" in flat_batch(empty).layout.annotations[0].text
    assert "No rows" in rectangle(empty).layout.annotations[0].text
    assert list(gauges(empty).data[1].x) == [0, 0, 0]
    pool_map(empty)


def test_rectangle_shows_tokens_over_padding(padding: Forward) -> None:
    figure = rectangle(padding)
    assert "4,976 of 8,192 slots wasted, 60.7 %" in figure.layout.title.text
    assert "[4, 2,048]" in figure.layout.title.text
    assert list(_of(figure, "tokens").x) == [16, 128, 1024, 2048]
    assert list(_of(figure, "padding").x) == [2048] * 4


def test_gauges_hold_both_bounds(mixed: Forward) -> None:
    figure = gauges(mixed)
    assert list(figure.data[1].x) == [3 / 4, 3 / 4, 7 / 64]
    texts = [annotation.text for annotation in figure.layout.annotations]
    assert texts == [
        "<b>3</b> of max_num_seqs 4",
        "<b>3</b> of max_num_seqs 4",
        "<b>7</b> of max_num_batched_tokens 64",
    ]


def test_small_pool_shows_every_slot(mixed: Forward) -> None:
    """40 blocks of 4: B holds 8 tokens (10 and 21 full), C 3 (one slot of 7 empty), A 5 (three of 18 empty)."""
    figure = pool_map(mixed)
    blocks = _of(figure, "blocks")
    colors = [blocks.colorscale[2 * int(z)][1] if np.isfinite(z) else None for z in np.ravel(blocks.z)]
    counts = {name: colors.count(request_color(i)) for i, name in enumerate("ABC")}
    assert counts == {"A": 5, "B": 8, "C": 3}
    assert len(_of(figure, "written").x) == 7
    assert list(_of(figure, "block ids").text) == [str(i) for i in range(40)]
    assert "5 of 39 blocks of 4 in use" in figure.layout.title.text


def test_chosen_sequence_keeps_the_colour_of_what_it_may_read(mixed: Forward) -> None:
    blocks = _of(pool_map(mixed, 2), "blocks")
    colors = [blocks.colorscale[2 * int(z)][1] if np.isfinite(z) else None for z in np.ravel(blocks.z)]
    assert colors.count(request_color(0)) == 5
    assert colors.count(request_color(1)) == colors.count(request_color(2)) == 0
    assert len(_of(pool_map(mixed, 2), "written").x) == 5  # A's five tokens


def test_large_pool_shows_every_block(padding: Forward) -> None:
    figure = pool_map(padding)
    blocks = _of(figure, "blocks")
    grid = Grid.of(512)
    assert np.shape(blocks.z) == (grid.rows, grid.columns)
    assert np.isfinite(np.array(blocks.z, dtype=float)).sum() == 512
    assert len(_of(figure, "written").x) == 1 + 8 + 64 + 128  # blocks of 16 for 16, 128, 1,024 and 2,048 tokens


def test_hover_of_a_block_says_whose_and_which(mixed: Forward) -> None:
    hovers = block_hovers(mixed)
    assert "never handed out" in hovers[0]
    assert "B, its block 1: positions 4 … 7<br>written by this forward" in hovers[21]
    assert "written" not in hovers[10]
    assert "A, its block 1: positions 4 … 4" in hovers[18]
    assert hovers[33] == "block 33: free or not served"


def _luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_text_can_be_read_on_every_colour_of_a_request() -> None:
    """WCAG's contrast ratio of at least 3 for the strong colours (large or bold text), 4.5 for the tints."""
    text = _luminance(REQUEST_TEXT)
    for color in REQUESTS:
        assert (_luminance(color) + 0.05) / (text + 0.05) >= 3
        assert (_luminance(tint(color)) + 0.05) / (text + 0.05) >= 4.5

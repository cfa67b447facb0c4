from __future__ import annotations

import dataclasses
import json

import numpy as np
import plotly.graph_objects as go
import pytest
from profiles import toy_profile
from sweeps import tiny_scenario

from batchtwin.dashboard.colors import request_color
from batchtwin.dashboard.iteration_data import Series, Timeline, chunk_bars, preempted_requests, series, timeline
from batchtwin.dashboard.iteration_figures import Limits, iterations
from batchtwin.dashboard.iteration_panels import BOUND_COLORS
from batchtwin.dashboard.iteration_words import summary
from batchtwin.experiments.inspect import batches
from batchtwin.experiments.replay import predict
from batchtwin.experiments.run import Run

PRESSED = {"num_gpu_blocks": 18, "max_num_seqs": 8, "trace": {"rate_scale": 4000.0, "output_scale": 0.3}}


@pytest.fixture(scope="module")
def run() -> Run:
    return predict(tiny_scenario(**PRESSED), toy_profile())


@pytest.fixture(scope="module")
def exact(run: Run) -> tuple[Timeline, go.Figure]:
    data = timeline(series(run))
    found = batches(run, 0, data.total)
    return data, iterations(data, Limits(8, 2048), chunk_bars(found), preempted_requests(found))


def _large(count: int) -> Series:
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.exponential(0.01, count))
    ints = {n: rng.integers(0, 60, count) for n in ("decode_tokens", "prefill_tokens", "running", "waiting")}
    return Series(
        first=0,
        begin_s=np.concatenate(([0.0], ends[:-1])),
        end_s=ends,
        step_ms=1e3 * np.diff(ends, prepend=0.0),
        kv_percent=rng.uniform(0, 100, count),
        preemptions=rng.integers(0, 2, count),
        bound=rng.integers(0, 4, count),
        **ints,
    )


def _of(figure: go.Figure, name: str) -> go.Scatter | go.Bar:
    (found,) = [trace for trace in figure.data if trace.name == name]
    return found


def test_an_iteration_is_a_bar_as_wide_as_it_took(exact: tuple[Timeline, go.Figure]) -> None:
    data, figure = exact
    bars = _of(figure, "decodes")
    np.testing.assert_allclose(bars.x - bars.width / 2, data.begin_s)
    np.testing.assert_allclose(bars.x + bars.width / 2, data.end_s)
    np.testing.assert_array_equal(bars.y, data.decode_tokens)


def test_chunks_have_the_colours_of_their_requests_and_stand_on_the_decodes(
    exact: tuple[Timeline, go.Figure],
) -> None:
    data, figure = exact
    chunks = _of(figure, "chunks")
    assert list(chunks.marker.color) == [request_color(int(row[1])) for row in chunks.customdata]
    tops = {}
    for x, base, height in zip(chunks.x, chunks.base, chunks.y, strict=True):
        tops[x] = max(tops.get(x, 0), base + height)
    expected = dict(zip((data.begin_s + data.end_s) / 2, data.peak_tokens, strict=True))
    assert tops == {x: expected[x] for x in tops}


def test_preemptions_are_bars_that_name_who(exact: tuple[Timeline, go.Figure], run: Run) -> None:
    bars = _of(exact[1], "preemptions")
    assert sum(bars.y) == run.metrics["num_preemptions"]
    assert all(row[0].startswith("request ") for row in bars.customdata)


def test_the_strip_shows_one_bound_at_a_time(exact: tuple[Timeline, go.Figure]) -> None:
    """At the middle of an iteration the lowest layer that reaches the top is its bound."""
    data, figure = exact
    layers = [_of(figure, name) for name in ("max_num_seqs", "max_num_batched_tokens", "KV blocks", "nothing")]
    assert [layer.fillcolor for layer in layers] == list(BOUND_COLORS)
    for i, middle in enumerate((data.begin_s + data.end_s) / 2):
        heights = [layer.y[np.searchsorted(layer.x, middle) - 1] for layer in layers]
        assert int(np.argmax(np.array(heights) == 1.0)) == int(np.argmax(data.bound_share[i]))


def test_panels_have_the_names_of_the_boards(exact: tuple[Timeline, go.Figure]) -> None:
    text = " ".join(annotation.text for annotation in exact[1].layout.annotations)
    for name in (
        *("Scheduler State", "vllm:num_requests_running", "vllm:num_requests_waiting"),
        *("Cache Utilization", "vllm:kv_cache_usage_perc", "Preemptions", "vllm:num_preemptions_total"),
        *("Active bound", "Step time"),
    ):
        assert name in text


def test_a_budget_far_above_is_said_and_not_drawn() -> None:
    data = timeline(_large(10))
    near = iterations(data, Limits(64, 150))
    assert "max_num_batched_tokens 150" in " ".join(a.text for a in near.layout.annotations)
    assert 150 in [shape.y0 for shape in near.layout.shapes]
    far = iterations(data, Limits(64, 100_000))
    assert "100,000 is far above" in " ".join(a.text for a in far.layout.annotations)
    assert 100_000 not in [shape.y0 for shape in far.layout.shapes]
    assert far.layout.yaxis.range is None


def test_where_nothing_ran_the_lines_go_down_to_zero() -> None:
    made = _large(3)
    later = np.array([0, 0, 5])
    gapped = timeline(dataclasses.replace(made, begin_s=made.begin_s + later, end_s=made.end_s + later))
    line = _of(iterations(gapped, Limits(64, 100)), "running")
    inside = (line.x >= made.end_s[1]) & (line.x <= made.begin_s[2] + 5)
    assert (np.array(line.y)[inside][1:3] == 0).all()


def test_a_hundred_thousand_iterations_are_a_small_picture() -> None:
    figure = iterations(timeline(_large(100_000)), Limits(64, 100))
    assert len(figure.to_json()) < 1_500_000
    means = _of(figure, "decodes")
    assert max(means.y) < 60


def test_a_window_without_iterations_is_an_empty_figure() -> None:
    made = _large(3)
    data = timeline(made, (made.span_s[1] + 1, made.span_s[1] + 2))
    json.loads(iterations(data, Limits(64, 100)).to_json())
    assert data.total == 0


def test_the_summary_says_what_held_it_back(run: Run) -> None:
    text = summary(run)
    count = int(run.metrics["num_preemptions"])
    share = 100 * run.metrics["bound_kv_blocks_share"]
    assert f"{len(run.records.iterations['end_s'])} iterations" in text
    assert f"the KV blocks for {share:.1f} %" in text
    assert f"{count:,} preemption" in text
    roomy = summary(predict(tiny_scenario(trace={"rate_scale": 0.01}), toy_profile()))
    assert "Nothing held it back" in roomy
    assert "Nobody was preempted" in roomy

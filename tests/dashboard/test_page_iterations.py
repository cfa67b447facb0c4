"""The page Iterations: empty, on a real sweep, on a broken one, and as a link."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dashboard_pages import open_page, text_of
from streamlit.testing.v1 import AppTest

from batchtwin.dashboard.colors import MEASURED
from batchtwin.dashboard.pages import iterations
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.recommend import recommend
from batchtwin.experiments.replay import predict
from batchtwin.experiments.run import Run
from batchtwin.experiments.sweep import Sweep


def _figure(test: AppTest) -> dict[str, Any]:
    (chart,) = test.get("plotly_chart")
    found: dict[str, Any] = json.loads(chart.proto.spec)
    return found


def _names(test: AppTest) -> list[str]:
    return [trace.get("name", "") for trace in _figure(test)["data"]]


def _run(sweep: Sweep, cell: Cell | None = None) -> Run:
    chosen = cell or recommend(sweep).cell
    return predict(chosen.of(sweep.spec.scenario), sweep.profile)


def test_empty_folder_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = open_page("iterations", tmp_path, monkeypatch)
    assert "batchtwin sweep" in text_of(test)
    assert not test.get("plotly_chart")
    assert not test.error


def test_the_recommended_cell_is_shown_whole(predicted: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    test = open_page("iterations", predicted.folder.parent, monkeypatch)
    run = _run(predicted)
    count = len(run.records.iterations["end_s"])
    assert f"{count} iterations" in text_of(test)
    assert f"{int(run.metrics['num_preemptions'])} preemptions" in text_of(test)
    assert _figure(test)["layout"]["xaxis"]["range"] == [0.0, run.records.iterations["end_s"][-1]]
    assert _names(test).count("decodes") == 1


def test_a_link_shows_its_window_with_chunks_by_request(predicted: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("vllm_v1", 128, 256)
    test = open_page("iterations", predicted.folder.parent, monkeypatch, cell=cell.key, window="0.1-0.3")
    end_s, start_s = (_run(predicted, cell).records.iterations[name] for name in ("end_s", "start_s"))
    inside = int(((end_s > 0.1) & (start_s < 0.3)).sum())
    assert f"{inside} iterations from" in text_of(test)
    assert "chunks" in _names(test)
    assert _figure(test)["layout"]["xaxis"]["range"] == [0.1, 0.3]


@pytest.mark.parametrize("window", ["", "many", "3-1", "nan-inf", "-1-2", "0-1e9", "1"])
def test_a_window_that_makes_no_sense_shows_all(predicted: Sweep, window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test = open_page("iterations", predicted.folder.parent, monkeypatch, window=window)
    assert _figure(test)["layout"]["xaxis"]["range"][0] == 0.0
    assert not test.error


def test_buttons_widen_and_go_back_to_all(predicted: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    test = open_page("iterations", predicted.folder.parent, monkeypatch, window="0.2-0.3")
    buttons = {button.label: button for button in test.button}
    buttons["Wider"].click().run()
    assert test.query_params["window"] == "0.05-0.45"
    {button.label: button for button in test.button}["Later"].click().run()
    assert test.query_params["window"] == "0.25-0.65"
    {button.label: button for button in test.button}["All"].click().run()
    assert "window" not in test.query_params


def test_an_iteration_is_gone_to_by_its_number(predicted: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    test = open_page("iterations", predicted.folder.parent, monkeypatch)
    test.number_input(key="to-iteration").set_value(150).run()
    assert not test.exception
    low, high = (float(part) for part in test.query_params["window"].split("-"))
    columns = _run(predicted).records.iterations
    assert low < columns["end_s"][150] <= high
    assert test.query_params["iteration"] == "150"
    assert "Forward shapes opens at 150" in text_of(test)


def test_a_measured_run_can_be_chosen(measured: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = measured.measured_cells()[0]
    test = open_page("iterations", measured.folder.parent, monkeypatch, cell=cell.key, run="measured-1")
    run = measured.measured(cell)[1]
    assert f"color:{MEASURED}'>●</span> Measured:" in text_of(test)
    assert _figure(test)["layout"]["xaxis"]["range"][1] == pytest.approx(run.records.iterations["end_s"][-1])
    assert _figure(test)["layout"]["xaxis"]["range"][1] != _run(measured, cell).records.iterations["end_s"][-1]


def test_each_replica_is_shown_by_itself(
    make_sweep: Callable[..., Sweep], predicted: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its iterations can be looked into, those of the second one behind those of the first."""
    scenario = predicted.spec.scenario.with_(num_replicas=2)
    made = make_sweep(tmp_path / "two", scenario=scenario, max_num_seqs=[8], max_num_batched_tokens=[256])
    address = {"cell": Cell("vllm_v1", 8, 256).key}
    columns = _run(made, Cell("vllm_v1", 8, 256)).records.iterations
    second = int((columns["replica"] == 1).argmax())
    end_s = columns["end_s"][second:]
    test = open_page("iterations", tmp_path, monkeypatch, replica="1", **address)
    assert f"{len(end_s)} iterations from {second:,}" in text_of(test)
    assert _figure(test)["layout"]["xaxis"]["range"][1] == end_s[-1]
    for at in (second - 1, second, second + 40):
        shapes = open_page("shapes", tmp_path, monkeypatch, iteration=str(at), **address)
        specs = [json.loads(chart.proto.spec) for chart in shapes.get("plotly_chart")]
        assert any(f"{columns['num_tokens'][at]:,} token" in str(spec["layout"].get("title")) for spec in specs)


def test_a_broken_sweep_is_one_sentence(predicted: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(predicted.folder, tmp_path / "broken")
    (tmp_path / "broken" / "sweep.json").write_text("{")
    test = open_page("iterations", tmp_path, monkeypatch)
    (error,) = test.error
    assert "sweep.json cannot be read" in error.value.replace("\\", "")
    assert not test.get("plotly_chart")


def test_a_broken_measured_run_is_one_sentence(
    measured: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(measured.folder, tmp_path / "broken")
    cell = measured.measured_cells()[0]
    (tmp_path / "broken" / "cells" / cell.key / "measured-0" / "iterations.parquet").write_bytes(b"no")
    test = open_page("iterations", tmp_path, monkeypatch, cell=cell.key)
    (error,) = test.error
    assert "is broken" in error.value


def test_drawing_a_range_goes_there(predicted: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a browser reports when a range is drawn: its ends, in either order."""
    gone: list[tuple[float, float] | None] = []
    monkeypatch.setattr(iterations, "_go_to", gone.append)
    state = {"iterations": {"selection": {"box": [{"x": [0.5, 0.25], "y": [0, 1]}]}}}
    monkeypatch.setattr(iterations.st, "session_state", state)
    iterations._zoom()
    state["iterations"]["selection"]["box"] = []
    iterations._zoom()
    assert gone == [(0.25, 0.5)]

"""The page Forward shapes: without a sweep, on a real one, on a broken one; stepping and playing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from dashboard_pages import open_page, text_of
from streamlit.testing.v1 import AppTest

from batchtwin.dashboard.pages import shapes
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.replay import predict
from batchtwin.experiments.sweep import Sweep

CELL = Cell("vllm_v1", 128, 256)


def _figures(test: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]


def _titles(test: AppTest) -> str:
    return " ".join(figure["layout"].get("title", {}).get("text") or "" for figure in _figures(test))


def _ladder(test: AppTest) -> str:
    return " ".join(element.proto.body for element in test.get("html"))


def test_without_a_sweep_the_example_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = open_page("shapes", tmp_path, monkeypatch)
    assert not test.error
    assert "**2** decodes · **1** chunk of 5 tokens" in text_of(test)
    assert "A admitted" in text_of(test)
    assert "8 of 15 slots wasted, 53.3 %" in _titles(test)
    assert "7 tokens of 3 sequences" in _titles(test)
    assert "[7, n_q_heads, head_dim]" in _ladder(test)


def test_the_example_of_padding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = open_page("shapes", tmp_path, monkeypatch, what="what-padding-costs")
    assert "4,976 of 8,192 slots wasted, 60.7 %" in _titles(test)
    assert "3,216 tokens of 4 sequences" in _titles(test)


def test_stepping_forward_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = open_page("shapes", tmp_path, monkeypatch)
    test.button(key="forward").click().run()
    assert test.query_params["iteration"] == "2"
    assert "B ends with this token" in text_of(test)
    assert "3 tokens of 3 sequences" in _titles(test)
    test.button(key="back").click().run()
    assert test.query_params["iteration"] == "1"
    test.number_input(key="iteration-number").set_value(9).run()
    assert "1 token of 1 sequence in a row" in _titles(test)
    assert test.button(key="forward").disabled
    assert test.button(key="play").disabled


def test_playing_goes_on_to_the_end_and_then_writes_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    play_on = shapes._play_on
    monkeypatch.setattr(shapes, "SECONDS_A_STEP", 0.0)
    monkeypatch.setattr(shapes, "_play_on", lambda film, at: (seen.append(at), play_on(film, at)))
    test = open_page("shapes", tmp_path, monkeypatch, iteration="3")
    test.button(key="play").click().run()
    assert not test.exception
    assert seen == [3, 4, 5, 6, 7, 8, 9]
    assert test.query_params["iteration"] == "9"
    assert test.number_input(key="iteration-number").value == 9


def test_blocks_of_one_query_can_be_singled_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = open_page("shapes", tmp_path, monkeypatch)
    test.selectbox(key="reads").select("A").run()
    assert test.query_params["reads"] == "A"
    (pool,) = [f for f in _figures(test) if "block_tables" in f["layout"]["title"].get("text", "")]
    (written,) = [trace for trace in pool["data"] if trace["name"] == "written"]
    count = len(written["x"]) if isinstance(written["x"], list) else None
    assert count in (5, None)


def test_a_real_cell_opens_at_an_iteration_of_both_kinds(predicted: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    test = open_page("shapes", predicted.folder.parent, monkeypatch, cell=CELL.key)
    columns = predict(CELL.of(predicted.spec.scenario), predicted.profile).records.iterations
    at = test.number_input(key="iteration-number").value
    assert columns["num_decodes"][at] > 0
    assert columns["num_prefills"][at] > 0
    assert f"{columns['num_tokens'][at]:,} tokens of {columns['num_seqs'][at]} sequences" in _titles(test)
    assert "iteration" not in test.query_params  # nothing was chosen yet
    tokens = columns["num_tokens"][at]
    assert f"[{tokens}, 8, 32]" in _ladder(test)  # the profile's model has 8 heads of 32


def test_any_iteration_of_a_cell_is_replayed(predicted: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = predict(CELL.of(predicted.spec.scenario), predicted.profile).records.iterations
    last = len(columns["end_s"]) - 1
    for at in (last, 0, 300):
        test = open_page("shapes", predicted.folder.parent, monkeypatch, cell=CELL.key, iteration=str(at))
        assert f"{columns['num_tokens'][at]:,} token" in _titles(test)


def test_the_next_preemption_is_found(predicted: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = predict(CELL.of(predicted.spec.scenario), predicted.profile).records.iterations
    expected = int((columns["num_preempted"] > 0).argmax())
    test = open_page("shapes", predicted.folder.parent, monkeypatch, cell=CELL.key, iteration="0")
    (button,) = [button for button in test.button if button.label == "Next preemption"]
    button.click().run()
    assert test.query_params["iteration"] == str(expected)
    assert "preempted" in text_of(test)


@pytest.mark.parametrize("iteration", ["", "many", "-5", "99999999"])
def test_an_iteration_that_is_not_there_is_answered_by_one_that_is(
    predicted: Sweep, iteration: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = open_page("shapes", predicted.folder.parent, monkeypatch, cell=CELL.key, iteration=iteration)
    assert not test.error
    assert len(_figures(test)) == 4


def test_a_broken_sweep_is_one_sentence(predicted: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(predicted.folder, tmp_path / "broken")
    (tmp_path / "broken" / "sweep.json").write_text("{")
    test = open_page("shapes", tmp_path, monkeypatch)
    (error,) = test.error
    assert "sweep.json cannot be read" in error.value.replace("\\", "")


def test_a_run_that_no_longer_fits_its_scenario_is_one_sentence(
    measured: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(measured.folder, tmp_path / "edited")
    cell = next(cell for cell in measured.measured_cells() if cell.max_num_seqs > 4)
    path = tmp_path / "edited" / "cells" / cell.key / "measured-0" / "scenario.json"
    path.write_text(path.read_text().replace(f'"max_num_seqs": {cell.max_num_seqs}', '"max_num_seqs": 2'))
    test = open_page("shapes", tmp_path, monkeypatch, cell=cell.key, run="measured-0", iteration="100")
    (error,) = test.error
    assert "cannot be looked into" in error.value

"""The page without a browser: Streamlit's own test runner executes the script and keeps what it would show."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from profiles import toy_profile
from streamlit.proto.Metric_pb2 import Metric as MetricProto
from streamlit.testing.v1 import AppTest

from batchtwin.dashboard.launch import APP, RESULTS_VARIABLE
from batchtwin.experiments.compare import compare
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.recommend import recommend
from batchtwin.experiments.sweep import Sweep, open_sweep

MakeSweep = Callable[..., Sweep]
Open = Callable[..., AppTest]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Open:
    """``page(results, metric=…, …)``: the page over a results folder, opened by a link with these parameters."""

    def open_page(results: Path, **address: str) -> AppTest:
        monkeypatch.setenv(RESULTS_VARIABLE, str(results))
        test = AppTest.from_file(str(APP), default_timeout=30)
        for key, value in address.items():
            test.query_params[key] = value
        test.run()
        assert not test.exception
        return test

    return open_page


def _titles(test: AppTest) -> list[str]:
    specs: list[Any] = [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]
    return [spec["layout"]["title"]["text"] for spec in specs]


def _text(test: AppTest) -> str:
    return "\n".join(str(element.value) for element in (*test.markdown, *test.caption, *test.info))


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def test_empty_folder_says_what_to_do_and_offers_the_form(page: Open, tmp_path: Path) -> None:
    test = page(tmp_path / "nothing-here")
    assert "No sweep here yet" in _text(test)
    assert "batchtwin sweep --help" in _text(test)
    assert [button.label for button in test.button] == ["Predict"]
    assert not test.error


def test_predicted_sweep_shows_the_recommendation_its_numbers_and_one_map(page: Open, predicted: Sweep) -> None:
    test = page(predicted.folder.parent)
    chosen = recommend(predicted)
    assert f"`max_num_seqs={chosen.cell.max_num_seqs}`" in _text(test)
    assert chosen.serve_command in [block.value for block in test.code]
    values = {metric.label: metric.value for metric in test.metric}
    assert values["Output tokens/s"] == _shown(chosen.metrics["output_throughput"])
    assert values["Mean TTFT, ms"] == _shown(chosen.metrics["mean_ttft_ms"])
    assert len(_titles(test)) == 1
    assert "Nothing is measured yet" in _text(test)


def test_measured_sweep_shows_three_maps_parity_and_errors(page: Open, measured: Sweep) -> None:
    test = page(measured.folder.parent)
    titles = _titles(test)
    assert len(titles) == 4
    for title, word in zip(titles, ("Predicted", "Measured", "Error", "Parity"), strict=True):
        assert word in title
        assert "Output throughput" in title
    summary, regret, split, cells = (element.value for element in test.dataframe)
    found = compare(measured)
    worst = found.summary.set_index("metric").loc["output_throughput", "worst_error_percent"]
    assert summary.set_index("Metric").loc["Output throughput", "Worst"] == f"{worst:.1f} %"
    assert len(regret) == len(found.regret_percent)
    assert len(split) == len(measured.measured_cells())
    assert len(cells) == len(measured.spec.cells)


def test_link_restores_sweep_metric_and_cell(
    page: Open, predicted: Sweep, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    shutil.copytree(predicted.folder, tmp_path / "a")
    make_sweep(tmp_path / "b", max_num_seqs=[4, 16], max_num_batched_tokens=[64])
    cell = Cell("vllm_v1", 16, 64)
    test = page(tmp_path, sweep="b", metric="p99_itl_ms", cell=cell.key)
    assert test.selectbox(key="sweep").value == "b"
    assert test.selectbox(key="metric").value == "p99_itl_ms"
    assert "P99 ITL (ms)" in _titles(test)[0]
    (result,) = [result for result in open_sweep(tmp_path / "b").predicted() if result.cell == cell]
    assert test.metric[0].value == _shown(result.metrics["output_throughput"])


def test_link_with_nonsense_shows_the_default_view(page: Open, predicted: Sweep) -> None:
    test = page(predicted.folder.parent, sweep="../../etc", metric="beauty", cell="none", policy="mine")
    assert test.selectbox(key="sweep").value == "only-predicted"
    assert test.selectbox(key="metric").value == "output_throughput"
    assert not test.error


def test_choosing_a_metric_changes_the_maps_and_the_address(page: Open, measured: Sweep) -> None:
    test = page(measured.folder.parent)
    assert "metric" not in test.query_params  # nothing was chosen yet
    test.selectbox(key="metric").select("mean_tpot_ms").run()
    assert all("Mean TPOT" in title for title in _titles(test))
    assert test.query_params["metric"] == "mean_tpot_ms"
    assert test.query_params["sweep"] == "with-measured"


def test_choosing_a_cell_shows_its_numbers_against_the_default(page: Open, predicted: Sweep) -> None:
    test = page(predicted.folder.parent)
    cell, default = Cell("vllm_v1", 4, 64), Cell("vllm_v1", 128, 2048)
    by_cell = {result.cell: result.metrics for result in predicted.feasible()}
    test.selectbox(key="cell").select(cell.key).run()
    change = 100 * (by_cell[cell]["mean_tpot_ms"] / by_cell[default]["mean_tpot_ms"] - 1)
    (card,) = [metric for metric in test.metric if metric.label == "Mean TPOT, ms"]
    assert card.value == _shown(by_cell[cell]["mean_tpot_ms"])
    assert card.delta == f"{change:+.1f} %"


def test_change_for_the_better_is_green_whichever_way_the_metric_runs(page: Open, predicted: Sweep) -> None:
    test = page(predicted.folder.parent, cell=Cell("vllm_v1", 4, 64).key)
    deltas = {metric.label: metric for metric in test.metric if metric.delta}
    for name, better in (("Output tokens/s", "+"), ("Mean TPOT, ms", "-"), ("Mean TTFT, ms", "-")):
        green = deltas[name].proto.color == MetricProto.MetricColor.GREEN
        assert green is deltas[name].delta.startswith(better)


def test_choosing_another_sweep_keeps_the_metric_and_drops_the_cell(
    page: Open, predicted: Sweep, tmp_path: Path
) -> None:
    shutil.copytree(predicted.folder, tmp_path / "a")
    shutil.copytree(predicted.folder, tmp_path / "b")
    test = page(tmp_path, sweep="a", metric="mean_ttft_ms", cell=Cell("vllm_v1", 4, 64).key)
    test.selectbox(key="sweep").select("b").run()
    assert test.query_params == {"sweep": "b", "metric": "mean_ttft_ms"}


def test_policies_of_a_sweep_are_shown_one_at_a_time(page: Open, make_sweep: MakeSweep, tmp_path: Path) -> None:
    names = ["vllm_v1", "prefill_first"]
    made = make_sweep(tmp_path / "two", policies=names, max_num_seqs=[4, 8], max_num_batched_tokens=[1024])
    test = page(tmp_path)
    for name in names:
        test.selectbox(key="policy").select(name).run()
        first = test.selectbox(key="cell").value
        assert first in {cell.key for cell in made.spec.cells if cell.policy == name}
        assert not test.exception


@pytest.mark.parametrize(("text", "sentence"), [("{", "cannot be read"), ('{"format": 0}', "results format 0")])
def test_broken_or_older_folder_is_one_sentence(page: Open, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "sweep.json").write_text(text)
    test = page(tmp_path)
    (error,) = test.error
    assert sentence in error.value
    assert "Traceback" not in error.value
    assert not test.metric


def test_broken_measurement_is_a_warning_beside_the_prediction(
    page: Open, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    made = make_sweep(tmp_path / "s", 1, max_num_seqs=[4], max_num_batched_tokens=[64])
    for run in made.folder.glob("cells/*/measured-0"):
        (run / "iterations.parquet").write_bytes(b"not parquet")
    test = page(tmp_path)
    assert "measurements cannot be shown" in test.warning[0].value
    assert test.metric


def test_unfinished_sweep_says_so_and_finishes(page: Open, make_sweep: MakeSweep, tmp_path: Path) -> None:
    made = make_sweep(tmp_path / "s", max_num_seqs=[4, 8], max_num_batched_tokens=[64])
    missing = made.folder / "cells" / Cell("vllm_v1", 8, 64).key / "predicted.json"
    before = missing.read_bytes()
    missing.unlink()
    test = page(tmp_path)
    assert "2 of 3 cells are predicted so far" in test.info[0].value
    (button,) = [button for button in test.button if button.label == "Predict the rest"]
    button.click().run()
    assert missing.read_bytes() == before
    assert not any("predicted so far" in element.value for element in test.info)


def test_table_can_be_downloaded(page: Open, measured: Sweep) -> None:
    (button,) = page(measured.folder.parent).get("download_button")
    assert button.proto.label == "Download CSV"


def _fill(test: AppTest, results: Path) -> None:
    fields = {field.label: field for field in (*test.text_input, *test.number_input, *test.selectbox)}
    fields["Name"].set_value("mine")
    fields["Profile"].select(str(results / "profiles" / "toy.json"))
    fields["max_num_seqs"].set_value("4, 8")
    fields["max_num_batched_tokens"].set_value("64 128")
    fields["KV blocks"].set_value(600)
    fields["At most"].set_value(20)
    fields["Prompts ×"].set_value(0.1)
    fields["Outputs ×"].set_value(0.1)


def _predict(test: AppTest) -> None:
    (button,) = [button for button in test.button if button.label == "Predict"]
    button.click().run()
    assert not test.exception


def test_form_predicts_a_sweep_and_shows_it(page: Open, tmp_path: Path) -> None:
    toy_profile().save(tmp_path / "profiles" / "toy.json")
    test = page(tmp_path)
    _fill(test, tmp_path)
    _predict(test)
    made = open_sweep(tmp_path / "mine")
    assert made.spec.max_num_seqs == (4, 8)
    assert made.spec.max_num_batched_tokens == (64, 128)
    assert len(made.predicted()) == 5  # and vLLM's default
    assert test.query_params == {"sweep": "mine"}
    assert test.selectbox(key="sweep").value == "mine"
    assert test.metric[0].value == _shown(recommend(made).metrics["output_throughput"])


@pytest.mark.parametrize(
    ("field", "text", "sentence"),
    [
        ("Name", "../outside", "no name for a folder"),
        ("max_num_seqs", "4, many", "max_num_seqs needs whole numbers"),
        ("max_num_batched_tokens", "0", "max_num_batched_tokens needs whole numbers"),
        ("Profile", "bad.json", "is not a profile of this version"),
    ],
)
def test_form_answers_a_mistake_with_one_sentence(
    page: Open, tmp_path: Path, field: str, text: str, sentence: str
) -> None:
    toy_profile().save(tmp_path / "profiles" / "toy.json")
    (tmp_path / "profiles" / "bad.json").write_text("{}")
    test = page(tmp_path)
    _fill(test, tmp_path)
    value = str(tmp_path / "profiles" / text) if field == "Profile" else text
    {element.label: element for element in (*test.text_input, *test.selectbox)}[field].set_value(value)
    _predict(test)
    (error,) = test.error
    assert sentence in error.value.replace("\\", "")
    assert not (tmp_path.parent / "outside").exists()
    assert not (tmp_path / "mine").exists()


def test_form_opens_over_results_and_closes_again(page: Open, predicted: Sweep) -> None:
    test = page(predicted.folder.parent)
    (button,) = [button for button in test.button if button.label == "New sweep"]
    button.click().run()
    assert "#### New sweep" in _text(test)
    (back,) = [button for button in test.button if button.label == "Back to the results"]
    back.click().run()
    assert test.metric

"""The page without a browser: Streamlit's own test runner executes the script and keeps what it would show."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from profiles import toy_profile
from streamlit.proto.Metric_pb2 import Metric as MetricProto
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from batchtwin.dashboard.labels import number
from batchtwin.dashboard.launch import APP, RESULTS_VARIABLE
from batchtwin.dashboard.shell import PAGES
from batchtwin.experiments.capacity import capacity
from batchtwin.experiments.compare import compare
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.recommend import recommend
from batchtwin.experiments.sweep import Sweep, open_sweep

ELSEWHERE = ("iterations", "shapes")
"""Pages with tests of their own."""
MakeSweep = Callable[..., Sweep]
Open = Callable[..., AppTest]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Open:
    """``page(results, name, metric=…, …)``: a page over a results folder, opened by a link with these parameters."""

    def open_page(results: Path, name: str = "sweep", **address: str) -> AppTest:
        monkeypatch.setenv(RESULTS_VARIABLE, str(results))
        test = AppTest.from_file(str(APP), default_timeout=60)
        test._page_hash = calc_hash(name)  # what a browser sends after it has loaded /name
        for key, value in address.items():
            test.query_params[key] = value
        test.run()
        assert not test.exception
        return test

    return open_page


def _titles(test: AppTest) -> list[str]:
    specs: list[Any] = [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]
    return [spec["layout"].get("title", {}).get("text", "") for spec in specs]


def _text(test: AppTest) -> str:
    return "\n".join(str(element.value) for element in (*test.markdown, *test.caption, *test.info))


def _html(test: AppTest) -> str:
    return "\n".join(element.proto.body for element in test.get("html"))


def _press(test: AppTest, label: str) -> AppTest:
    (button,) = [button for button in test.button if button.label == label]
    return button.click().run()


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ELSEWHERE])
def test_every_page_says_what_to_do_where_there_is_nothing(page: Open, tmp_path: Path, name: str) -> None:
    test = page(tmp_path / "nothing-here", name)
    assert not test.error
    text = _text(test)
    assert "batchtwin sweep" in text or "predict one on the page **Sweep**" in text


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ELSEWHERE])
@pytest.mark.parametrize("kind", ["predicted", "measured"])
def test_every_page_shows_a_real_sweep(page: Open, request: pytest.FixtureRequest, name: str, kind: str) -> None:
    folder = request.getfixturevalue(kind).folder
    test = page(folder.parent, name, slo="ttft_ms=5000")
    assert not test.error
    assert len(test.get("page_link")) >= len(PAGES) - len(ELSEWHERE)
    assert "maximum concurrency" in _text(test)
    assert _titles(test) or (name, kind) == ("trust", "predicted")


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ELSEWHERE])
def test_every_page_answers_a_broken_folder_with_one_sentence(page: Open, tmp_path: Path, name: str) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "sweep.json").write_text("{")
    (error,) = page(tmp_path, name).error
    assert "cannot be read" in error.value
    assert "Traceback" not in error.value


def test_empty_folder_offers_the_form(page: Open, tmp_path: Path) -> None:
    test = page(tmp_path / "nothing-here")
    assert "No sweep here yet" in _text(test)
    assert "There is no profile yet" in test.warning[0].value
    assert "Predict" in [button.label for button in test.button]


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


def test_measured_sweep_shows_three_maps_and_what_was_measured_beside_every_number(page: Open, measured: Sweep) -> None:
    chosen = measured.to_measure(5)[0]
    test = page(measured.folder.parent, cell=chosen.key)
    titles = _titles(test)
    assert len(titles) == 3
    for title, word in zip(titles, ("Predicted", "Measured", "Error"), strict=True):
        assert word in title
        assert "Output throughput" in title
    rows = compare(measured).cells.set_index(["metric", "max_num_seqs", "max_num_batched_tokens"])
    row = rows.loc[("output_throughput", chosen.max_num_seqs, chosen.max_num_batched_tokens)]
    assert f"measured {_shown(row['measured'])}" in _html(test)


def test_trust_page_has_parity_by_load_and_names_what_was_never_validated(page: Open, measured: Sweep) -> None:
    test = page(measured.folder.parent, "trust")
    (title,) = _titles(test)
    assert "Parity" in title
    (table,) = (element.value for element in test.dataframe)
    found = compare(measured)
    worst = found.summary.set_index("metric").loc["output_throughput", "worst_error_percent"]
    assert f"{worst:.1f} % at worst" in _text(test)
    assert "never validated" in table.set_index("Metric").loc["Peak KV usage"].tolist()


@pytest.mark.parametrize(
    ("view", "title"), [("Error split", "Where the error comes from"), ("Step times", "Step times against the fit")]
)
def test_trust_page_has_a_view_of_the_errors_parts_and_of_the_step_times(
    page: Open, measured: Sweep, view: str, title: str
) -> None:
    (found,) = _titles(page(measured.folder.parent, "trust", trust=view))
    assert title in found


def test_trust_page_has_the_calibrations_card(page: Open, predicted: Sweep) -> None:
    test = page(predicted.folder.parent, "trust", trust="Calibration")
    (table,) = (element.value for element in test.dataframe)
    assert "by hand for tests" in table["Value"].tolist()


def test_load_page_prints_the_capacity_of_the_chosen_cells(page: Open, predicted: Sweep) -> None:
    cell = Cell("vllm_v1", 4, 64)
    test = page(predicted.folder.parent, "load", slo="ttft_ms=800", cells=cell.key)
    scenario = predicted.spec.scenario.with_(slo={"ttft_ms": 800.0})
    found = capacity(cell.of(scenario), predicted.profile, tolerance=0.05)
    assert f"4 × 64: {number(found.rate_per_s)} requests/s within the SLOs" in _text(test)
    assert ["Goodput" in title or "SLO attainment" in title for title in _titles(test)] == [True, True]


def test_load_page_without_limits_says_where_to_set_them(page: Open, predicted: Sweep) -> None:
    assert "choose a kind of service" in _text(page(predicted.folder.parent, "load"))


def test_compare_page_shows_differences_and_distributions(page: Open, measured: Sweep) -> None:
    test = page(measured.folder.parent, "compare")
    assert len(test.multiselect(key="cells").value) == 2
    (table,) = (element.value for element in test.dataframe)
    assert {"Mean ITL", "Mean TPOT"} <= set(table["Metric"])
    assert len(test.get("plotly_chart")) == 1


def test_slos_of_the_bar_decide_the_recommendation(page: Open, predicted: Sweep) -> None:
    tightest = min(result.metrics["p99_tpot_ms"] for result in predicted.feasible())
    limit = round(1.05 * tightest, 3)
    test = page(predicted.folder.parent, slo=f"tpot_ms={limit:g}")
    chosen = recommend(predicted, slo={"tpot_ms": limit})
    assert f"P99 TPOT ≤ {limit:g} ms" in _text(test)  # of which the sweep itself knows nothing
    assert f"`max_num_seqs={chosen.cell.max_num_seqs}`" in _text(test)
    assert test.selectbox(key="cell").value == chosen.cell.key
    assert {metric.label: metric.value for metric in test.metric}["Output tokens/s"] == _shown(
        chosen.metrics["output_throughput"]
    )


def test_changed_question_is_told_and_can_be_taken_back(page: Open, predicted: Sweep) -> None:
    test = page(predicted.folder.parent, rate="2", blocks="500")
    assert "answers another question (rate, KV blocks)" in _text(test)
    _press(test, "Back to it")
    assert "another question" not in _text(test)
    assert "rate" not in test.query_params


@pytest.mark.parametrize("view", ["Pareto", "Explorer"])
def test_sweep_page_has_other_views(page: Open, measured: Sweep, view: str) -> None:
    test = page(measured.folder.parent, view=view)
    assert len(test.get("plotly_chart")) == 1
    assert len(test.get("download_button")) == 1


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


def test_broken_records_of_a_measurement_are_one_sentence_where_they_are_needed(
    page: Open, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    made = make_sweep(tmp_path / "s", 1, max_num_seqs=[4], max_num_batched_tokens=[64])
    for run in made.folder.glob("cells/*/measured-0"):
        (run / "iterations.parquet").write_bytes(b"not parquet")
    assert page(tmp_path).metric
    test = page(tmp_path, "trust", trust="Error split")
    assert "measurements cannot be shown" in test.warning[0].value
    (error,) = page(tmp_path, "compare").error
    assert "is broken" in error.value


def test_broken_heads_of_measurements_are_a_warning_beside_the_prediction(
    page: Open, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    made = make_sweep(tmp_path / "s", 1, max_num_seqs=[4], max_num_batched_tokens=[64])
    for run in made.folder.glob("cells/*/measured-0"):
        (run / "run.json").write_text("{")
    test = page(tmp_path)
    assert "measurements cannot be shown" in test.warning[0].value
    assert test.metric


def _until_done(test: AppTest, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    test.run()
    assert not test.exception


def test_unfinished_sweep_says_so_and_is_resumed(page: Open, make_sweep: MakeSweep, tmp_path: Path) -> None:
    made = make_sweep(tmp_path / "s", max_num_seqs=[4, 8], max_num_batched_tokens=[64])
    missing = made.folder / "cells" / Cell("vllm_v1", 8, 64).key / "predicted.json"
    before = missing.read_bytes()
    missing.unlink()
    test = page(tmp_path)
    assert "2 of 3 cells are predicted so far" in test.info[0].value
    _press(test, "Resume")
    _until_done(test, missing.exists)
    assert missing.read_bytes() == before
    assert not any("predicted so far" in element.value for element in test.info)


@pytest.mark.parametrize("name", ["sweep", "load", "compare", "trust", "measure"])
def test_figures_can_be_taken_away_with_their_data(page: Open, measured: Sweep, name: str) -> None:
    test = page(measured.folder.parent, name, slo="ttft_ms=5000")
    assert len(test.get("download_button")) == len(test.get("plotly_chart"))
    for chart in test.get("plotly_chart"):
        assert "toImage" in chart.proto.config


def _fill(test: AppTest, results: Path) -> None:
    fields = {field.label: field for field in (*test.text_input, *test.number_input, *test.selectbox)}
    fields["Profile"].select(str(results / "profiles" / "toy.json"))
    fields["Requests"].set_value(20)
    fields["KV blocks"].set_value(600)
    fields["Prompts ×"].set_value(0.1)
    fields["Outputs ×"].set_value(0.1)
    test.run()
    fields = {field.label: field for field in test.text_input}
    fields["Name"].set_value("mine")
    fields["max_num_seqs"].set_value("4, 8")
    fields["max_num_batched_tokens"].set_value("64 128")


def test_form_predicts_a_sweep_and_shows_it(page: Open, tmp_path: Path) -> None:
    toy_profile().save(tmp_path / "profiles" / "toy.json")
    test = page(tmp_path)
    _fill(test, tmp_path)
    _press(test, "Predict")
    assert test.query_params == {"sweep": "mine"}
    made = open_sweep(tmp_path / "mine")
    assert made.spec.max_num_seqs == (4, 8)
    assert made.spec.max_num_batched_tokens == (64, 128)
    assert made.spec.scenario.trace.num_requests == 20
    _until_done(test, lambda: len(made.predicted()) == 5)  # and vLLM's default
    assert test.selectbox(key="sweep").value == "mine"
    assert test.metric[0].value == _shown(recommend(made).metrics["output_throughput"])


@pytest.mark.parametrize(
    ("field", "text", "sentence"),
    [
        ("Name", "../outside", "no name for a folder"),
        ("max_num_seqs", "4, many", "max_num_seqs needs whole numbers"),
        ("max_num_batched_tokens", "0", "max_num_batched_tokens needs whole numbers"),
    ],
)
def test_form_answers_a_mistake_with_one_sentence(
    page: Open, tmp_path: Path, field: str, text: str, sentence: str
) -> None:
    toy_profile().save(tmp_path / "profiles" / "toy.json")
    test = page(tmp_path)
    _fill(test, tmp_path)
    {element.label: element for element in test.text_input}[field].set_value(text)
    _press(test, "Predict")
    (error,) = test.error
    assert sentence in error.value.replace("\\", "")
    assert not (tmp_path.parent / "outside").exists()
    assert not (tmp_path / "mine").exists()


def test_profile_that_is_none_is_one_sentence(page: Open, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    (error,) = page(tmp_path, profile=str(tmp_path / "bad.json")).error
    assert "is not a profile of this version" in error.value.replace("\\", "")


def test_what_the_command_line_refuses_is_shown_as_its_sentence(page: Open, tmp_path: Path) -> None:
    toy_profile().save(tmp_path / "profiles" / "toy.json")
    test = page(tmp_path, context="999999")
    _fill(test, tmp_path)
    _press(test, "Predict")
    (error,) = test.error
    assert "max_model_len is 999999" in error.value.replace("\\", "")


def test_form_opens_over_results_and_closes_again(page: Open, predicted: Sweep) -> None:
    test = page(predicted.folder.parent)
    _press(test, "New sweep")
    assert "#### New sweep" in _text(test)
    _press(test, "Back to the results")
    assert test.metric


@pytest.mark.parametrize("name", ["iterations", "shapes", "compare"])
def test_sweep_without_a_predicted_cell_is_resumed_and_not_called_impossible(
    page: Open, make_sweep: MakeSweep, tmp_path: Path, name: str
) -> None:
    made = make_sweep(tmp_path / "s", max_num_seqs=[4], max_num_batched_tokens=[64])
    shutil.rmtree(made.folder / "cells")
    test = page(tmp_path, name)
    (said,) = test.error or test.info
    assert "resume it on the page" in said.value


@pytest.mark.parametrize("name", ["sweep", "trust"])
def test_measurements_that_cannot_be_read_are_not_called_missing(
    page: Open, make_sweep: MakeSweep, tmp_path: Path, name: str
) -> None:
    made = make_sweep(tmp_path / "s", 1, max_num_seqs=[4], max_num_batched_tokens=[64])
    for run in made.folder.glob("cells/*/measured-0"):
        (run / "run.json").write_text("[]")
    test = page(tmp_path, name)
    assert "is not what a run writes" in test.warning[0].value
    assert "Nothing" not in _text(test)
    assert "not measured" not in "".join(heading.value for heading in test.markdown)

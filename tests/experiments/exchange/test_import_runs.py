"""Runs of other servers in a results folder: what compare, report, recommend and the dashboard make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_files import detailed, summary
from profiles import toy_profile

from batchtwin.dashboard.results import read_results
from batchtwin.experiments.compare import compare
from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.exchange.import_runs import Missing, check_runs, import_runs
from batchtwin.experiments.recommend import recommend
from batchtwin.experiments.run import load_run
from batchtwin.experiments.sweep import open_sweep
from batchtwin.traces import read_trace


def write(path: Path, record: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
    return path


def bench_sweep(folder: Path, *, concurrencies: tuple[int, ...] = (2,)) -> Path:
    """As ``vllm bench sweep serve`` leaves it: two cells, two runs each, a summary, a warm-up and a failure."""
    for seqs in (2, 4):
        for clients in concurrencies:
            home = folder / "20261130_025504" / f"SERVE--max_num_seqs={seqs}-BENCH--max_concurrency={clients}"
            knobs = {"max_num_seqs": seqs, "max_num_batched_tokens": 64, "max_concurrency": clients}
            records = [summary(run_number=run, label=None, **knobs) for run in (0, 1)]
            records[1]["mean_ttft_ms"] = 320.0
            for record in records:
                write(home / f"run={record['run_number']}.json", record)
            write(home / "summary.json", records)
            write(home / "warmup.json", summary(run_number=-1, **knobs))
            write(home / "run=2.failure.json", {"error": "died"})
    return folder


def test_a_sweep_folder_becomes_measured_cells_beside_predictions(tmp_path: Path) -> None:
    done = import_runs([bench_sweep(tmp_path / "in")], tmp_path / "out", toy_profile())
    (made,) = done.sweeps
    assert made.folder == tmp_path / "out"
    opened = open_sweep(tmp_path / "out")
    assert [(cell.max_num_seqs, cell.max_num_batched_tokens) for cell in opened.measured_cells()] == [(2, 64), (4, 64)]
    for cell in opened.measured_cells():
        assert [run["mean_ttft_ms"] for run in opened.measured_metrics(cell)] == [300.0, 320.0]
        assert opened.measured(cell) == [], "they have no records"
    comparison = compare(opened)
    ttft = comparison.cells[comparison.cells["metric"] == "mean_ttft_ms"]
    assert ttft["measured"].tolist() == [310.0, 310.0]
    assert ttft["repeat_noise_percent"].tolist() == [pytest.approx(100 * 10 / 310)] * 2
    assert comparison.split.empty


def test_what_a_file_does_not_say_stays_unknown_and_is_never_zero(tmp_path: Path) -> None:
    import_runs([bench_sweep(tmp_path / "in")], tmp_path / "out", toy_profile())
    comparison = compare(tmp_path / "out")
    unknown = comparison.cells[comparison.cells["metric"].isin(["p99_e2el_ms", "num_preemptions", "peak_waiting"])]
    assert len(unknown) == 6
    assert unknown["measured"].isna().all()
    assert unknown["error_percent"].isna().all()
    results = read_results(tmp_path / "out")
    assert results.comparison is not None
    assert results.problems == ()
    assert recommend(results.sweep).sentence.startswith("Choose")


def test_an_imported_run_cannot_be_loaded_as_one_with_records(tmp_path: Path) -> None:
    import_runs([bench_sweep(tmp_path / "in")], tmp_path / "out", toy_profile())
    folder = next((tmp_path / "out").glob("cells/*/measured-0"))
    with pytest.raises(ExperimentError, match="was imported: it has metrics, but no records"):
        load_run(folder)


def test_importing_again_adds_nothing(tmp_path: Path) -> None:
    source = bench_sweep(tmp_path / "in")
    for _ in range(2):
        import_runs([source], tmp_path / "out", toy_profile())
    assert len(list((tmp_path / "out").glob("cells/*/measured-*"))) == 4


def test_several_workloads_go_to_a_folder_each(tmp_path: Path) -> None:
    done = import_runs([bench_sweep(tmp_path / "in", concurrencies=(2, 3))], tmp_path / "out", toy_profile())
    names = [made.folder.name for made in done.sweeps]
    assert names == ["max_concurrency=2", "max_concurrency=3"]
    assert [made.spec.scenario.max_concurrency for made in done.sweeps] == [2, 3]


def test_listed_requests_are_replayed_as_they_were_sent(tmp_path: Path) -> None:
    path = write(tmp_path / "run.json", detailed())
    (made,) = import_runs([path], tmp_path / "out", toy_profile()).sweeps
    trace = read_trace(tmp_path / "out" / "trace.csv")
    assert trace.num_prompt_tokens.tolist() == [10, 20, 30, 40]
    assert trace.output_len.tolist() == [3, 3, 2, 2]
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.0, 0.1, 0.2])
    result = made.feasible()[0]
    assert result.metrics["total_input_tokens"] == 100
    assert result.metrics["total_output_tokens"] == 10


def test_totals_alone_are_spread_over_the_requests_and_said(tmp_path: Path) -> None:
    record = summary(num_prompts=3, completed=3, total_output_tokens=10, request_throughput=3.0, request_rate=6.0)
    done = import_runs([write(tmp_path / "run.json", record)], tmp_path / "out", toy_profile())
    trace = read_trace(tmp_path / "out" / "trace.csv")
    assert sorted(trace.output_len.tolist()) == [3, 3, 4]
    assert trace.num_prompt_tokens.sum() == 100
    assert trace.arrival_s[-1] == pytest.approx(3 / 6.0), "as many requests as the rate says, whatever was drawn"
    assert any("mean lengths" in note for note in done.notes)
    assert any("KV blocks are not known" in note for note in done.notes)
    assert any("the runs are of meta-llama/Llama-3.1-8B, the profile of tiny-llama" in note for note in done.notes)


def test_server_parameters_in_the_record_become_the_scenario(tmp_path: Path) -> None:
    extra = {
        "max_model_len": 512,
        "enable_prefix_caching": "True",
        "num-gpu-blocks-override": "77",
        "no_async_scheduling": True,
    }
    (made,) = import_runs([write(tmp_path / "r.json", summary(**extra))], tmp_path / "out", toy_profile()).sweeps
    scenario = made.spec.scenario
    assert (scenario.max_model_len, scenario.enable_prefix_caching, scenario.num_gpu_blocks) == (512, True, 77)
    assert not scenario.async_scheduling


AUTO_TUNE = """hash:0123abcd
max_num_seqs: 128, max_num_batched_tokens: 512, request_rate: inf, e2el: 9000.12, throughput: 40.10, goodput: 40.10
max_num_seqs: 128, max_num_batched_tokens: 1024 does not meet latency requirement 500
max_num_seqs: 256, max_num_batched_tokens: 512, request_rate: 10, e2el: 480.00, throughput: 9.80, goodput: 9.80
max_num_seqs: 256, max_num_batched_tokens: 512, request_rate: 9, e2el: , throughput: , goodput:
best_max_num_seqs: 256, best_num_batched_tokens: 512, best_throughput: 9.80, profile saved in: /x
"""


def test_auto_tune_lines_are_requests_a_second_and_a_p99(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    path.write_text(AUTO_TUNE)
    done = check_runs([path], Missing(input_len=20, output_len=5))
    first, second, empty = (item.row for item in done.rows)
    assert (first.max_num_seqs, first.max_num_batched_tokens) == (128, 512)
    assert first.metrics == {
        "p99_e2el_ms": 9000.12,
        "request_throughput": 40.1,
        "request_goodput": 40.1,
        "num_requests": 1000,
    }
    assert (first.workload.num_prompts, second.workload.num_prompts) == (1000, 100)
    assert second.workload.request_rate == 10.0
    assert set(empty.metrics) == {"num_requests"}
    assert done.left_out == ("result.txt, line 3: no rate met the latency limit, so this cell has no figures",)


def test_auto_tune_is_compared_by_its_request_throughput(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    path.write_text("\n".join(AUTO_TUNE.splitlines()[:2]))
    (made,) = import_runs([path], tmp_path / "out", toy_profile(), missing=Missing(input_len=20, output_len=5)).sweeps
    assert made.spec.objective == "request_throughput"
    assert compare(made).summary.set_index("metric").loc["request_throughput", "num_cells"] == 1
    with pytest.raises(ExperimentError, match="give --input-len, --output-len and --num-prompts"):
        import_runs([path], tmp_path / "other", toy_profile())


def test_a_row_that_cannot_be_true_is_not_stored(tmp_path: Path) -> None:
    good = write(tmp_path / "good.json", summary())
    bad = write(tmp_path / "bad.json", summary(output_throughput=110.0))
    done = import_runs([good, bad], tmp_path / "out", toy_profile())
    assert [item.is_possible for item in done.rows] == [True, False]
    assert len(list((tmp_path / "out").glob("cells/*/measured-*"))) == 1
    with pytest.raises(
        ExperimentError, match=r"None of the 1 runs can be true; the first, bad\.json: output_throughput"
    ):
        import_runs([bad], tmp_path / "other", toy_profile())
    assert not (tmp_path / "other").exists()


ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "knobs": ({"max_num_seqs": None}, "does not say max_num_seqs, which the client cannot know: give --max-num-seqs"),
    "lengths": (
        {"total_input_tokens": None, "total_output_tokens": None},
        "The lengths of its requests are not known",
    ),
}


@pytest.mark.parametrize(("changes", "sentence"), ASKED.values(), ids=ASKED.keys())
def test_what_is_needed_and_missing_is_asked_for(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExperimentError, match=sentence):
        import_runs([write(tmp_path / "r.json", summary(**changes))], tmp_path / "out", toy_profile())


def test_another_workload_is_not_mixed_into_a_folder(tmp_path: Path) -> None:
    import_runs([write(tmp_path / "one.json", summary())], tmp_path / "out", toy_profile())
    other = summary(total_input_tokens=200, total_token_throughput=210.0)
    with pytest.raises(ExperimentError, match="holds results of another workload: choose another folder"):
        import_runs([write(tmp_path / "two.json", other)], tmp_path / "out", toy_profile())


def test_sources_without_a_result_say_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExperimentError, match="no result is in there; known are vllm bench serve JSON"):
        check_runs([tmp_path / "empty"])
    with pytest.raises(ExperimentError, match=r"absent cannot be read \(No such file"):
        check_runs([tmp_path / "absent"])
    with pytest.raises(ExperimentError, match="is no regular file"):
        check_runs(["/dev/null"])


def test_appended_results_are_a_record_a_line(tmp_path: Path) -> None:
    path = tmp_path / "appended.json"
    path.write_text(f"{json.dumps(summary())}\n{json.dumps(summary(max_num_seqs=8))}\nnot json\n")
    done = check_runs([path])
    assert [item.row.max_num_seqs for item in done.rows] == [16, 8]
    assert done.left_out == ("appended.json: a line that is not JSON",)

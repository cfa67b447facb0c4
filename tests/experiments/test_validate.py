"""``validate``: a recorded run predicted from tables; what was known from where; bad input in one sentence."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tables import write_layers, write_run
from typer.testing import CliRunner

from batchtwin.cli import app
from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.recorded import read_recorded_run
from batchtwin.experiments.render_validate import sparkline, write_validation
from batchtwin.experiments.svg import MEASURED, PREDICTED
from batchtwin.experiments.validate import Validation, parse_sets, validate

REAL = "data/llmservingsim_rtxpro6000_llama31_8b"
TARGETS = {
    "TPOT mean": 3.0,
    "E2E mean": 4.0,
    "TTFT mean": 10.0,
    "TTFT P99": 10.0,
    "TTFT mean, 118 requests that did not queue": 15.0,
    "Output throughput": 4.0,
}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("toy")
    return write_layers(base / "profile", skew=True), write_run(base / "run")


@pytest.fixture(scope="module")
def real(shared_path: Callable[[str], Path]) -> Validation:
    return validate(shared_path(f"{REAL}/profile"), shared_path(f"{REAL}/vllm_run"))


def test_the_recorded_run_is_predicted_within_the_targets(real: Validation) -> None:
    errors = {row.metric: row.error_percent for row in real.rows}
    assert {name: errors[name] for name, limit in TARGETS.items() if abs(errors[name]) > limit} == {}


def test_the_recorded_means_are_those_that_the_project_states(real: Validation) -> None:
    """Its README: mean TTFT 7,097.2 ms, mean TPOT 32.5 ms, mean latency 28,200.7 ms."""
    recorded = {row.metric: row.recorded for row in real.rows}
    assert recorded["TTFT mean"] == pytest.approx(7097.2, abs=0.1)
    assert recorded["TPOT mean"] == pytest.approx(32.5, abs=0.05)
    assert recorded["E2E mean"] == pytest.approx(28200.7, abs=0.1)


def test_running_and_waiting_follow_the_recorded_series(real: Validation) -> None:
    timeline = real.timeline
    assert timeline is not None
    assert np.corrcoef(timeline.predicted_waiting, timeline.recorded_waiting)[0, 1] > 0.99
    assert np.corrcoef(timeline.predicted_running, timeline.recorded_running)[0, 1] > 0.99


def test_the_tables_beat_every_null_baseline(real: Validation) -> None:
    ours = {row.metric: abs(row.error_percent) for row in real.rows}
    for rows in real.nulls.values():
        for row in rows:
            if row.metric in ("TTFT mean", "TPOT mean", "E2E mean", "Output throughput"):
                assert ours[row.metric] < abs(row.error_percent)


def test_every_field_says_how_it_was_known(toy: tuple[Path, Path]) -> None:
    done = validate(*toy, {"num_gpu_blocks": 99, "host_fixed_ms": 1})
    origin = {known.name: known.origin for known in done.known}
    assert origin["max_num_seqs"] == "the run's arguments"
    assert origin["num_gpu_blocks"] == "--set"
    assert origin["host"] == "--set"
    assert "0.19" in origin["async_scheduling"]
    assert done.scenario.num_gpu_blocks == 99


def test_blocks_of_the_run_are_taken_and_never_derived(tmp_path: Path, toy: tuple[Path, Path]) -> None:
    stated = write_run(tmp_path / "stated", meta={"cache": {"num_gpu_blocks": 77}, "vllm_version": "0.6.1"})
    done = validate(toy[0], stated)
    assert done.scenario.num_gpu_blocks == 77
    assert not done.scenario.async_scheduling  # off before 0.14
    silent = validate(toy[0], write_run(tmp_path / "silent"))
    assert silent.num_preemptions == 0
    assert any(k.name == "num_gpu_blocks" and "cannot bind" in k.origin for k in silent.known)


def test_fewer_blocks_make_requests_wait(toy: tuple[Path, Path], tmp_path: Path) -> None:
    run = write_run(tmp_path, gap_s=0.0005)
    few, many = (validate(toy[0], run, {"num_gpu_blocks": blocks}) for blocks in (7, 500))
    assert few.predicted.ttft_ms.max() > many.predicted.ttft_ms.max()


def test_ttft_is_counted_from_when_the_loop_saw_the_request(toy: tuple[Path, Path]) -> None:
    run = read_recorded_run(toy[1])
    assert run.sent_s.tolist() == pytest.approx([0.01 * i for i in range(12)])
    done = validate(*toy)
    assert done.recorded.ttft_ms == pytest.approx([20.0] * 12)
    assert (done.predicted.queued_s >= run.sent_s).all()


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["max_num_seqs=abc"], "max_num_seqs"),
        (["num_gpu_blocks=1"], "num_gpu_blocks"),
        (["tensor_parallel_size=4"], "no times for tensor_parallel_size 4"),
        (["tensor_parallel_size=0"], "at least 1"),
        (["host_fixed_ms=-1"], "host_fixed_ms"),
        (["nonsense=1"], "there is no such field"),
        (["model=no/such-model"], "no/such-model"),
        (["max_model_len=20"], "max_model_len"),
    ],
)
def test_bad_settings_are_one_sentence(toy: tuple[Path, Path], sets: list[str], said: str) -> None:
    from batchtwin.scheduler.errors import BatchTwinError

    with pytest.raises(BatchTwinError, match=said):
        validate(*toy, parse_sets(sets))


def test_another_model_than_the_tables_is_refused(toy: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_run(tmp_path, meta={"model": "Qwen/Qwen3-8B"})
    with pytest.raises(ExperimentError, match="served Qwen/Qwen3-8B"):
        validate(toy[0], other)


def test_requests_that_cannot_be_true_are_left_out_and_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    lines = (run / "requests.jsonl").read_text().splitlines()
    broken = json.loads(lines[3]) | {"first_token_ts": 1.0}
    (run / "requests.jsonl").write_text("\n".join([*lines[:3], json.dumps(broken), *lines[4:]]))
    read = read_recorded_run(run)
    assert len(read.sent_s) == 11
    assert any("1 of 12 requests left out (the first in line 4)" in note for note in read.notes)


def test_files_say_what_is_printed(toy: tuple[Path, Path], tmp_path: Path) -> None:
    done = validate(*toy)
    write_validation(done, tmp_path / "out")
    body = json.loads((tmp_path / "out" / "validation.json").read_text())
    with (tmp_path / "out" / "errors.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["metric"] for row in rows] == [row.metric for row in done.rows]
    assert body["errors"][0]["predicted"] == done.rows[0].predicted
    assert (tmp_path / "out" / "timeline.svg").read_text().startswith("<svg")


def test_the_command_prints_the_table_and_ends_well(toy: tuple[Path, Path]) -> None:
    result = CliRunner().invoke(app, ["validate", "--profile", str(toy[0]), "--run", str(toy[1])])
    assert result.exit_code == 0, result.output
    for words in ("Predicted against recorded", "known from", "waiting (0 to"):
        assert words in result.output


def test_a_sparkline_scales_to_the_higher_of_both() -> None:
    assert sparkline(np.array([0.0, 4.0, 8.0]), 8.0) == "▁▅█"
    assert sparkline(np.array([]), 0.0) == ""


def test_the_figures_have_the_dashboards_colours() -> None:
    from batchtwin.dashboard import colors

    assert (PREDICTED, MEASURED) == (colors.PREDICTED, colors.MEASURED)

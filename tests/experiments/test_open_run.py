"""A cell's prediction opened as a run: against what the sweep stored of it, which other code paths computed."""

from __future__ import annotations

from pathlib import Path

import pytest
from profiles import toy_profile
from sweeps import measured_stand_in, tiny_scenario

from batchtwin.experiments import scenario
from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.open_run import open_run
from batchtwin.experiments.sweep import Sweep, sweep
from batchtwin.scheduler.errors import BatchTwinError

ROWS = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{46 + i}.0000000,{20 + i},{5 + i}\n" for i in range(6)
)


@pytest.fixture
def done(tmp_path: Path) -> Sweep:
    (tmp_path / "rows.csv").write_text(ROWS)
    trace = {"source": str(tmp_path / "rows.csv"), "prompt_scale": 1.0, "output_scale": 1.0}
    asked = tiny_scenario(trace=trace)
    return sweep(tmp_path / "s", asked, toy_profile(), max_num_seqs=[2, 4], max_num_batched_tokens=[2, 64])


def _folder(done: Sweep, key: str) -> Path:
    return done.folder / "cells" / key


def test_a_cells_folder_is_its_prediction_with_every_record(done: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(_folder(done, "vllm_v1-seqs4-tokens64"))
    stored = {result.cell.key: result.metrics for result in done.feasible()}
    for folder in (_folder(done, "vllm_v1-seqs2-tokens64"), Path()):
        run = open_run(folder)
        assert run.kind == "predicted"
        metrics = stored[folder.resolve().name]
        assert {name: run.metrics[name] for name in run.metrics} == {name: metrics[name] for name in run.metrics}
        assert len(run.records.requests["arrival_s"]) == 6


def test_a_runs_folder_is_the_run(done: Sweep) -> None:
    cell = done.feasible()[0].cell
    folder = _folder(done, cell.key) / "measured-0"
    measured = measured_stand_in(cell.of(done.spec.scenario), done.profile)
    measured.save(folder)
    assert open_run(folder).kind == "measured"
    assert open_run(folder).metrics == measured.metrics
    assert open_run(folder.parent).kind == "predicted"


def test_a_cell_that_cannot_work_says_why(done: Sweep) -> None:
    with pytest.raises(BatchTwinError, match=r"\(2\) is less than max_num_seqs \(4\)"):
        open_run(_folder(done, "vllm_v1-seqs4-tokens2"))


def test_another_trace_than_was_predicted_is_refused(done: Sweep) -> None:
    Path(done.spec.scenario.trace.source).write_text(ROWS.replace(",20,", ",21,"))
    scenario._load.cache_clear()  # as in another process
    scenario._read.cache_clear()
    with pytest.raises(ExperimentError, match=r"rows.csv has changed since .* predict again into a new folder\."):
        open_run(_folder(done, "vllm_v1-seqs2-tokens64"))


def test_what_is_no_run_says_what_to_give(done: Sweep) -> None:
    with pytest.raises(ExperimentError, match=r"is a sweep: give one of its cells, such as .*seqs2-tokens2\."):
        open_run(done.folder)
    strange = _folder(done, "vllm_v1-seqs2-tokens64").rename(_folder(done, "a_copy"))
    with pytest.raises(ExperimentError, match="a_copy is no cell of the sweep in"):
        open_run(strange)
    with pytest.raises(ExperimentError, match=r"holds no run\.json"):
        open_run(done.folder / "cells")

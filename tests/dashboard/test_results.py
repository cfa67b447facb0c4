from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from batchtwin.dashboard.results import find_sweeps, read_results, stamp
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.sweep import Sweep
from batchtwin.scheduler.errors import BatchTwinError

MakeSweep = Callable[..., Sweep]


def test_sweeps_are_found_two_folders_deep_and_sorted(tmp_path: Path) -> None:
    for name in ("b", "a", "group/c", "group/deeper/d"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "sweep.json").write_text("{}")
    (tmp_path / "notes").mkdir()
    assert list(find_sweeps(tmp_path)) == ["a", "b", "group/c"]


def test_folder_that_is_a_sweep_is_found_by_its_own_name(predicted: Sweep) -> None:
    assert find_sweeps(predicted.folder) == {"only-predicted": predicted.folder}


def test_absent_folder_holds_no_sweeps(tmp_path: Path) -> None:
    assert find_sweeps(tmp_path / "nowhere") == {}


def test_predicted_sweep_has_a_recommendation_and_no_comparison(predicted: Sweep) -> None:
    results = read_results(predicted.folder)
    assert results.comparison is None
    assert results.recommendation is not None
    assert results.problems == ()
    assert results.num_missing == 0


def test_measured_sweep_has_a_comparison_of_the_measured_cells(measured: Sweep) -> None:
    results = read_results(measured)
    assert results.comparison is not None
    rows = results.comparison.cells
    assert rows[rows["metric"] == "mean_ttft_ms"]["num_repeats"].tolist() == [2] * len(measured.to_measure(5))


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 0}', '{"format": 1}'])
def test_broken_or_older_sweep_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(BatchTwinError, match=r"sweep\.json") as caught:
        read_results(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", '{"format": 1}', '{"format": 1, "cell": 3}', '{"format": 7}'])
def test_broken_cell_is_one_sentence_with_its_folder(make_sweep: MakeSweep, tmp_path: Path, text: str) -> None:
    made = make_sweep(tmp_path / "s", max_num_seqs=[4], max_num_batched_tokens=[64])
    (made.folder / "cells" / Cell("vllm_v1", 4, 64).key / "predicted.json").write_text(text)
    with pytest.raises(BatchTwinError, match=str(made.folder)):
        read_results(made.folder)


@pytest.mark.parametrize("changes", [{"metrics": {}}, {"metrics": [1]}, {"metrics": {"output_throughput": "fast"}}])
def test_cell_of_another_shape_is_one_sentence(
    make_sweep: MakeSweep, tmp_path: Path, changes: dict[str, object]
) -> None:
    made = make_sweep(tmp_path / "s", max_num_seqs=[4], max_num_batched_tokens=[64])
    path = made.folder / "cells" / Cell("vllm_v1", 4, 64).key / "predicted.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(BatchTwinError, match="delete its") as caught:
        read_results(made.folder)
    assert str(made.folder) in str(caught.value)


def test_broken_measurement_leaves_the_prediction_to_be_seen(make_sweep: MakeSweep, tmp_path: Path) -> None:
    made = make_sweep(tmp_path / "s", 1, max_num_seqs=[4], max_num_batched_tokens=[64])
    for run in made.folder.glob("cells/*/measured-0"):
        (run / "iterations.parquet").write_bytes(b"not parquet")
    results = read_results(made.folder)
    assert results.comparison is None
    assert results.recommendation is not None
    (problem,) = results.problems
    assert "measurements cannot be shown" in problem


@pytest.mark.parametrize("metrics", [None, {}, {"output_throughput": "fast"}])
def test_measurement_without_its_metrics_is_one_sentence(
    make_sweep: MakeSweep, tmp_path: Path, metrics: dict[str, object] | None
) -> None:
    made = make_sweep(tmp_path / "s", 1, max_num_seqs=[4], max_num_batched_tokens=[64])
    for head in made.folder.glob("cells/*/measured-0/run.json"):
        kept = json.loads(head.read_text())
        kept.pop("metrics")
        head.write_text(json.dumps(kept if metrics is None else kept | {"metrics": metrics}))
    (problem,) = read_results(made.folder).problems
    assert "delete its" in problem


def test_sweep_without_a_feasible_cell_says_so(make_sweep: MakeSweep, tmp_path: Path) -> None:
    made = make_sweep(tmp_path / "s", max_num_seqs=[4], max_num_batched_tokens=[64])
    for path in made.folder.glob("cells/*/predicted.json"):
        head = json.loads(path.read_text()) | {
            "status": "infeasible",
            "reason": "too small",
            "metrics": {},
            "nulls": {},
        }
        path.write_text(json.dumps(head))
    results = read_results(made.folder)
    assert results.recommendation is None
    assert "feasible" in results.problems[0]


def test_unfinished_sweep_knows_how_many_cells_are_missing(make_sweep: MakeSweep, tmp_path: Path) -> None:
    made = make_sweep(tmp_path / "s", max_num_seqs=[4, 8], max_num_batched_tokens=[64])
    (made.folder / "cells" / Cell("vllm_v1", 8, 64).key / "predicted.json").unlink()
    assert read_results(made.folder).num_missing == 1


def test_stamp_changes_when_a_cell_is_measured(make_sweep: MakeSweep, tmp_path: Path) -> None:
    made = make_sweep(tmp_path / "s", max_num_seqs=[4], max_num_batched_tokens=[64])
    before = stamp(made.folder)
    assert before == stamp(made.folder)
    make_sweep(tmp_path / "s", 1, max_num_seqs=[4], max_num_batched_tokens=[64])
    assert stamp(made.folder) != before

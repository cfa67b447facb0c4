"""Runs on disk: they come back as they were, and whatever is wrong with a folder is one sentence."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profiles import toy_profile
from records_digest import digest
from sweeps import tiny_scenario

from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.replay import predict
from batchtwin.experiments.run import Run, load_run


@pytest.fixture(scope="module")
def run() -> Run:
    return predict(tiny_scenario(num_clients=3, slo={"ttft_ms": 20.0}), toy_profile())


def test_a_run_comes_back_as_it_was(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "deep" / "run")
    loaded = load_run(tmp_path / "deep" / "run")
    assert digest(loaded.records) == digest(run.records)
    assert (loaded.scenario, loaded.kind, loaded.num_gpu_blocks) == (run.scenario, "predicted", 200)
    assert loaded.provenance == run.provenance
    assert json.dumps(loaded.metrics) == json.dumps(run.metrics)
    assert "request_goodput" in loaded.metrics


def test_a_run_says_where_it_comes_from(run: Run) -> None:
    assert run.provenance["profile"] == toy_profile().hash()
    assert run.provenance["cost_model"] == "fitted"
    assert {"batchtwin", "python", "machine", "commit", "simpy", "numpy"} <= set(run.provenance)


def test_folders_may_be_strings(run: Run, tmp_path: Path) -> None:
    run.save(str(tmp_path / "run"))
    assert load_run(str(tmp_path / "run")).metrics["completed"] == 12


def test_the_current_folder_can_hold_a_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run.save(Path())
    assert load_run(tmp_path / "here").metrics["completed"] == 12


def test_a_run_replaces_an_earlier_run(run: Run, tmp_path: Path) -> None:
    predict(tiny_scenario(), toy_profile()).save(tmp_path / "run")
    run.save(tmp_path / "run")
    assert load_run(tmp_path / "run").scenario == run.scenario
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_never_replaces_anything_else(run: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ExperimentError, match=r"holds thesis.txt, which is no part of a run: choose another folder"):
        run.save(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(ExperimentError, match="cannot be written"):
        run.save(tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_disk_that_fills_is_one_sentence_and_leaves_the_earlier_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(tmp_path / "run")

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(
            ExperimentError, match=r"run cannot be written \(No space left on device\): make room"
        ) as caught:
            predict(tiny_scenario(), toy_profile()).save(tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert load_run(tmp_path / "run").scenario == run.scenario
    predict(tiny_scenario(), toy_profile()).save(tmp_path / "run")
    assert load_run(tmp_path / "run").scenario == tiny_scenario()


def _broken(folder: Path, name: str, content: bytes | None) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("run.json", None, "holds no run.json: it is not a folder of results"),
        ("run.json", b'{"format": 1, "kind"', "cannot be read"),
        ("run.json", b"\xff\xfe", "cannot be read"),
        ("run.json", b"[1, 2]", "is not what a run writes"),
        ("run.json", b"{}", "is not what a run writes"),
        ("run.json", b'{"format": 1}', "is broken"),
        ("run.json", b'{"format": 0}', "of results format 0, this version reads format 1"),
        ("run.json", b'{"format": 99}', "of results format 99, this version reads format 1"),
        ("scenario.json", None, "cannot be read"),
        ("scenario.json", b"{", "is not a scenario"),
        ("requests.parquet", None, "is broken"),
        ("iterations.parquet", b"PAR1 and no more", "is broken"),
        ("gaps.parquet", b"", "is broken"),
    ],
)
def test_a_broken_folder_is_one_sentence(
    run: Run, tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    folder = tmp_path / "run"
    run.save(folder)
    _broken(folder, name, content)
    with pytest.raises(ExperimentError, match=sentence) as caught:
        load_run(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_without_a_column_is_one_sentence(run: Run, tmp_path: Path) -> None:
    from pyarrow import parquet

    run.save(tmp_path / "run")
    path = tmp_path / "run" / "iterations.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns(["bound"]), path)
    with pytest.raises(ExperimentError, match=r"is broken \('bound'\): delete the folder and run it again"):
        load_run(tmp_path / "run")


def test_a_folder_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "absent", tmp_path, tmp_path / "file"):
        with pytest.raises(ExperimentError, match=r"holds no run\.json: it is not a folder of results"):
            load_run(path)


def test_tables_can_be_read_by_anybody(run: Run, tmp_path: Path) -> None:
    """Column by column with the reader's own conversion, NaN and negative numbers included."""
    import pandas as pd

    run.save(tmp_path / "run")
    for name, columns in (("requests", run.records.requests), ("iterations", run.records.iterations)):
        table = pd.read_parquet(tmp_path / "run" / f"{name}.parquet")
        assert list(table.columns) == list(columns)
        for column, values in columns.items():
            assert np.array_equal(table[column].to_numpy(), values), column


def test_predicting_and_saving_need_neither_pandas_nor_torch(tmp_path: Path) -> None:
    toy_profile().save(tmp_path / "profile.json")
    script = (
        "import sys\n"
        "from batchtwin import replay\n"
        "run = replay(trace={'source': 'azure-conv-like:5', 'prompt_scale': 0.1}, profile=sys.argv[1])\n"
        "run.save(sys.argv[2])\n"
        "print(*({'pandas', 'torch', 'scipy', 'streamlit'} & set(sys.modules)), run.metrics['completed'])\n"
    )
    arguments: list[Any] = [sys.executable, "-c", script, tmp_path / "profile.json", tmp_path / "run"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5"]

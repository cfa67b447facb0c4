"""Runs that are written while they are made: the same run, less memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from profiles import toy_profile
from sweeps import tiny_scenario

from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.replay import predict, replay
from batchtwin.experiments.run import load_run
from batchtwin.experiments.spill import predict_to

PROFILE = toy_profile()


def test_a_streamed_run_is_the_run_that_is_saved_at_the_end(tmp_path: Path) -> None:
    streamed = predict_to(tmp_path / "streamed", tiny_scenario(), PROFILE)
    predict(tiny_scenario(), PROFILE).save(tmp_path / "saved")
    for name in ("run.json", "scenario.json"):
        assert (tmp_path / "streamed" / name).read_bytes() == (tmp_path / "saved" / name).read_bytes()
    ours, theirs = load_run(tmp_path / "streamed"), load_run(tmp_path / "saved")
    for table in ("requests", "iterations"):
        for name, values in getattr(theirs.records, table).items():
            assert getattr(ours.records, table)[name].tobytes() == values.tobytes(), name
    assert np.array_equal(ours.records.gaps, theirs.records.gaps)
    assert streamed.metrics == pytest.approx(theirs.metrics, rel=0, abs=0, nan_ok=True)
    assert not (tmp_path / "streamed.part").exists()


def test_the_columns_of_a_streamed_run_are_read_where_it_lies(tmp_path: Path) -> None:
    run = replay(tiny_scenario(), profile=PROFILE, stream_to=tmp_path / "run")
    assert len(run.records.requests["arrival_s"]) == 12
    assert set(run.records.iterations) == set(load_run(tmp_path / "run").records.iterations)
    with pytest.raises(KeyError):
        run.records.iterations["no_such_column"]


def test_what_cannot_be_streamed_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="for one replica only, but num_replicas is 2"):
        predict_to(tmp_path / "run", tiny_scenario(num_replicas=2), PROFILE)
    with pytest.raises(ExperimentError, match="Only a prediction is written while it goes"):
        replay(tiny_scenario(), profile=PROFILE, measured=True, stream_to=tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(ExperimentError, match=r"holds notes\.txt, which is no part of a run"):
        predict_to(tmp_path / "other", tiny_scenario(), PROFILE)


MEMORY = """
import json, resource, sys
sys.path[:0] = json.loads(sys.argv[2])
from profiles import toy_profile
from sweeps import tiny_scenario
from batchtwin.experiments.spill import predict_to
scenario = tiny_scenario(trace={"source": "azure-conv-like:2000", "repeat": int(sys.argv[3])})
predict_to(sys.argv[1], scenario, toy_profile())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@pytest.mark.full
def test_memory_grows_far_less_than_the_trace(tmp_path: Path) -> None:
    """Peak MiB at 2,000 and at 50 times as many requests: what grows is the trace's own columns and the few that the
    metrics read back (about 0.2 KiB a request), not 27 columns an iteration and 9 a request as Python objects."""
    peaks = [float(measure_peak(tmp_path / str(repeat), repeat)) for repeat in (1, 50)]
    assert peaks[1] - peaks[0] < 98_000 * 1.5 / 1024


def measure_peak(folder: Path, repeat: int) -> str:
    command = [sys.executable, "-c", MEMORY, str(folder), json.dumps(sys.path), str(repeat)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

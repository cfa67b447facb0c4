from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from batchtwin.dashboard import jobs as module
from batchtwin.dashboard.jobs import Job, Jobs, Progress, eta_s, measured_cells, predicted_cells, seconds_of
from batchtwin.dashboard.watch import in_words


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Job]:
    """Starts a Python program in the place of the command line."""
    monkeypatch.setattr(module, "executable", lambda command: [sys.executable, "-c", *command])
    jobs = Jobs()

    def run(program: str) -> Job:
        return jobs.start("sweep", tmp_path, tmp_path / "target", [program], lambda: (1, 4))

    return run


def _end(job: Job) -> Job:
    job.process.wait(timeout=20)
    return job


def test_job_that_ends_well_has_no_error_and_keeps_its_output(start: Callable[[str], Job]) -> None:
    job = _end(start("print('all done')"))
    assert not job.is_running
    assert job.error is None
    assert job.output().splitlines()[-1] == "all done"
    assert job.output().startswith("$ batchtwin ")


def test_failing_job_says_the_command_lines_own_sentence(start: Callable[[str], Job]) -> None:
    job = _end(start("import sys; print('noise'); print('batchtwin: The pool is too small.'); sys.exit(1)"))
    assert job.error == "The pool is too small."


def test_job_that_dies_without_a_word_says_where_its_output_is(start: Callable[[str], Job]) -> None:
    job = _end(start("import os; os._exit(9)"))
    assert job.error is not None
    assert "status 9" in job.error
    assert str(job.log) in job.error


def test_cancelled_job_ends_and_is_no_error(start: Callable[[str], Job]) -> None:
    job = start("import time; time.sleep(60)")
    assert job.is_running
    job.cancel()
    _end(job)
    assert job.cancelled
    assert job.error is None


def test_one_folder_has_one_job_at_a_time(start: Callable[[str], Job]) -> None:
    first = start("import time; time.sleep(60)")
    assert start("print('second')") is first
    first.cancel()
    _end(first)
    assert _end(start("print('second')")) is not first


def test_time_left_follows_the_pace_of_what_this_job_did() -> None:
    assert eta_s(30.0, finished=3, left=6) == 60.0
    assert eta_s(30.0, finished=0, left=6) is None
    assert eta_s(30.0, finished=13, left=-1) is None


def test_words_tell_how_far_and_what_a_calibration_does_after_its_time() -> None:
    assert in_words("sweep", Progress(3, 30, 10.0, 90.0)) == "Predicting: 3 of 30 cells, about 2 min left"
    assert in_words("measure", Progress(0, 16, 10.0, None)) == "Measuring: 0 of 16 runs"
    assert in_words("calibrate", Progress(70, 60, 70.0, None)).startswith("Calibrating: the 60 s are used")


def test_latest_job_of_a_kind_is_the_one_started_last(start: Callable[[str], Job], tmp_path: Path) -> None:
    jobs = Jobs()
    first, second = (
        _end(jobs.start("calibrate", tmp_path, tmp_path / name, ["pass"], lambda: (0, 1))) for name in "ab"
    )
    assert jobs.latest("calibrate") is second
    again = _end(jobs.start("calibrate", tmp_path, first.target, ["pass"], lambda: (0, 1)))
    assert jobs.latest("calibrate") is again
    assert jobs.latest("sweep") is None


def test_progress_counts_what_was_there_before_but_not_for_the_pace(start: Callable[[str], Job]) -> None:
    job = _end(start("pass"))
    now = iter([100.0])
    job.clock, job.count, job._began = lambda: next(now), lambda: (5, 10), (80.0, 4)
    progress = job.progress()
    assert (progress.done, progress.total, progress.share) == (5, 10, 0.5)
    assert progress.eta_s == 100.0  # one cell in 20 s, five are left


def test_cells_are_counted_on_disk(tmp_path: Path) -> None:
    for cell in ("a", "b"):
        (tmp_path / "cells" / cell / "measured-0").mkdir(parents=True)
        (tmp_path / "cells" / cell / "predicted.json").touch()
    (tmp_path / "cells" / "a" / "measured-0" / "run.json").touch()
    assert predicted_cells(tmp_path, 6)() == (2, 6)
    assert measured_cells(tmp_path, 4)() == (1, 4)


def test_minutes_are_counted_in_seconds() -> None:
    times = iter([10.0, 25.0])
    assert seconds_of(2, clock=lambda: next(times))() == (15.0, 120.0)


def test_all_that_runs_ends_with_the_server(start: Callable[[str], Job], tmp_path: Path) -> None:
    jobs = Jobs()
    job = jobs.start("sweep", tmp_path, tmp_path / "other", ["import time; time.sleep(60)"], lambda: (0, 1))
    assert jobs.running == [job]
    jobs.cancel_all()
    deadline = time.monotonic() + 20
    while jobs.running and time.monotonic() < deadline:
        time.sleep(0.05)
    assert jobs.running == []

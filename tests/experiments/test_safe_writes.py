"""Files are written whole or not at all, and a place that cannot be written is found before the work is done."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from profiles import toy_profile

from batchtwin.experiments.calibrate import calibrate
from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.run import check_writable, write_whole
from batchtwin.experiments.scenario import TraceSpec
from batchtwin.sim.cost.profile import ProfileError
from batchtwin.traces import TraceError


def _full_disk(self: Path, text: str, **_: object) -> int:
    with self.open("w") as file:
        file.write(text[: len(text) // 2])
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_what_stood_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, profile = tmp_path / "report.html", tmp_path / "profile.json"
    write_whole(report, "the good one")
    toy_profile().save(profile)
    before = profile.read_bytes()
    monkeypatch.setattr(Path, "write_text", _full_disk)
    with pytest.raises(ExperimentError, match="No space left on device"):
        write_whole(report, "the new one")
    with pytest.raises(ProfileError, match="No space left on device"):
        toy_profile(block_size=32).save(profile)
    assert report.read_text() == "the good one"
    assert profile.read_bytes() == before


def test_an_unwritable_place_is_found_beforehand_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="it is a folder"):
        check_writable(tmp_path)
    check_writable(tmp_path / "new" / "profile.json")
    assert not (tmp_path / "new" / "profile.json").exists()
    kept = tmp_path / "kept.json"
    kept.write_text("kept")
    check_writable(kept)
    assert kept.read_text() == "kept"


@pytest.mark.parametrize("minutes", [0.0, -1.0, 0.05, float("nan"), float("inf")])
def test_calibrating_takes_time(minutes: float) -> None:
    with pytest.raises(ExperimentError, match=r"give at least 0\.5 \(a warm-up and three rounds"):
        calibrate(minutes=minutes)


HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def test_rows_without_output_are_left_out_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,5,6\n4,7,0\n9,8,9\n")
    with pytest.raises(TraceError, match=r"trace\.drop_zero_output=true"):
        TraceSpec(source=str(path)).load()
    assert TraceSpec(source=str(path), drop_zero_output=True).load().num_prompt_tokens.tolist() == [5, 8]


def test_rows_that_go_back_in_time_are_sorted_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,5,6\n9,7,3\n4,8,9\n")
    with pytest.raises(TraceError, match=r"trace\.sort=true"):
        TraceSpec(source=str(path)).load()
    assert TraceSpec(source=str(path), sort=True).load().num_prompt_tokens.tolist() == [5, 8, 7]

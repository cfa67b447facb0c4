"""Rule 10: policy vllm_v1 reproduces schedules recorded from the real vLLM, step for step, block id for block id."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.verify import first_difference, load_golden

DATA = Path(__file__).resolve().parent.parent / "data" / "vllm-0.33.0"


def test_all_25_recordings_are_here() -> None:
    assert len(list(DATA.glob("*.json"))) == 25


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_rule_10_recorded_schedule_is_reproduced(path: Path) -> None:
    assert first_difference(load_golden(path)) is None


def test_a_changed_recording_is_told_apart_in_words() -> None:
    golden = load_golden(DATA / "decode_only.json")
    changed = copy.deepcopy(golden)
    changed["steps"][3]["blocks"] = {"d1": [63]}
    assert first_difference(changed).startswith("step 3: new blocks of request d1: expected")
    changed = copy.deepcopy(golden)
    changed["steps"][2]["free"] += 1
    assert first_difference(changed).startswith("step 2: free blocks after schedule()")
    changed = copy.deepcopy(golden)
    changed["steps"].pop()
    assert "the recording has ended" in first_difference(changed)


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"config": {}}')
    with pytest.raises(ExperimentError, match="has no 'requests'"):
        load_golden(tmp_path / "x.json")

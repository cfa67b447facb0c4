"""A device that is not there is refused before torch is imported; memory that runs out costs one cell, not a sweep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from profiles import toy_profile
from sweeps import measured_stand_in, tiny_scenario

from batchtwin.executor.errors import OutOfMemory
from batchtwin.experiments import measure, preflight
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.run import Run
from batchtwin.experiments.scenario import Scenario
from batchtwin.experiments.sweep import Sweep, sweep

NO_GPU = not any(preflight._can_load(driver) for driver in preflight.DRIVERS)


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU here")
@pytest.mark.parametrize("command", [["calibrate"], ["replay", "--measured", "--trace", "azure-conv-like:4"]])
def test_the_command_line_refuses_cuda_without_importing_torch(command: list[str], tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from batchtwin.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *command, "--device", "cuda"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no driver of a GPU" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that has memory for at most two sequences."""

    class SmallDevice:
        @classmethod
        def of(cls, scenario: Scenario) -> SmallDevice:
            return cls()

        def measure(self, scenario: Scenario) -> Run:
            if scenario.max_num_seqs > 2:
                raise OutOfMemory("The memory of cuda ran out: lower num_gpu_blocks.")
            return measured_stand_in(scenario, toy_profile())

    monkeypatch.setattr(measure, "Device", SmallDevice)


def _sweep(folder: Path) -> Sweep:
    return sweep(
        folder, tiny_scenario(), toy_profile(), max_num_seqs=(2, 4), max_num_batched_tokens=(64,), measure="all"
    )


@pytest.mark.usefixtures("small_device")
def test_a_cell_without_memory_is_marked_and_the_sweep_goes_on(tmp_path: Path) -> None:
    done = _sweep(tmp_path / "sweep")
    assert done.measured_cells() == [Cell("vllm_v1", 2, 64)]
    refused = done.not_measured()
    assert {cell.max_num_seqs for cell in refused} == {4, 128}  # 128: vLLM's default, which a sweep adds
    assert refused[Cell("vllm_v1", 4, 64)] == "The memory of cuda ran out: lower num_gpu_blocks."


@pytest.mark.usefixtures("small_device")
def test_a_cell_that_fits_later_is_no_longer_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _sweep(tmp_path / "sweep")
    monkeypatch.setattr(measure.Device, "measure", lambda self, scenario: measured_stand_in(scenario, toy_profile()))
    done = _sweep(tmp_path / "sweep")
    assert done.not_measured() == {}
    assert len(done.measured_cells()) == 3

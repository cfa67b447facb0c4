"""The command lines that the page starts, held against the command line itself: what is asked must be what is swept."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from profiles import toy_profile

from batchtwin.cli import app
from batchtwin.dashboard.commands import SweepOrder, calibrate_command, numbers, resume_command, shown
from batchtwin.dashboard.errors import DashboardError
from batchtwin.experiments.scenario import Scenario, TraceSpec
from batchtwin.experiments.sweep import Sweep, open_sweep

SCENARIO = Scenario(
    trace=TraceSpec(num_requests=20, prompt_scale=0.1, output_scale=0.1, rate_scale=3.5, max_prompt_tokens=300, seed=3),
    num_gpu_blocks=600,
    max_model_len=512,
    enable_prefix_caching=True,
    watermark=0.05,
    preemption_mode="swap",
    num_cpu_blocks=32,
    slo={"ttft_ms": 500.0, "e2el_ms": 9000.0},
    seed=3,
)


@pytest.fixture
def order(tmp_path: Path) -> SweepOrder:
    toy_profile().save(tmp_path / "toy.json")
    return SweepOrder("mine", str(tmp_path / "toy.json"), SCENARIO, "4 8", "64", ("vllm_v1", "prefill_first"))


def _run(command: list[str]) -> Any:
    return app(command, standalone_mode=False)


def test_sweep_of_the_command_is_the_scenario_that_was_asked(order: SweepOrder, tmp_path: Path) -> None:
    _run(order.command(tmp_path))
    spec = open_sweep(tmp_path / "mine").spec
    assert spec.scenario == SCENARIO.with_(threads=1)  # the profile's, since none were asked for
    assert spec.policies == ("vllm_v1", "prefill_first")
    assert (spec.max_num_seqs, spec.max_num_batched_tokens) == ((4, 8), (64,))
    assert spec.objective == "request_goodput"  # an SLO is given


@pytest.mark.parametrize("threads", [None, 1])
def test_resuming_goes_on_with_the_very_same_sweep(order: SweepOrder, tmp_path: Path, threads: int | None) -> None:
    order = dataclasses.replace(order, scenario=SCENARIO.with_(threads=threads), policies=("vllm_v1",))
    _run(order.command(tmp_path))
    made = open_sweep(tmp_path / "mine")
    for path in made.folder.glob("cells/*seqs8*/predicted.json"):
        path.unlink()
    _run(resume_command(made))
    assert open_sweep(tmp_path / "mine").spec == made.spec
    assert len(made.predicted()) == 3  # 4 and 8 sequences, and vLLM's default


def test_budget_in_bytes_is_asked_for_as_such(tmp_path: Path) -> None:
    toy_profile().save(tmp_path / "toy.json")
    scenario = SCENARIO.with_(kv_memory_bytes=2**28, slo={})
    order = SweepOrder("b", str(tmp_path / "toy.json"), scenario, "4", "64", ("vllm_v1",))
    _run(order.command(tmp_path))
    found = open_sweep(tmp_path / "b").spec.scenario
    assert (found.kv_memory_bytes, found.num_gpu_blocks) == (2**28, None)


def test_measuring_names_cells_and_repeats(predicted: Sweep) -> None:
    command = resume_command(predicted, measure=4, repeats=2)
    assert command[-4:] == ["--measure", "4", "--repeats", "2"]


def test_calibration_is_of_the_scenarios_model_and_pool(tmp_path: Path) -> None:
    command = calibrate_command(tmp_path / "p.json", SCENARIO, minutes=0.5, threads=2)
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--model"] == "tiny-llama"
    assert options["--num-gpu-blocks"] == "600"
    assert (options["--minutes"], options["--threads"]) == ("0.5", "2")


def test_command_can_be_pasted_into_a_shell() -> None:
    assert shown(["sweep", "a b", "--set", 'slo={"x": 1}']) == "batchtwin sweep 'a b' --set 'slo={\"x\": 1}'"


@pytest.mark.parametrize(("text", "values"), [("4, 8,16", [4, 8, 16]), ("4 8", [4, 8]), ("7;", [7])])
def test_numbers_are_read_however_they_are_separated(text: str, values: list[int]) -> None:
    assert numbers(text, "max_num_seqs") == values


@pytest.mark.parametrize("text", ["", " , ", "4.5", "-1", "0", "many", "9" * 30, "١"])
def test_what_is_no_grid_is_refused_by_the_knobs_name(text: str) -> None:
    with pytest.raises(DashboardError, match="max_num_seqs needs whole numbers"):
        numbers(text, "max_num_seqs")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 65, "a b"])
def test_name_that_would_leave_the_results_folder_is_refused(order: SweepOrder, tmp_path: Path, name: str) -> None:
    with pytest.raises(DashboardError, match="no name for a folder"):
        dataclasses.replace(order, name=name).command(tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"profile": ""}, "needs a profile"), ({"policies": ()}, "needs a policy")],
)
def test_order_that_lacks_something_is_one_sentence(
    order: SweepOrder, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DashboardError, match=sentence):
        dataclasses.replace(order, **changes).command(tmp_path)

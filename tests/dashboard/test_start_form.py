from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from profiles import toy_profile

from batchtwin.dashboard.errors import DashboardError
from batchtwin.dashboard.start_form import Order, numbers
from batchtwin.experiments.scenario import TraceSpec
from batchtwin.scheduler.errors import BatchTwinError
from batchtwin.traces import TraceError


@pytest.fixture
def order(tmp_path: Path) -> Order:
    toy_profile().save(tmp_path / "toy.json")
    trace = TraceSpec(num_requests=20, prompt_scale=0.1, output_scale=0.1)
    profile = str(tmp_path / "toy.json")
    return Order("mine", profile, trace, 600, "4", "64", ("vllm_v1", "prefill_first"), {"ttft_ms": 500.0}, 1)


def test_order_takes_model_device_and_block_size_from_the_profile(order: Order, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    made = order.run(tmp_path / "results", lambda _, done, total: seen.append((done, total)))
    scenario, profile = made.spec.scenario, toy_profile()
    assert (scenario.model, scenario.dtype, scenario.device) == ("tiny-llama", "float32", "cpu")
    assert (scenario.block_size, scenario.max_model_len) == (profile.block_size, profile.model.max_model_len)
    assert made.spec.policies == ("vllm_v1", "prefill_first")
    assert made.spec.objective == "request_goodput"  # an SLO is given
    assert seen[0] == (0, 4)
    assert seen[-1] == (4, 4)


@pytest.mark.parametrize(("text", "values"), [("4, 8,16", [4, 8, 16]), ("4 8", [4, 8]), ("7;", [7])])
def test_numbers_are_read_however_they_are_separated(text: str, values: list[int]) -> None:
    assert numbers(text, "max_num_seqs") == values


@pytest.mark.parametrize("text", ["", " , ", "4.5", "-1", "0", "many", "9" * 30, "١"])
def test_what_is_no_grid_is_refused_by_the_knobs_name(text: str) -> None:
    with pytest.raises(DashboardError, match="max_num_seqs needs whole numbers"):
        numbers(text, "max_num_seqs")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 65, "a b"])
def test_name_that_would_leave_the_results_folder_is_refused(order: Order, tmp_path: Path, name: str) -> None:
    with pytest.raises(DashboardError, match="no name for a folder"):
        dataclasses.replace(order, name=name).run(tmp_path, lambda *_: None)


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"profile": ""}, DashboardError, "needs a profile"),
        ({"profile": "nowhere.json"}, BatchTwinError, "nowhere.json cannot be read"),
        ({"trace": TraceSpec(source="no-such-trace")}, TraceError, "neither a file nor a generated trace"),
    ],
)
def test_bad_inputs_are_one_sentence(
    order: Order, tmp_path: Path, changes: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        dataclasses.replace(order, **changes).run(tmp_path, lambda *_: None)  # type: ignore[arg-type]


def test_another_sweep_of_the_same_name_is_refused(order: Order, tmp_path: Path) -> None:
    order.run(tmp_path, lambda *_: None)
    with pytest.raises(BatchTwinError, match="holds another sweep"):
        dataclasses.replace(order, num_gpu_blocks=700).run(tmp_path, lambda *_: None)

"""From the words of a command line to a scenario."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from profiles import toy_profile
from tables import write_layers

from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.options import (
    parse_list,
    parse_measure,
    parse_slo,
    profile_from_options,
    scenario_from_options,
)
from batchtwin.experiments.scenario import Scenario, TraceSpec
from batchtwin.sim.cost.features import Features
from batchtwin.sim.cost.profile import ModelFacts, Profile
from batchtwin.sim.cost.tables.csv_table import TableError

STEP = Features(64, 64, 64 * 1024, 0, 0, 0.0, 64, 0, 64)

UNSAID: dict[str, Any] = {
    "profile": None,
    "trace": "azure-conv-like",
    "requests": None,
    "rate_scale": 1.0,
    "prompt_scale": 1.0,
    "output_scale": 1.0,
    "max_prompt_tokens": None,
    "max_output_tokens": None,
    "offline": False,
    "clients": None,
    "model": None,
    "dtype": None,
    "device": None,
    "threads": None,
    "policy": "vllm_v1",
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "max_model_len": 4096,
    "num_gpu_blocks": None,
    "kv_memory_bytes": None,
    "slo": None,
    "fields": None,
    "seed": 0,
}


def scenario(**options: Any) -> Scenario:
    return scenario_from_options({**UNSAID, **options})


@pytest.fixture
def other_profile(tmp_path: Path) -> Path:
    """A profile of another model in another type, on two threads, with blocks of 32."""
    profile: Profile = toy_profile(block_size=32)
    model: ModelFacts = profile.model.model_copy(update={"name": "other", "dtype": "bfloat16"})
    device = profile.device.model_copy(update={"threads": 2})
    path = tmp_path / "profile.json"
    profile.model_copy(update={"model": model, "device": device}).save(path)
    return path


def test_options_that_are_not_given_are_the_scenarios_own_defaults() -> None:
    assert scenario() == Scenario()


def test_every_option_reaches_its_field() -> None:
    said = scenario(
        trace="azure-conv-like:30",
        requests=20,
        rate_scale=2.0,
        prompt_scale=0.5,
        output_scale=0.25,
        max_prompt_tokens=100,
        max_output_tokens=9,
        offline=True,
        clients=3,
        model="m",
        dtype="float16",
        device="cuda",
        threads=2,
        policy="prefill_first",
        max_num_seqs=5,
        max_num_batched_tokens=6,
        max_model_len=7,
        num_gpu_blocks=8,
        slo=["ttft_ms=500", "tpot_ms=5e1"],
        fields=["think_s=0.5", "enable_chunked_prefill=false", "default_cell=llm_class", "trace.start=4"],
        seed=9,
    )
    trace = TraceSpec(
        source="azure-conv-like:30",
        start=4,
        num_requests=20,
        prompt_scale=0.5,
        output_scale=0.25,
        max_prompt_tokens=100,
        max_output_tokens=9,
        rate_scale=2.0,
        offline=True,
        seed=9,
    )
    assert said == Scenario(
        trace=trace,
        model="m",
        dtype="float16",
        device="cuda",
        threads=2,
        policy="prefill_first",
        max_num_seqs=5,
        max_num_batched_tokens=6,
        max_model_len=7,
        num_gpu_blocks=8,
        num_clients=3,
        think_s=0.5,
        enable_chunked_prefill=False,
        default_cell="llm_class",
        slo={"ttft_ms": 500.0, "tpot_ms": 50.0},
        seed=9,
    )


def test_without_a_model_the_profile_says_model_dtype_threads_and_block_size(other_profile: Path) -> None:
    said = scenario(profile=other_profile)
    assert (said.model, said.dtype, said.device) == ("other", "bfloat16", "cpu")
    assert (said.threads, said.block_size) == (2, 32)


def test_what_is_asked_for_is_never_replaced_by_the_profiles(other_profile: Path) -> None:
    """So that the profile is refused, not used for something else."""
    assert scenario(profile=other_profile, dtype="float16").dtype == "float16"
    assert scenario(profile=other_profile, device="cuda").device == "cuda"
    assert scenario(profile=other_profile, threads=7).threads == 7
    assert scenario(profile=other_profile, model="mine").model == "mine"
    assert scenario(profile=other_profile, fields=["block_size=8"]).block_size == 8


def test_a_memory_budget_takes_the_place_of_a_number_of_blocks() -> None:
    said = scenario(kv_memory_bytes=10**9)
    assert (said.num_gpu_blocks, said.kv_memory_bytes) == (None, 10**9)
    with pytest.raises(ExperimentError, match="not both"):
        scenario(kv_memory_bytes=10**9, num_gpu_blocks=100)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"fields": ["think_s"]}, "--set think_s: give field=value, such as enable_chunked_prefill=false."),
        ({"fields": ["nothing=1"]}, "there is no field nothing"),
        ({"fields": ["trace.nothing=1"]}, "there is no field trace.nothing"),
        ({"fields": ["slo.ttft_ms=1"]}, "there is no field slo.ttft_ms"),
        ({"fields": ["trace=5"]}, "trace is 5, but it must be an object"),
        ({"fields": ["trace=5", "trace.start=1"]}, "trace"),
        ({"fields": ["think_s=soon"]}, 'think_s is "soon", but it must be a number'),
        ({"slo": ["ttft_ms"]}, "--slo ttft_ms: give a name and a limit in ms, such as ttft_ms=500."),
        ({"slo": ["ttft_ms=fast"]}, "--slo ttft_ms=fast: give a name and a limit"),
        ({"slo": ["speed=3"]}, "no SLO 'speed'; known are ttft_ms"),
        ({"clients": 0}, "num_clients is 0"),
        ({"requests": 0}, "trace.num_requests is 0"),
    ],
)
def test_a_word_that_makes_no_sense_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        scenario(**options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lists_measures_and_slos() -> None:
    assert parse_list("--seqs", "8, 16,32") == [8, 16, 32]
    assert (parse_measure(None), parse_measure("all"), parse_measure("12")) == (None, "all", 12)
    assert parse_slo(["ttft_ms=500", "ttft_ms=400", "e2el_ms=1.5"]) == {"ttft_ms": 400.0, "e2el_ms": 1.5}
    for text in ("", "8,,9", "8;9", "eight", "8.5"):
        with pytest.raises(ExperimentError, match=r"^--seqs .*: give whole numbers separated by commas"):
            parse_list("--seqs", text)
    with pytest.raises(ExperimentError, match=r"^--measure some: give a number of cells, or all\.$"):
        parse_measure("some")


def test_a_folder_of_operator_tables_says_model_type_and_degree(tmp_path: Path) -> None:
    folder = write_layers(tmp_path / "tables", degree=2)
    said = scenario(profile=folder)
    assert (said.model, said.dtype, said.device, said.tensor_parallel_size) == (str(folder), "bfloat16", "cuda", 2)
    with pytest.raises(TableError, match="no times for tensor_parallel_size 4: it holds tp2"):
        scenario(profile=folder, fields=["tensor_parallel_size=4"])


def test_kernels_of_no_model_are_those_of_the_model_and_degree_that_are_asked_for(
    shared_path: Callable[[str], Path],
) -> None:
    folder = shared_path("data/aiconfigurator_vllm/h100_sxm_vllm0.24.0")
    options = {**UNSAID, "profile": folder, "model": "meta-llama/Meta-Llama-3-8B"}
    alone = profile_from_options(options)
    shared = profile_from_options({**options, "fields": ["tensor_parallel_size=4"]})
    assert alone is not None
    assert shared is not None
    one, four = (profile.cost_model.duration_s(STEP) for profile in (alone, shared))
    assert 0.25 * one < four < 0.6 * one  # a quarter of the weights, and all-reduces
    assert scenario_from_options(options, shared).tensor_parallel_size == 4
    with pytest.raises(TableError, match="give the model"):
        scenario(profile=folder)

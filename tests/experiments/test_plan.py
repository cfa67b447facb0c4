"""Capacity before time: what fits, what is left, what to change; figures by hand or of public vLLM logs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchtwin.experiments.plan import Pair, Plan, plan
from batchtwin.experiments.render_plan import plan_json
from batchtwin.scheduler.errors import BatchTwinError

LLAMA = "meta-llama/Llama-3.1-8B"


def on_3090(**knobs: object) -> Plan:
    """As in vllm-project/vllm#10517: vLLM 0.6, which charged no CUDA graphs and used 0.90 of the memory."""
    given = {"max_num_seqs": 256, "gpu_memory_utilization": 0.9, "vllm_version": "0.6", **knobs}
    return plan(LLAMA, "RTX-3090", **given)  # type: ignore[arg-type]


def test_a_longer_model_length_fits_where_a_shorter_one_does_not() -> None:
    """S12: without chunked prefill the budget follows the model length; with it, it does not."""
    short = on_3090(max_model_len=20_000, enable_chunked_prefill=False)
    middle = on_3090(max_model_len=29_000, enable_chunked_prefill=False)
    long = on_3090(max_model_len=35_000, max_num_batched_tokens=512)
    assert (short.ask.knobs.max_num_batched_tokens, middle.ask.knobs.max_num_batched_tokens) == (20_000, 29_000)
    assert [found.feasible for found in (short, middle, long)] == [True, False, True]
    assert short.max_concurrency == pytest.approx(1.56, abs=0.01)
    assert middle.max_concurrency == pytest.approx(0.82, abs=0.005)


def test_what_does_not_fit_says_what_to_change_and_each_change_works() -> None:
    """Every figure in the sentence is tried: the cell fits with it, and no longer with a little less of a change."""
    found = on_3090(max_model_len=29_000, max_num_batched_tokens=29_000)
    (sentence,) = found.problems
    assert "needs 1,813 KV blocks, but 1,482 fit" in sentence
    words = sentence.split(": ", maxsplit=1)[1].rstrip(".").split(", or ")
    fixes = {word.split()[1]: float(word.split()[-1].replace(",", "")) for word in words[:3]}
    assert set(fixes) == {"max_model_len", "max_num_batched_tokens", "gpu_memory_utilization"}
    base: dict[str, object] = {"max_model_len": 29_000, "max_num_batched_tokens": 29_000}
    for name, value in fixes.items():
        step = -0.01 if name == "gpu_memory_utilization" else 16
        number = type(value) if name == "gpu_memory_utilization" else int
        assert on_3090(**{**base, name: number(value)}).feasible
        assert not on_3090(**{**base, name: number(value + step)}).feasible
    assert "set kv_cache_dtype to fp8" in words
    assert "raise tensor_parallel_size to 2" in words


def test_weights_that_do_not_fit_are_told_apart_from_peaks() -> None:
    found = plan("meta-llama/Llama-3.1-70B", "H100", max_model_len=8192)
    (sentence,) = found.problems
    assert "Nothing is left for KV blocks: of 72.9 GiB (79.2 × 0.92) weights take 131.4" in sentence
    assert "raise tensor_parallel_size to 2" in sentence
    assert found.num_gpu_blocks == 0
    assert plan("meta-llama/Llama-3.1-70B", "H100", max_model_len=8192, tensor_parallel_size=2).feasible


def test_a_budget_below_the_model_length_names_both_knobs_and_the_fix() -> None:
    """S15."""
    knobs = {"max_num_seqs": 8, "max_num_batched_tokens": 4096, "max_model_len": 8192}
    (sentence,) = plan(LLAMA, "H100", enable_chunked_prefill=False, **knobs).problems  # type: ignore[arg-type]
    assert "max_num_batched_tokens (4096) is less than max_model_len (8192)" in sentence
    assert "raise max_num_batched_tokens, lower max_model_len, or enable chunked prefill" in sentence
    assert plan(LLAMA, "H100", **knobs).feasible  # type: ignore[arg-type]


def test_more_context_than_the_model_has_is_a_problem() -> None:
    (sentence,) = plan("meta-llama/Meta-Llama-3-8B", "H100", max_model_len=16_384).problems
    assert "has a context of 8,192 tokens" in sentence


@pytest.mark.parametrize(
    ("gpu", "entry", "cell"),
    [
        ("H100", "server", (1024, 8192)),
        ("H100", "llm_class", (1024, 16384)),
        ("A100", "server", (256, 2048)),
        ("B200", "server", (1024, 16384)),
    ],
)
def test_knobs_that_are_not_given_are_vllms_defaults(gpu: str, entry: str, cell: tuple[int, int]) -> None:
    found = plan("Qwen/Qwen3-8B", gpu, entry=entry)
    assert (found.ask.knobs.max_num_seqs, found.ask.knobs.max_num_batched_tokens) == cell
    assert found.defaults[entry] == Pair(*cell)


def test_defaults_never_give_more_than_the_other_knob_can_use() -> None:
    """vLLM: the budget is at most sequences · model length; sequences are at most the budget."""
    assert plan(LLAMA, "H100", max_num_seqs=4, max_model_len=1000).ask.knobs.max_num_batched_tokens == 4000
    assert plan(LLAMA, "H100", max_num_batched_tokens=512).ask.knobs.max_num_seqs == 512


def test_blocks_fall_with_either_knob_once_its_peak_is_the_larger() -> None:
    blocks = plan(LLAMA, "H100", max_model_len=8192).blocks_by_cell()
    for seqs in (64, 256, 1024):
        row = [blocks[Pair(seqs, tokens)] for tokens in (2048, 8192, 16384, 32768, 65536)]
        assert row == sorted(row, reverse=True)
    assert blocks[Pair(64, 2048)] > blocks[Pair(256, 2048)] > blocks[Pair(1024, 2048)]
    assert blocks[Pair(1024, 65536)] == blocks[Pair(256, 65536)]


def test_a_practical_concurrency_is_of_requests_as_they_are() -> None:
    """4.61× of 8,192 tokens are 2,360 blocks: 47 requests of 800 tokens (S05); the null block holds none."""
    found = plan(LLAMA, "H100", max_num_seqs=256, num_gpu_blocks=2361, prompt_tokens=600, output_tokens=200)
    assert found.practical_concurrency == 47
    capped = plan(LLAMA, "H100", max_num_seqs=16, num_gpu_blocks=2361, prompt_tokens=600, output_tokens=200)
    assert capped.practical_concurrency == 16


def test_quantised_weights_leave_more_for_kv() -> None:
    plain, fp8, awq = (plan(LLAMA, "RTX-4090", max_model_len=4096, quantization=q) for q in (None, "fp8", "awq"))
    assert plain.num_gpu_blocks < fp8.num_gpu_blocks < awq.num_gpu_blocks


@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [
        ({"block_size": 0}, "block_size is 0"),
        ({"prompt_tokens": 5}, "needs both prompt_tokens and output_tokens"),
        ({"tensor_parallel_size": 3}, "32 attention heads, which 3 GPUs cannot share"),
        ({"kv_cache_dtype": "int3"}, "no KV cache dtype 'int3'"),
        ({"quantization": "magic"}, "no quantisation 'magic'"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization is 0"),
    ],
)
def test_what_cannot_be_is_one_sentence(knobs: dict[str, object], sentence: str) -> None:
    with pytest.raises(BatchTwinError) as caught:
        plan(LLAMA, "H100", **knobs)  # type: ignore[arg-type]
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_json_has_every_figure_of_the_plan() -> None:
    found = plan(LLAMA, "H100", prompt_tokens=1000, output_tokens=200)
    said = plan_json(found)
    assert said["num_gpu_blocks"] == found.num_gpu_blocks > 20_000
    assert said["activation_bytes_per_token"] == 118_784
    assert said["kv_bytes_per_token"] == 131_072
    assert said["defaults"]["server"] == {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    assert said["feasible"] is True


def test_a_window_and_a_missing_dtype_are_noted() -> None:
    notes = plan("mistralai/Mistral-7B-v0.1", "T4", quantization="awq", max_model_len=2048).notes
    assert any("sliding window of 4,096" in note for note in notes)
    assert any("no bfloat16" in note for note in notes)


@settings(max_examples=120, deadline=None)
@given(
    model=st.sampled_from(["Llama-3.1-8B", "Qwen3-30B-A3B", "opt-125m", "Qwen2.5-32B-Instruct-AWQ", "gemma-2-9b"]),
    gpu=st.sampled_from(["T4", "RTX-4090", "H100", "MI325X", "GB10"]),
    seqs=st.none() | st.integers(-1, 5000),
    tokens=st.none() | st.integers(-1, 300_000),
    length=st.none() | st.integers(0, 300_000),
    degree=st.integers(-1, 9),
    utilization=st.floats(-0.1, 1.1),
    chunked=st.booleans(),
    blocks=st.none() | st.integers(-1, 10_000),
)
def test_any_knobs_are_a_plan_or_a_sentence(
    model: str,
    gpu: str,
    seqs: int | None,
    tokens: int | None,
    length: int | None,
    degree: int,
    utilization: float,
    chunked: bool,
    blocks: int | None,
) -> None:
    """Every plan says yes, or says no with what to change; and with more of the memory it never holds less."""
    knobs = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens, "max_model_len": length, "num_gpu_blocks": blocks}
    asked = {"tensor_parallel_size": degree, "enable_chunked_prefill": chunked, **knobs}
    try:
        found = plan(model, gpu, gpu_memory_utilization=utilization, **asked)  # type: ignore[arg-type]
    except BatchTwinError as error:
        said = str(error)
    else:
        said = " ".join(found.problems)
        assert found.feasible == (not found.problems)
        assert found.num_gpu_blocks * found.memory.block_bytes <= max(found.memory.kv_bytes, 0) or blocks is not None
        assert plan_json(found)["num_gpu_blocks"] == found.num_gpu_blocks
        more = plan(model, gpu, gpu_memory_utilization=1.0, **asked)  # type: ignore[arg-type]
        assert more.num_gpu_blocks >= found.num_gpu_blocks
    assert "\n" not in said
    assert not said or said.endswith(".")


def test_both_knobs_are_named_where_neither_alone_is_enough() -> None:
    """100 million sequences need a sampler of petabytes, a billion tokens activations of as many."""
    asked = {"max_num_seqs": 100_000_000, "max_num_batched_tokens": 1_000_000_000}
    (sentence,) = plan("meta-llama/Llama-3.1-8B", "H100", **asked).problems  # type: ignore[arg-type]
    found = re.search(r"lower max_num_seqs to ([\d,]+) and max_num_batched_tokens to ([\d,]+)", sentence)
    assert found is not None
    assert "GPU with more memory" not in sentence
    seqs, tokens = (int(figure.replace(",", "")) for figure in found.groups())
    assert plan("meta-llama/Llama-3.1-8B", "H100", max_num_seqs=seqs, max_num_batched_tokens=tokens).feasible
    assert not plan("meta-llama/Llama-3.1-8B", "H100", max_num_seqs=seqs, max_num_batched_tokens=1_000_000_000).feasible

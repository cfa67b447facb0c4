"""Where a GPU's memory goes, held against what public vLLM logs say it went."""

from __future__ import annotations

import dataclasses

import pytest

from batchtwin.sim.facts.device import find_device
from batchtwin.sim.facts.errors import FactsError
from batchtwin.sim.facts.library import load_model_config
from batchtwin.sim.facts.memory import GIB, Knobs, MemoryPlan, max_concurrency, plan_memory
from batchtwin.sim.facts.roofline import roofline


def plan(model: str, gpu: str, seqs: int, tokens: int, **knobs: object) -> MemoryPlan:
    return plan_memory(load_model_config(model), find_device(gpu), Knobs(seqs, tokens, **knobs))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "activations_gib", "kv_gib", "blocks"),
    [(20_000, 17.06 - 14.9888, 3.81, 1952), (29_000, 17.98 - 14.9888, 2.89, 1478)],
)
def test_the_activation_peak_of_v0_is_what_it_logged(
    tokens: int, activations_gib: float, kv_gib: float, blocks: int
) -> None:
    """Llama-3.1-8B on an RTX 3090 without chunked prefill, peak of PyTorch less weights: vllm-project/vllm#10517."""
    found = plan("Llama-3.1-8B", "RTX-3090", 256, tokens, gpu_memory_utilization=0.9, vllm_version="0.6.4")
    assert found.activation_bytes / GIB == pytest.approx(activations_gib, rel=0.01)
    assert found.kv_bytes / GIB == pytest.approx(kv_gib, abs=0.02)
    assert found.num_gpu_blocks == pytest.approx(blocks, rel=0.005)


@pytest.mark.parametrize(
    ("model", "tensor_parallel_size", "version", "peak_gib", "tolerance"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 1, "0.19", 1.89, 0.03),
        ("meta-llama/Llama-3.1-8B-Instruct", 4, "0.19", 1.89, 0.03),
        ("Qwen/Qwen2.5-7B-Instruct", 1, "0.19", 2.21, 0.03),
        ("Qwen/Qwen3-8B", 1, "0.19", 2.21, 0.03),
        ("google/gemma-7b", 1, "0.19", 3.63, 0.03),
        ("google/gemma-2-9b-it", 1, "0.19", 3.65, 0.03),
        ("microsoft/phi-4", 1, "0.19", 1.52, 0.03),
        ("microsoft/phi-2", 1, "0.19", 0.79, 0.03),
        ("Qwen/Qwen2.5-72B-Instruct", 2, "0.19", 2.29, 0.03),
        ("RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic", 2, "0.19", 1.96, 0.03),
        ("meta-llama/Llama-2-7b-hf", 1, "0.19", 0.77, 0.03),  # CodeLlama-7B, of the same layers
        ("Qwen/Qwen3-30B-A3B", 1, "0.19", 2.68, 0.06),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 2, "0.19", 1.21, 0.20),  # the worst: 0.97 GiB here
        ("Qwen/Qwen3-14B", 1, "0.16", 5.64, 0.03),
        ("Qwen/Qwen3-14B", 1, "0.17", 2.23, 0.03),
        ("meta-llama/Llama-3.1-8B", 1, "0.11", 4.76, 0.03),
        ("Qwen/Qwen3-0.6B", 1, "0.11", 5.56, 0.03),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8", 2, "0.11", 4.84, 0.03),
    ],
)
def test_the_peak_of_a_start_is_what_vllm_logged(
    model: str, tensor_parallel_size: int, version: str, peak_gib: float, tolerance: float
) -> None:
    """llm-d's planner studies on an H100 with vLLM's defaults there (1,024 sequences, 8,192 tokens): the increase of
    PyTorch's peak, activations or sampler.
    """
    found = plan(model, "H100", 1024, 8192, tensor_parallel_size=tensor_parallel_size, vllm_version=version)
    assert found.peak_bytes / GIB == pytest.approx(peak_gib, rel=tolerance)


@pytest.mark.parametrize(
    ("model", "tensor_parallel_size", "version", "kv_gib"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 1, "0.19", 58.11),
        ("meta-llama/Llama-3.1-8B-Instruct", 2, "0.19", 75.23 - 7.51 - 1.89 - 2.07),
        ("Qwen/Qwen2.5-7B-Instruct", 1, "0.19", 58.53),
        ("Qwen/Qwen2.5-7B-Instruct", 4, "0.19", 75.23 - 3.55 - 2.21 - 2.13),
        ("Qwen/Qwen3-14B", 1, "0.16", 41.94),
        ("Qwen/Qwen3-14B", 1, "0.18", 45.23),
    ],
)
def test_what_is_left_for_kv_is_what_vllm_logged(
    model: str, tensor_parallel_size: int, version: str, kv_gib: float
) -> None:
    """The same study, at a utilisation of 0.95; within 1 %."""
    knobs = {"tensor_parallel_size": tensor_parallel_size, "gpu_memory_utilization": 0.95}
    found = plan(model, "H100", 1024, 8192, vllm_version=version, **knobs)
    assert found.kv_bytes / GIB == pytest.approx(kv_gib, rel=0.01)


def test_the_samplers_peak_of_v0_is_what_it_logged() -> None:
    """Llama-3-8B on an H100, 256 sequences, 8,192 tokens: 1.26 GiB (vllm-project/vllm#10511)."""
    found = plan("meta-llama/Meta-Llama-3-8B", "H100", 256, 8192, vllm_version="0.6")
    assert found.peak_bytes == found.sampler_bytes
    assert found.peak_bytes / GIB == pytest.approx(1.26, rel=0.025)


def test_a_whole_start_of_vllm_0_22_comes_out() -> None:
    """Qwen2.5-7B-Instruct, 128 sequences, 2,048 tokens, utilisation 0.95 on a card of 44.5 GiB: 26.32 GiB were left.
    The graphs are an estimate: 0.43 GiB for a logged 0.37.
    """
    device = dataclasses.replace(find_device("L40S"), memory_bytes=int(44.5 * GIB))
    found = plan_memory(load_model_config("Qwen2.5-7B-Instruct"), device, Knobs(128, 2048, gpu_memory_utilization=0.95))
    assert found.kv_bytes / GIB == pytest.approx(26.32, rel=0.04)
    assert found.cuda_graph_bytes / GIB == pytest.approx(0.37, rel=0.2)


def test_graphs_are_charged_since_0_21_and_not_when_there_are_none() -> None:
    """51 sizes of 32 layers, 0.45 MiB each."""
    knobs = [{}, {"vllm_version": "0.21"}, {"vllm_version": "0.20"}, {"enforce_eager": True}]
    graphs = [plan("Llama-3.1-8B", "H100", 1024, 8192, **one).cuda_graph_bytes for one in knobs]
    assert graphs == [51 * 32 * int(0.45 * 2**20), 51 * 32 * int(0.45 * 2**20), 0, 0]


@pytest.mark.parametrize("version", ["", "one", "0", "0.", "0.19..", "-1.2"])
def test_a_version_that_is_none_is_one_sentence(version: str) -> None:
    with pytest.raises(FactsError, match="is no version of vLLM"):
        plan("Llama-3.1-8B", "H100", 1, 1, vllm_version=version)


def test_the_two_peaks_do_not_add() -> None:
    """By hand, Llama-3.1-8B: (4 · 4,096 + 3 · 14,336) · 2 bytes a token; 15 a logit and the last hidden states."""
    found = plan("Llama-3.1-8B", "H100", 1024, 16_384)
    assert found.activation_bytes == 118_784 * 16_384
    assert found.sampler_bytes == 1024 * 128_256 * 15 + 16_384 * 4096 * 2
    assert found.peak_bytes == found.sampler_bytes


def test_tensor_parallelism_splits_the_mlp_but_not_the_hidden_states_nor_the_logits() -> None:
    one, two = (plan("Llama-3.1-8B", "H100", 64, 8192, tensor_parallel_size=tp) for tp in (1, 2))
    assert two.activation_bytes == (4 * 4096 + 3 * 7168) * 2 * 8192
    assert two.sampler_bytes == one.sampler_bytes
    assert two.block_bytes == one.block_bytes // 2


def test_a_plain_mlp_holds_two_of_its_widths() -> None:
    assert plan("facebook/opt-13b", "A100", 1, 1000).activation_bytes == (4 * 5120 + 2 * 20_480) * 2 * 1000


def test_experts_hold_what_every_routed_token_needs() -> None:
    """Mixtral by hand: two experts a token, gate and up of 14,336 each and their product; the outputs fit in those."""
    found = plan("Mixtral-8x7B-v0.1", "H200", 1, 1000)
    assert found.activation_bytes == (4 * 4096 + 2 * 3 * 14_336) * 2 * 1000
    assert found.sampler_bytes == 1 * 32_000 * 15 + (4096 + 2 * 3 * 14_336) * 2 * 1000


@pytest.mark.parametrize(
    ("blocks", "length", "printed"), [(1381, 2048, 10.79), (127_626, 2048, 997.08), (1478, 29_000, 0.82)]
)
def test_maximum_concurrency_is_vllms(blocks: int, length: int, printed: float) -> None:
    assert max_concurrency(blocks, length) == pytest.approx(printed, abs=0.005)


def test_a_utilisation_that_cannot_be_is_refused() -> None:
    with pytest.raises(FactsError, match=r"gpu_memory_utilization is 1\.2"):
        Knobs(1, 1, gpu_memory_utilization=1.2)


def test_the_roofline_of_an_8b_model_on_an_h100_is_as_by_hand() -> None:
    """A decode reads 16.06 GB of weights at 3.35 TB/s: 4.8 ms; 8,192 tokens of prefill do 2 · 6.98 G · 8,192 FLOPs at
    989.4 TFLOP/s: 116 ms.
    """
    from batchtwin.sim.cost.features import Features

    law = roofline(load_model_config("Llama-3.1-8B"), find_device("H100"))
    nothing = dict.fromkeys(Features._fields, 0)
    decode = Features(**{**nothing, "num_tokens": 1, "num_decodes": 1, "num_samples": 1})
    prefill = Features(
        **{**nothing, "num_tokens": 8192, "num_prefill_tokens": 8192, "num_prefills": 1, "num_samples": 1}
    )
    assert law.duration_s(decode) == pytest.approx(16.094e9 / 3.35e12, rel=0.001)
    assert law.duration_s(prefill) == pytest.approx(2 * 6.979e9 * 8192 / 989.4e12, rel=0.001)
    assert law.name == "roofline, never validated"

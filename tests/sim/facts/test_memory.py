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
def test_the_activation_peak_is_what_vllm_measured(
    tokens: int, activations_gib: float, kv_gib: float, blocks: int
) -> None:
    """Llama-3.1-8B on an RTX 3090 without chunked prefill, peak of PyTorch less weights: vllm-project/vllm#10517."""
    found = plan("Llama-3.1-8B", "RTX-3090", 256, tokens, gpu_memory_utilization=0.9, enforce_eager=True)
    assert found.activation_bytes / GIB == pytest.approx(activations_gib, rel=0.01)
    assert found.kv_bytes / GIB == pytest.approx(kv_gib, abs=0.02)
    assert found.num_gpu_blocks == pytest.approx(blocks, rel=0.005)


@pytest.mark.parametrize(
    ("model", "seqs", "tokens", "peak_gib"),
    [
        ("meta-llama/Meta-Llama-3-8B", 256, 8192, 1.26),  # vllm-project/vllm#10511, H100
        ("Qwen/Qwen3-8B", 256, 2048, 1.40),  # two vLLM logs of 2025 and 2026
    ],
)
def test_the_samplers_peak_is_what_vllm_measured(model: str, seqs: int, tokens: int, peak_gib: float) -> None:
    found = plan(model, "H100", seqs, tokens)
    assert found.peak_bytes == found.sampler_bytes
    assert found.peak_bytes / GIB == pytest.approx(peak_gib, rel=0.025)


def test_a_whole_start_of_vllm_0_22_comes_out() -> None:
    """Qwen2.5-7B-Instruct, 128 sequences, 2,048 tokens, utilisation 0.95 on a card of 44.5 GiB: 26.32 GiB or 492,912
    tokens were left.
    """
    device = dataclasses.replace(find_device("L40S"), memory_bytes=int(44.5 * GIB))
    found = plan_memory(load_model_config("Qwen2.5-7B-Instruct"), device, Knobs(128, 2048, gpu_memory_utilization=0.95))
    assert found.kv_bytes / GIB == pytest.approx(26.32, rel=0.02)
    assert found.num_gpu_blocks * 16 == pytest.approx(492_912, rel=0.02)
    assert found.cuda_graph_bytes / GIB == pytest.approx(0.37, rel=0.05)


def test_the_two_peaks_do_not_add() -> None:
    """By hand, Llama-3.1-8B: 110,592 bytes a token; 39 bytes a logit and the last hidden states."""
    found = plan("Llama-3.1-8B", "H100", 1024, 16_384)
    assert found.activation_bytes == 110_592 * 16_384
    assert found.sampler_bytes == 1024 * 128_256 * 39 + 16_384 * 4096 * 2
    assert found.peak_bytes == found.sampler_bytes


def test_tensor_parallelism_splits_the_mlp_but_not_the_hidden_states_nor_the_logits() -> None:
    one, two = (plan("Llama-3.1-8B", "H100", 64, 8192, tensor_parallel_size=tp) for tp in (1, 2))
    assert two.activation_bytes == (3 * 4096 + 3 * 7168) * 2 * 8192
    assert two.sampler_bytes == one.sampler_bytes
    assert two.block_bytes == one.block_bytes // 2


def test_a_plain_mlp_holds_two_of_its_widths() -> None:
    assert plan("facebook/opt-13b", "A100", 1, 1000).activation_bytes == (3 * 5120 + 2 * 20_480) * 2 * 1000


def test_experts_hold_what_every_routed_token_needs() -> None:
    """Mixtral by hand: two experts a token, gate and up of 14,336 each and their product; the outputs fit in those."""
    found = plan("Mixtral-8x7B-v0.1", "H200", 1, 1000)
    assert found.activation_bytes == (3 * 4096 + 2 * 3 * 14_336 + 4096) * 2 * 1000


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

"""The KV pool of a cell: a number, what a memory budget leaves it, or what a GPU leaves it.

Figures of the toy model by hand: hidden size 256, an MLP of 688, a vocabulary of 4,096, float32. Activations take
(4 · 256 + 3 · 688) · 4 = 12,352 bytes a token; the sampler 4,096 · 15 = 61,440 bytes a sequence and the last hidden
states 1,024 a token; K and V 4,096 bytes a token, so 65,536 bytes a block of 16.
"""

from __future__ import annotations

import pytest
from profiles import toy_profile

from batchtwin.experiments.cells import predict_cell
from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.kv_pool import num_gpu_blocks
from batchtwin.experiments.replay import predict
from batchtwin.experiments.scenario import Scenario
from batchtwin.scheduler.errors import BatchTwinError

MODEL = toy_profile().model
BUDGET = 64 * 2**20


@pytest.mark.parametrize(
    ("seqs", "tokens", "blocks"),
    [
        (128, 2048, 638),  # 67,108,864 − 2,048 · 12,352 = 41,811,968 bytes; the sampler's 9,961,472 are less
        (128, 1024, 831),  # 67,108,864 − 1,024 · 12,352 = 54,460,416: half the activations
        (512, 512, 536),  # 67,108,864 − 512 · 61,440 − 512 · 1,024 = 35,127,296: here the sampler's count
        (256, 512, 776),  # 67,108,864 − 256 · 61,440 − 512 · 1,024 = 50,855,936: half the sequences
        (1, 8, 1022),  # 67,108,864 − 8 · 12,352 bytes are 1,022.5 blocks
    ],
)
def test_both_knobs_shrink_the_pool_of_a_memory_budget(seqs: int, tokens: int, blocks: int) -> None:
    scenario = Scenario(kv_memory_bytes=BUDGET, max_num_seqs=seqs, max_num_batched_tokens=tokens)
    assert num_gpu_blocks(scenario, MODEL) == blocks


def test_a_given_number_of_blocks_is_the_same_whatever_the_knobs() -> None:
    for seqs in (1, 128):
        assert num_gpu_blocks(Scenario(num_gpu_blocks=99, max_num_seqs=seqs), MODEL) == 99
    assert num_gpu_blocks(Scenario(num_gpu_blocks=99), None) == 99


def test_a_budget_that_leaves_nothing_is_one_sentence_with_its_figures() -> None:
    scenario = Scenario(kv_memory_bytes=20 * 10**6)
    with pytest.raises(ExperimentError) as caught:
        num_gpu_blocks(scenario, MODEL)
    assert str(caught.value) == (
        "kv_memory_bytes (20,000,000) leaves no KV block: activations at 2048 tokens take 25,296,896 bytes and the "
        "sampler at 128 sequences 9,961,472; raise the budget or lower the knobs."
    )


def test_the_null_block_alone_is_no_pool() -> None:
    """One block is left: block 0, which is never handed out."""
    barely = 25_296_896 + 65_536
    with pytest.raises(ExperimentError, match="leaves no KV block"):
        num_gpu_blocks(Scenario(kv_memory_bytes=barely), MODEL)
    assert num_gpu_blocks(Scenario(kv_memory_bytes=barely + 65_536), MODEL) == 2


def test_a_budget_needs_a_model() -> None:
    with pytest.raises(ExperimentError, match="needs a profile"):
        num_gpu_blocks(Scenario(kv_memory_bytes=BUDGET), None)


def test_a_prediction_uses_and_states_the_blocks_of_its_budget() -> None:
    scenario = Scenario(kv_memory_bytes=BUDGET, trace={"source": "azure-conv-like:5", "prompt_scale": 0.1})
    run = predict(scenario, toy_profile())
    assert run.num_gpu_blocks == 638
    assert run.records.iterations["num_free_blocks"].max() <= 637


def test_a_profile_that_does_not_say_how_wide_the_mlp_is_is_told_so() -> None:
    with pytest.raises(BatchTwinError, match=r"does not say how wide its MLP is.*calibrate again"):
        num_gpu_blocks(Scenario(kv_memory_bytes=BUDGET), MODEL.model_copy(update={"intermediate_size": None}))


def test_a_gpu_sizes_the_pool_by_both_knobs() -> None:
    """vLLM 0.19 logged 29,751 blocks for Llama-3.1-8B on an H100 with its defaults there and a utilisation of 0.95."""
    scenario = Scenario(
        gpu="H100",
        model="meta-llama/Llama-3.1-8B",
        gpu_memory_utilization=0.95,
        enforce_eager=True,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
    )
    assert num_gpu_blocks(scenario, None) == pytest.approx(29_751, rel=0.005)
    assert num_gpu_blocks(scenario.with_(max_num_seqs=256), None) > 29_800
    assert num_gpu_blocks(scenario.with_(max_num_batched_tokens=32_768), None) < 29_000


def test_blocks_that_are_given_outdo_the_gpu_and_a_gpu_replaces_blocks_given_before() -> None:
    scenario = Scenario(num_gpu_blocks=77, gpu="H100", model="Llama-3.1-8B")
    assert num_gpu_blocks(scenario, None) == 77
    assert num_gpu_blocks(Scenario(num_gpu_blocks=77, model="Llama-3.1-8B").with_(gpu="H100"), None) > 20_000


def test_a_cell_that_does_not_fit_its_gpu_is_infeasible_with_the_reason() -> None:
    profile = toy_profile(model=MODEL.model_copy(update={"name": "meta-llama/Llama-3.1-8B", "max_model_len": 131072}))
    scenario = Scenario(
        model="meta-llama/Llama-3.1-8B",
        gpu="RTX-3090",
        max_model_len=20_000,
        trace={"source": "azure-conv-like:3", "prompt_scale": 0.1, "output_scale": 0.1},
    )
    fits = predict_cell(Cell("vllm_v1", 64, 2048), scenario, profile)
    does_not = predict_cell(Cell("vllm_v1", 64, 65_536), scenario, profile)
    assert (fits.status, does_not.status) == ("ok", "infeasible")
    assert 2000 < fits.num_gpu_blocks < 3500
    assert "lower max_num_batched_tokens to" in does_not.reason

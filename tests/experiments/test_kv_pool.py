"""The KV pool of a cell: a number, or what a memory budget leaves it; figures of the toy model by hand.

Hidden size 256 and vocabulary 4,096 in float32: an activation peak of 8 · 256 · 4 = 8,192 bytes a token, a sampler peak
of 2 · 4,096 · 4 = 32,768 bytes a sequence; K and V of 4,096 bytes a token, so 65,536 bytes a block of 16.
"""

from __future__ import annotations

import pytest
from profiles import toy_profile

from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.kv_pool import num_gpu_blocks
from batchtwin.experiments.replay import predict
from batchtwin.experiments.scenario import Scenario

MODEL = toy_profile().model
BUDGET = 64 * 2**20


@pytest.mark.parametrize(
    ("seqs", "tokens", "blocks"),
    [
        (128, 2048, 704),  # 67,108,864 − 16,777,216 − 4,194,304 = 46,137,344 bytes
        (128, 1024, 832),  # half the activations: 8 MiB or 128 blocks more
        (64, 2048, 736),  # half the sampler: 2 MiB or 32 blocks more
        (1, 8, 1022),  # 67,108,864 − 65,536 − 32,768 bytes are 1,022.5 blocks
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
        "kv_memory_bytes (20,000,000) leaves no KV block: activations at 2048 tokens take 16,777,216 bytes and the "
        "sampler at 128 sequences 4,194,304; raise the budget or lower the knobs."
    )


def test_the_null_block_alone_is_no_pool() -> None:
    """One block is left: block 0, which is never handed out."""
    barely = 16_777_216 + 4_194_304 + 65_536
    with pytest.raises(ExperimentError, match="leaves no KV block"):
        num_gpu_blocks(Scenario(kv_memory_bytes=barely), MODEL)
    assert num_gpu_blocks(Scenario(kv_memory_bytes=barely + 65_536), MODEL) == 2


def test_a_budget_needs_a_model() -> None:
    with pytest.raises(ExperimentError, match="needs a profile"):
        num_gpu_blocks(Scenario(kv_memory_bytes=BUDGET), None)


def test_a_prediction_uses_and_states_the_blocks_of_its_budget() -> None:
    scenario = Scenario(kv_memory_bytes=BUDGET, trace={"source": "azure-conv-like:5", "prompt_scale": 0.1})
    run = predict(scenario, toy_profile())
    assert run.num_gpu_blocks == 704
    assert run.records.iterations["num_free_blocks"].max() <= 703

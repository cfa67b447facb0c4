"""How many KV blocks a cell has: fixed, or what a memory budget leaves it."""

from __future__ import annotations

from ..sim.cost.profile import ModelFacts
from .errors import ExperimentError
from .scenario import Scenario

ACTIVATION_TENSORS = 8
"""Hidden-size tensors alive at the peak of a layer (residual, normed, Q, K and V, attention out, gate, up, down):
an estimate for decoder-only models; the executor's own peak on a GPU replaces it where it is measured."""
LOGIT_BYTES = 4
SAMPLER_COPIES = 2
"""float32 logits and their softmax, per sequence: the sampler's peak."""


def num_gpu_blocks(scenario: Scenario, model: ModelFacts | None) -> int:
    """Blocks of a cell, the null block included.

    With a memory budget both knobs shrink the pool: the activation peak grows with ``max_num_batched_tokens``, the
    sampler's with ``max_num_seqs``. Raises ``ExperimentError`` if nothing is left.
    """
    if scenario.num_gpu_blocks is not None:
        return scenario.num_gpu_blocks
    if model is None or scenario.kv_memory_bytes is None:
        raise ExperimentError("A KV memory budget needs a profile, which knows the model's sizes: give one.")
    activations = scenario.max_num_batched_tokens * ACTIVATION_TENSORS * model.hidden_size * model.dtype_bytes
    sampler = scenario.max_num_seqs * model.vocab_size * LOGIT_BYTES * SAMPLER_COPIES
    left_bytes = scenario.kv_memory_bytes - activations - sampler
    blocks = left_bytes // (model.kv_bytes_per_token * scenario.block_size)
    if blocks < 2:
        raise ExperimentError(
            f"kv_memory_bytes ({scenario.kv_memory_bytes:,}) leaves no KV block: activations at "
            f"{scenario.max_num_batched_tokens} tokens take {activations:,} bytes and the sampler at "
            f"{scenario.max_num_seqs} sequences {sampler:,}; raise the budget or lower the knobs."
        )
    return int(blocks)

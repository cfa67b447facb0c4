"""How many KV blocks a cell has: fixed, what a memory budget leaves it, or what a GPU leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..sim.cost.profile import ModelFacts
from .errors import ExperimentError
from .scenario import Scenario

if TYPE_CHECKING:
    from .ask import Ask


def num_gpu_blocks(scenario: Scenario, model: ModelFacts | None) -> int:
    """Blocks of a cell, the null block included.

    From a memory budget or a GPU both knobs shrink the pool: the activation peak grows with
    ``max_num_batched_tokens``, the sampler's with ``max_num_seqs``, and the larger counts (``sim.facts.memory``).
    Raises ``BatchTwinError`` if nothing is left.
    """
    if scenario.num_gpu_blocks is not None:
        return scenario.num_gpu_blocks
    if scenario.gpu is not None and scenario.kv_memory_bytes is None:
        from .fixes import blocks_of  # here and below: a replay with a fixed pool does not pay for these imports

        return blocks_of(ask_of(scenario))
    if model is None or scenario.kv_memory_bytes is None:
        raise ExperimentError("A KV memory budget needs a profile, which knows the model's sizes: give one.")
    return _within(scenario, model, scenario.kv_memory_bytes)


def ask_of(scenario: Scenario) -> Ask:
    """What a scenario that names a GPU asks of it. Raises ``FactsError`` if model or GPU is unknown."""
    from ..sim.facts.device import find_device
    from ..sim.facts.memory import Knobs
    from .ask import Ask, configured

    s = scenario
    if s.gpu is None:
        raise ExperimentError("The scenario names no gpu: give one, such as gpu=H100.")
    knobs = Knobs(
        max_num_seqs=s.max_num_seqs,
        max_num_batched_tokens=s.max_num_batched_tokens,
        tensor_parallel_size=s.tensor_parallel_size,
        gpu_memory_utilization=s.gpu_memory_utilization,
        kv_cache_dtype=s.kv_cache_dtype,
        block_size=s.block_size,
        enforce_eager=s.enforce_eager,
    )
    model = configured(s.model, s.quantization)
    return Ask(model, find_device(s.gpu), knobs, s.max_model_len, s.enable_chunked_prefill, s.num_gpu_blocks)


def _within(scenario: Scenario, model: ModelFacts, budget_bytes: int) -> int:
    from ..sim.facts.memory import activation_bytes, sampler_bytes

    activations = activation_bytes(model, scenario.max_num_batched_tokens)
    sampler = sampler_bytes(model, scenario.max_num_seqs, scenario.max_num_batched_tokens)
    left_bytes = budget_bytes - max(activations, sampler)
    blocks = left_bytes // (model.kv_bytes_per_token * scenario.block_size)
    if blocks < 2:
        raise ExperimentError(
            f"kv_memory_bytes ({budget_bytes:,}) leaves no KV block: activations at "
            f"{scenario.max_num_batched_tokens} tokens take {activations:,} bytes and the sampler at "
            f"{scenario.max_num_seqs} sequences {sampler:,}; raise the budget or lower the knobs."
        )
    return int(blocks)

"""A model on a GPU with its knobs: the question that ``plan`` and a cell's KV pool ask alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ..sim.facts.device import DeviceSpec
from ..sim.facts.hf_config import quantization_of
from ..sim.facts.library import load_model_config
from ..sim.facts.memory import Knobs, MemoryPlan, plan_memory
from ..sim.facts.model import ModelConfig


@dataclass(frozen=True, slots=True)
class Ask:
    """A model on so many GPUs of a kind, and its knobs."""

    model: ModelConfig
    device: DeviceSpec
    knobs: Knobs
    max_model_len: int
    enable_chunked_prefill: bool = True
    num_gpu_blocks: int | None = None
    """Given instead of derived."""

    @property
    def memory(self) -> MemoryPlan:
        """Where a GPU's memory goes."""
        return plan_memory(self.model, self.device, self.knobs)

    @property
    def blocks(self) -> int:
        """KV blocks, given or derived."""
        return self.memory.num_gpu_blocks if self.num_gpu_blocks is None else self.num_gpu_blocks

    @property
    def fits(self) -> bool:
        """Whether a server would start: one request of ``max_model_len`` tokens has room."""
        return self.blocks >= max(2, -(-self.max_model_len // self.knobs.block_size))

    def with_knobs(self, **changes: object) -> Ask:
        """The same with some knobs changed."""
        return replace(self, knobs=replace(self.knobs, **changes))  # type: ignore[arg-type]


@lru_cache(maxsize=32)
def configured(model: str | ModelConfig, quantization: str | None = None) -> ModelConfig:
    """A model's shape as a server would hold it: float32 checkpoints are served in 16 bits, and ``quantization``
    replaces what the config says. Raises ``FactsError``.
    """
    config = load_model_config(model) if isinstance(model, str) else model
    if config.dtype == "float32":
        config = replace(config, dtype="bfloat16")
    return config if quantization is None else replace(config, quantization=quantization_of(quantization))

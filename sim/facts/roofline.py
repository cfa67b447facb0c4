"""A first answer without any measurement: the roofline of a model on a device, both from public figures."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ..cost.models import HostTerm, Roofline
from ..cost.profile import ModelFacts, ProfileError
from . import ROOFLINE
from .device import DeviceSpec
from .model import ModelConfig


def roofline(model: ModelConfig, device: DeviceSpec, tensor_parallel_size: int = 1, kv_dtype: str = "auto") -> Roofline:
    """One GPU of a tensor-parallel group: its share of the weights and KV read at the full bandwidth of the data
    sheet, its share of the arithmetic at the dense peak of the dtype that is computed in. Links, launches and the host
    take no time; with experts all weights are read, whoever is routed where.
    """
    tp = tensor_parallel_size
    lm_head = model.vocab_size * model.hidden_size
    looked_up = 0 if model.tie_word_embeddings else lm_head
    quantization = model.quantization.method if model.quantization else ""
    return Roofline(
        weight_bytes=float(model.weight_bytes(tp)),
        kv_bytes_per_token=float(model.kv_bytes_per_token(tp, kv_dtype)),
        flops_per_token=2.0 * (model.num_active_parameters - lm_head - looked_up) / tp,
        flops_per_sample=2.0 * lm_head / tp,
        flops_per_attention_pair=4.0 * model.num_layers * model.num_q_heads * model.head_dim / tp,
        memory_bytes_per_s=device.memory_bytes_per_s,
        flops_per_s=device.flops_per_s("fp8" if quantization == "fp8" else model.dtype),
        name=ROOFLINE,
    )


@dataclass(frozen=True, slots=True)
class RooflineProfile:
    """Stands where a calibrated profile would: the same questions, answered from data sheets."""

    config: ModelConfig
    device: DeviceSpec
    tensor_parallel_size: int = 1
    kv_dtype: str = "auto"

    @property
    def model(self) -> ModelFacts:
        """The model in a profile's form."""
        return self.config.facts()

    @property
    def cost_model(self) -> Roofline:
        """The bare roofline."""
        return roofline(self.config, self.device, self.tensor_parallel_size, self.kv_dtype)

    def cost_model_for(self, max_num_seqs: int, max_num_batched_tokens: int) -> Roofline:
        """The same, whatever the knobs: a roofline pads nothing to captured sizes."""
        return self.cost_model

    @property
    def host(self) -> HostTerm:
        """None is known."""
        return HostTerm()

    def hash(self) -> str:
        """A name for exactly this model, device and degree."""
        parts = (self.config.digest(), self.device.name, self.tensor_parallel_size, self.kv_dtype)
        return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:16]

    def check(self, *, model: str, dtype: str, device: str, threads: int | None, block_size: int) -> None:
        """Raise ``ProfileError`` unless this is the model that is asked for; the rest does not change a roofline."""
        if model != self.config.name:
            raise ProfileError(
                f"The roofline is of {self.config.name!r}, but the scenario asks for {model!r}: give one model."
            )

"""Operator times of a model on a GPU nobody profiled for us: each operator's own roofline at the efficiency that
measured tables show.

The constants are read off AIConfigurator's tables of the A100 and the H100 (vLLM 0.14 and 0.24, bfloat16; data sheets
312 and 989 TFLOP/s, 2.04 and 3.35 TB/s) and LLMServingSim's of the RTX PRO 6000, not off any run of a server.
``benchmarks/operator_tables.py`` prints how far a matrix product computed so is from those tables.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ...facts.device import DeviceSpec
from ...facts.model import ModelConfig
from ..profile import ProfileError
from .all_reduce import PER_LAYER, PER_PASS
from .composed import Operators, TableProfile
from .lines import Line
from .operator_table import AttentionLoad

MEMORY_EFFICIENCY = 0.75
"""Of the data sheet's bandwidth, reading a layer's weights (0.65 to 0.75 on the A100, 0.73 to 0.92 on the H100)."""
COMPUTE_EFFICIENCY = 0.80
"""Of the dense peak, products of 1,024 tokens or more (0.79 to 0.95 and 0.72 to 0.85)."""
KERNEL_S = 3e-6
"""A small kernel in a CUDA graph."""
KERNELS_A_LAYER = 5
"""Two norms, rotation, activation, KV write."""
ATTENTION_CALL_S = 11e-6
"""The shortest attention call of either GPU (11.0 to 11.6 µs)."""
KV_EFFICIENCY = 0.85
"""Of the bandwidth, reading the KV of a batch whose call is long (0.77 to 0.93)."""
PREFILL_EFFICIENCY = 0.55
"""Of the dense peak, attention of long prompts (0.50 to 0.56 and 0.47 to 0.63)."""
SAMPLER_S = 25e-6
"""The sampler at one row on the RTX PRO 6000, and there 0.3 µs a row more: its logits read once in float32."""
SHARPNESS = 4.0
"""Where memory and compute take equally long a product takes 2^(1/4) times either (measured 1.2 to 1.6)."""
LINK_EFFICIENCY = 0.6
ALL_REDUCE_S = 8e-6
"""The shortest all-reduce in a graph (4.3 to 9 µs over 2 to 8 GPUs)."""
TOKENS = (1, 2, 4, *range(8, 256, 8), *range(256, 2048, 32), *range(2048, 16385, 512), 32768, 65536)


@dataclass(frozen=True, slots=True)
class SpecAttention:
    """KV bytes over the bandwidth for decodes, query-context pairs over the peak for chunks, and a call's floor."""

    num_layers: int
    kv_bytes_per_token_layer: float
    flops_per_pair_layer: float
    bytes_per_s: float
    flops_per_s: float

    def seconds(self, load: AttentionLoad) -> float:
        """Over all layers."""
        decode_s = load.num_decodes * load.mean_kv * self.kv_bytes_per_token_layer / self.bytes_per_s
        pairs = load.chunk * (load.chunk_start + load.chunk / 2)
        return self.num_layers * (ATTENTION_CALL_S + decode_s + pairs * self.flops_per_pair_layer / self.flops_per_s)

    def reaches(self, load: AttentionLoad) -> bool:
        """A law has no edge."""
        return True


def spec_profile(
    config: ModelConfig, device: DeviceSpec, *, tensor_parallel: int = 1, kv_dtype: str = "auto"
) -> TableProfile:
    """The profile of ``config`` on ``device``. Raises ``ProfileError`` (or ``FactsError``) where the heads cannot be
    split.
    """
    config.check_tensor_parallel(tensor_parallel)
    law = SpecLaw(config, device, tensor_parallel)
    attention = SpecAttention(
        num_layers=config.num_layers,
        kv_bytes_per_token_layer=config.kv_bytes_per_token(tensor_parallel, kv_dtype) / config.num_layers,
        flops_per_pair_layer=4.0 * config.num_q_heads / tensor_parallel * config.head_dim,
        bytes_per_s=KV_EFFICIENCY * device.memory_bytes_per_s,
        flops_per_s=PREFILL_EFFICIENCY * device.flops_per_s(config.dtype),
    )
    operators = Operators(
        Line((tokens, law.dense_s(tokens)) for tokens in TOKENS), attention, Line((n, law.head_s(n)) for n in TOKENS)
    )
    said = f"{config.digest()}|{device}|{tensor_parallel}|{kv_dtype}"
    return TableProfile(
        source=f"{config.name} on {device.name}",
        layout="data sheet × measured efficiencies",
        tensor_parallel=tensor_parallel,
        model=config.facts(),
        device=device.facts(config.dtype),
        block_size=16,
        operators=operators,
        digest=hashlib.sha256(said.encode()).hexdigest()[:16],
        notes=(f"no profile of {device.name}: operators by data sheet at efficiencies measured on A100 and H100",),
        provenance={"device": device.source},
    )


@dataclass(frozen=True, slots=True)
class SpecLaw:
    """Seconds of one rank's operators."""

    config: ModelConfig
    device: DeviceSpec
    tensor_parallel: int

    def dense_s(self, tokens: int) -> float:
        """All layers at T tokens, attention left out."""
        c, tp = self.config, self.tensor_parallel
        attention = c.hidden_size * c.head_dim * (c.num_q_heads + 2 * c.num_kv_heads) / tp
        output = c.hidden_size * c.head_dim * c.num_q_heads / tp
        mlp, active = self._mlp_weights(tokens)
        products = [(attention, attention), (output, output), (mlp / 2, active / 2), (mlp / 2, active / 2)]
        layer = sum(self.product_s(read, used, tokens) for read, used in products)
        layer += self.small_s(tokens)
        reduces = (PER_LAYER * c.num_layers + PER_PASS) * self._all_reduce_s(tokens)
        return c.num_layers * layer + reduces

    def small_s(self, tokens: int) -> float:
        """Norms, rotation, activation and KV write of one layer."""
        c = self.config
        moved = tokens * c.dtype_bytes * (8 * c.hidden_size + 3 * c.intermediate_size / self.tensor_parallel)
        return KERNELS_A_LAYER * KERNEL_S + moved / (MEMORY_EFFICIENCY * self.device.memory_bytes_per_s)

    def head_s(self, num_rows: int) -> float:
        """Final projection and sampler."""
        c = self.config
        weights = c.vocab_size * c.hidden_size / self.tensor_parallel
        bandwidth = self.device.memory_bytes_per_s
        product = max(
            weights * c.dtype_bytes / (MEMORY_EFFICIENCY * bandwidth),
            2.0 * weights * num_rows / (COMPUTE_EFFICIENCY * self.device.flops_per_s(c.dtype)),
        )
        return product + self.sampler_s(num_rows)

    def sampler_s(self, num_rows: int) -> float:
        """Reading the logits once, and a floor."""
        return SAMPLER_S + 4.0 * self.config.vocab_size * num_rows / self.device.memory_bytes_per_s

    def product_s(self, weights_read: float, weights_used: float, tokens: int) -> float:
        """One matrix product: all its weights are read, ``weights_used`` of them met by each token."""
        c = self.config
        per_weight = c.quantization.bytes_per_weight if c.quantization else float(c.dtype_bytes)
        fp8 = c.quantization is not None and c.quantization.method == "fp8"
        peak = self.device.flops_per_s("fp8" if fp8 else c.dtype)
        memory_s = weights_read * per_weight / (MEMORY_EFFICIENCY * self.device.memory_bytes_per_s)
        compute_s = 2.0 * weights_used * tokens / (COMPUTE_EFFICIENCY * peak)
        larger, smaller = max(memory_s, compute_s), min(memory_s, compute_s)
        both_s: float = larger * (1.0 + (smaller / larger) ** SHARPNESS) ** (1.0 / SHARPNESS)
        return KERNEL_S + both_s

    def _mlp_weights(self, tokens: int) -> tuple[float, float]:
        """Weights of an MLP that are read, and that one token meets."""
        c = self.config
        matrices = (3 if c.gated_mlp else 2) * c.hidden_size / self.tensor_parallel
        shared = matrices * c.shared_intermediate_size
        if not c.num_experts:
            return matrices * c.intermediate_size + shared, matrices * c.intermediate_size + shared
        each = c.num_experts_per_token
        met = c.num_experts * (1.0 - (1.0 - each / c.num_experts) ** tokens)
        return matrices * c.intermediate_size * met + shared, matrices * c.intermediate_size * each + shared

    def _all_reduce_s(self, tokens: int) -> float:
        tp = self.tensor_parallel
        if tp == 1:
            return 0.0
        if not self.device.link_bytes_per_s:
            raise ProfileError(f"{self.device.name} has no known link: tensor parallelism cannot be predicted for it.")
        moved = 2.0 * (tp - 1) / tp * tokens * self.config.hidden_size * self.config.dtype_bytes
        return ALL_REDUCE_S + moved / (LINK_EFFICIENCY * self.device.link_bytes_per_s / 2)

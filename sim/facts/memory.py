"""Where a GPU's memory goes at start-up: weights, the peak of a forward, graphs, and what is left for KV blocks.

As vLLM's profile run finds it. A forward of ``max_num_batched_tokens`` tokens holds, at the activation of an MLP, three
hidden-size tensors (residual, the layer's input, the MLP's input) and the MLP's own: gate and up together and their
product. The sampler then holds ``max_num_seqs`` rows of logits in several forms beside the last hidden states. The two
do not overlap, so the larger counts. Held against published logs in ``tests/sim/facts/test_memory.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..cost.tables.graph_sizes import capture_sizes
from .device import DeviceSpec
from .errors import FactsError
from .model import ModelConfig

GIB = 2**30
GPU_MEMORY_UTILIZATION = 0.92
"""vLLM 0.33's default; 0.90 in versions before."""
BLOCK_SIZE = 16
SAMPLER_BYTES_PER_LOGIT = 39
"""Bytes alive for one logit while top-k and top-p sort: 2 as computed, 4 as float32, 12 sorted with 64-bit indices and
12 of the sort's own, 4 and 4 for softmax and running sum, 1 of masks. Logs: 1.26 GiB at 256 × 128,256 and 8,192
tokens (vllm-project/vllm#10511), which is 39; 1.40 GiB at 256 × 151,936 and 2,048 tokens (Qwen3-8B), which is 38."""
NON_TORCH_BYTES = int(0.35 * GIB)
"""CUDA context, NCCL and library workspaces that PyTorch does not allocate: 0.35 GiB in vllm-project/vllm#10517 (RTX
3090); published logs of other cards and versions say 0.02 to 0.35, and more with several GPUs."""
CUDA_GRAPH_BYTES_PER_SIZE = 10 * 2**20
"""Of each captured size: 0.64 GiB for the 67 sizes of early V1 in vllm-project/vllm#14728."""
LIVE_HIDDEN_TENSORS = 3
MOE_CHUNK_TOKENS = 32768
"""Tokens that vLLM's fused experts take at a time; their buffers grow no further."""


class Shape(Protocol):
    """What the peak of a forward follows from; a ``ModelConfig`` or a profile's ``ModelFacts``."""

    @property
    def name(self) -> str: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int | None: ...
    @property
    def gated_mlp(self) -> bool | None: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def dtype_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Knobs:
    """What decides the pool of one GPU, under vLLM's names."""

    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION
    kv_cache_dtype: str = "auto"
    block_size: int = BLOCK_SIZE
    enforce_eager: bool = False
    """No CUDA graphs."""

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise FactsError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization:g}, but it must be above 0 and at most 1."
            )


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one GPU of the tensor-parallel group."""

    total_bytes: int
    usable_bytes: int
    """``gpu_memory_utilization`` of the total."""
    weight_bytes: int
    activation_bytes: int
    """Peak of a forward of ``max_num_batched_tokens`` tokens."""
    sampler_bytes: int
    """Peak of sampling ``max_num_seqs`` sequences."""
    cuda_graph_bytes: int
    non_torch_bytes: int
    block_bytes: int
    """Of one KV block."""

    @property
    def peak_bytes(self) -> int:
        """The larger of the two peaks, which do not overlap."""
        return max(self.activation_bytes, self.sampler_bytes)

    @property
    def kv_bytes(self) -> int:
        """What is left for KV blocks; negative where the rest does not fit."""
        taken = self.weight_bytes + self.peak_bytes + self.cuda_graph_bytes + self.non_torch_bytes
        return self.usable_bytes - taken

    @property
    def num_gpu_blocks(self) -> int:
        """Whole KV blocks that fit, the null block included, as vLLM counts them."""
        return max(0, self.kv_bytes // self.block_bytes)


def plan_memory(model: ModelConfig, device: DeviceSpec, knobs: Knobs) -> MemoryPlan:
    """Where ``device``'s memory goes. Raises ``FactsError`` if the heads cannot be split or a dtype is unknown."""
    tp = knobs.tensor_parallel_size
    sizes = capture_sizes(knobs.max_num_seqs, knobs.max_num_batched_tokens)
    return MemoryPlan(
        total_bytes=device.memory_bytes,
        usable_bytes=int(device.memory_bytes * knobs.gpu_memory_utilization),
        weight_bytes=model.weight_bytes(tp),
        activation_bytes=activation_bytes(model, knobs.max_num_batched_tokens, tp),
        sampler_bytes=sampler_bytes(model, knobs.max_num_seqs, knobs.max_num_batched_tokens),
        cuda_graph_bytes=0 if knobs.enforce_eager else CUDA_GRAPH_BYTES_PER_SIZE * len(sizes),
        non_torch_bytes=NON_TORCH_BYTES,
        block_bytes=model.kv_bytes_per_token(tp, knobs.kv_cache_dtype) * knobs.block_size,
    )


def activation_bytes(shape: Shape, max_num_batched_tokens: int, tensor_parallel_size: int = 1) -> int:
    """Peak of a forward of so many tokens on each GPU: (3 · hidden + 3 · MLP width / GPUs) · bytes a token for a gated
    MLP, 2 widths for a plain one. With experts, a token takes those of every expert it is routed to.
    """
    if shape.intermediate_size is None:
        raise FactsError(
            f"The profile of {shape.name} does not say how wide its MLP is (it was written by an earlier version): "
            f"calibrate again, or fix num_gpu_blocks."
        )
    hidden = LIVE_HIDDEN_TENSORS * shape.hidden_size * max_num_batched_tokens
    width = shape.intermediate_size // tensor_parallel_size
    if isinstance(shape, ModelConfig) and shape.num_experts:
        return (hidden + _expert_elements(shape, max_num_batched_tokens, width)) * shape.dtype_bytes
    matrices = 2 if shape.gated_mlp is False else 3
    return (hidden + matrices * width * max_num_batched_tokens) * shape.dtype_bytes


def _expert_elements(model: ModelConfig, num_tokens: int, width: int) -> int:
    """Buffers of vLLM's fused experts: gate and up, or the outputs, in one; their product in another."""
    rows = min(num_tokens, MOE_CHUNK_TOKENS) * model.num_experts_per_token
    return rows * (max(2 * width, model.hidden_size) + width) + num_tokens * model.hidden_size


def sampler_bytes(shape: Shape, max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Peak of sampling so many sequences, the last hidden states of the batch still alive. Every GPU of a group holds
    the whole vocabulary's logits.
    """
    seqs = min(max_num_seqs, max_num_batched_tokens)
    last_hidden = max_num_batched_tokens * shape.hidden_size * shape.dtype_bytes
    return seqs * shape.vocab_size * SAMPLER_BYTES_PER_LOGIT + last_hidden


def max_concurrency(num_gpu_blocks: int, max_model_len: int, block_size: int = BLOCK_SIZE) -> float:
    """The "Maximum concurrency for L tokens per request" of vLLM: blocks over the whole blocks of such a request."""
    return num_gpu_blocks / -(-max_model_len // block_size)

"""Where a GPU's memory goes at start-up: weights, the peak of a forward, graphs, and what is left for KV blocks.

As vLLM's profile run finds it. A forward of ``max_num_batched_tokens`` tokens holds, at the activation of an MLP, a few
hidden-size tensors (residual, the layer's input, the MLP's input, an output) and the MLP's own: gate and up together,
and their product. The sampler then holds ``max_num_seqs`` rows of logits in several forms beside the last hidden
states. The two do not overlap, so the larger counts. How many of each, and what is charged at all, changed with
vLLM's versions (``Rules``). Held against published logs in ``tests/sim/facts/test_memory.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from ...scheduler.graph_sizes import capture_sizes
from .device import DeviceSpec
from .errors import FactsError
from .model import ModelConfig

GIB = 2**30
GPU_MEMORY_UTILIZATION = 0.92
"""vLLM 0.33's default; 0.90 in versions before."""
BLOCK_SIZE = 16
CUDA_GRAPH_BYTES = int(0.45 * 2**20)
"""Of one captured size and layer. vLLM's own estimates: 0.37 GiB for 35 sizes of 28 layers (Qwen2.5-7B), 0.64 and 0.78
for 51 of 32, 1.59 for 51 of 64 (Qwen2.5-32B-AWQ), which are 0.40, 0.40, 0.49 and 0.50 MiB."""
MOE_CHUNK_TOKENS = 32768
"""Tokens that vLLM's fused experts take at a time; their buffers grow no further."""
H100_STUDY = "llm-d's capacity planner accuracy report, H100, vLLM 0.15 to 0.19"
"""Where most constants of V1 come from: start-up logs of 28 models."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a version of vLLM holds and charges."""

    since: tuple[int, int]
    """First version, as (major, minor)."""
    live_hidden_tensors: int
    """Hidden-size tensors alive at the peak of a layer. 3 in V0: 20,000 and 29,000 tokens of Llama-3.1-8B take 2.07 and
    2.99 GiB (vllm-project/vllm#10517). 4 in V1: CodeLlama-7B 0.77, granite-3.1-8B 0.85 at 8,192 (``H100_STUDY``)."""
    sampler_bytes_per_logit: float
    """Up to 0.16, with a sort for top-k and top-p: 2 as computed, 4 as float32, 12 sorted with 64-bit indices, 12 of
    the sort's own, 4 and 4 for softmax and running sum: 38 and masks. Logs: 4.76 GiB at 1,024 × 128,256, 5.64 at
    1,024 × 151,936 (``H100_STUDY`` and its forerunner), 1.26 at 256 × 128,256 (vllm-project/vllm#10511). From 0.17
    without the sort, 2 + 4 + 4 + 4 and masks: 1.89, 2.21, 3.63 (256,000) and 1.52 GiB (100,352) in ``H100_STUDY``."""
    non_torch_bytes: int
    """CUDA's and the libraries' memory that PyTorch does not allocate, on one GPU."""
    non_torch_parallel_bytes: int
    """The same in a tensor-parallel group, with NCCL's buffers."""
    charges_graphs: bool
    """Whether CUDA graphs are estimated and charged before the KV cache (by default since 0.21)."""
    experts_stay: bool
    """Whether the experts' buffers outlive the forward."""


RULES = (
    Rules((0, 0), 3, 38.5, int(0.35 * GIB), int(0.35 * GIB), charges_graphs=False, experts_stay=False),
    Rules((0, 8), 4, 38.5, int(0.13 * GIB), int(0.55 * GIB), charges_graphs=False, experts_stay=False),
    Rules((0, 17), 4, 15.0, int(0.25 * GIB), int(2.1 * GIB), charges_graphs=False, experts_stay=True),
    Rules((0, 21), 4, 15.0, int(0.25 * GIB), int(2.1 * GIB), charges_graphs=True, experts_stay=True),
)
"""By version. Logs of 0.19 and 0.22 are the newest that these were held against; later versions are taken as alike."""
VLLM_VERSION = "0.33"
"""Whose memory account is taken where nothing is said."""


def rules_of(vllm_version: str) -> Rules:
    """The rules of a version such as 0.19 or v0.6.4. Raises ``FactsError`` if it is none."""
    numbers = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(\.\w+)*", vllm_version)
    if numbers is None:
        raise FactsError(f"{vllm_version!r} is no version of vLLM: give one such as 0.33, 0.19 or 0.6.")
    version = (int(numbers[1]), int(numbers[2]))
    return next(rules for rules in reversed(RULES) if rules.since <= version)


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
    vllm_version: str = VLLM_VERSION

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
    """Where ``device``'s memory goes. Raises ``FactsError`` if the heads cannot be split, or a dtype or the version is
    unknown.
    """
    tp, tokens, rules = knobs.tensor_parallel_size, knobs.max_num_batched_tokens, rules_of(knobs.vllm_version)
    graphs = len(capture_sizes(knobs.max_num_seqs, tokens)) * model.num_layers * CUDA_GRAPH_BYTES
    return MemoryPlan(
        total_bytes=device.memory_bytes,
        usable_bytes=int(device.memory_bytes * knobs.gpu_memory_utilization),
        weight_bytes=model.weight_bytes(tp),
        activation_bytes=activation_bytes(model, tokens, tp, rules),
        sampler_bytes=sampler_bytes(model, knobs.max_num_seqs, tokens, tp, rules),
        cuda_graph_bytes=graphs if rules.charges_graphs and not knobs.enforce_eager else 0,
        non_torch_bytes=rules.non_torch_bytes if tp == 1 else rules.non_torch_parallel_bytes,
        block_bytes=model.kv_bytes_per_token(tp, knobs.kv_cache_dtype) * knobs.block_size,
    )


def activation_bytes(
    shape: Shape, max_num_batched_tokens: int, tensor_parallel_size: int = 1, rules: Rules = RULES[-1]
) -> int:
    """Peak of a forward of so many tokens on each GPU: (hidden tensors · hidden size + 3 · MLP width / GPUs) · bytes a
    token for a gated MLP, 2 widths for a plain one; with experts their buffers instead. Raises ``FactsError`` for a
    profile that does not say how wide its MLP is.
    """
    if shape.intermediate_size is None:
        raise FactsError(
            f"The profile of {shape.name} does not say how wide its MLP is (it was written by an earlier version): "
            f"calibrate again, or fix num_gpu_blocks."
        )
    hidden = rules.live_hidden_tensors * shape.hidden_size * max_num_batched_tokens * shape.dtype_bytes
    if isinstance(shape, ModelConfig) and shape.num_experts:
        return hidden + expert_bytes(shape, max_num_batched_tokens, tensor_parallel_size)
    matrices = 2 if shape.gated_mlp is False else 3
    width = shape.intermediate_size // tensor_parallel_size
    return hidden + matrices * width * max_num_batched_tokens * shape.dtype_bytes


def expert_bytes(model: ModelConfig, num_tokens: int, tensor_parallel_size: int = 1) -> int:
    """Buffers of vLLM's fused experts, for every expert that a token is routed to: gate and up, or the outputs, in
    one; their product in another.
    """
    width = model.intermediate_size // tensor_parallel_size
    rows = min(num_tokens, MOE_CHUNK_TOKENS) * model.num_experts_per_token
    return rows * (max(2 * width, model.hidden_size) + width) * model.dtype_bytes


def sampler_bytes(
    shape: Shape,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    tensor_parallel_size: int = 1,
    rules: Rules = RULES[-1],
) -> int:
    """Peak of sampling so many sequences, the last hidden states of the batch still alive. Every GPU of a group holds
    the whole vocabulary's logits.
    """
    logits = min(max_num_seqs, max_num_batched_tokens) * shape.vocab_size
    alive = max_num_batched_tokens * shape.hidden_size * shape.dtype_bytes
    if rules.experts_stay and isinstance(shape, ModelConfig) and shape.num_experts:
        alive += expert_bytes(shape, max_num_batched_tokens, tensor_parallel_size)
    return int(logits * rules.sampler_bytes_per_logit) + alive


def max_concurrency(num_gpu_blocks: int, max_model_len: int, block_size: int = BLOCK_SIZE) -> float:
    """The "Maximum concurrency for L tokens per request" of vLLM: blocks over the whole blocks of such a request."""
    return num_gpu_blocks / -(-max_model_len // block_size)

"""How many KV blocks a CUDA device has room for, found as vLLM finds it: by running the largest step once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .errors import DeviceUnavailable, OutOfMemory
from .models import LoadedModel
from .probe import AttentionProbe


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What a device's memory goes to, in bytes."""

    total_bytes: int
    weight_bytes: int
    activation_peak_bytes: int
    """Above the weights, in a step of ``max_num_batched_tokens`` tokens whose ``max_num_seqs`` last rows sample."""
    other_bytes: int
    """Taken, but not by torch's tensors: the driver's context, and other processes."""

    def num_gpu_blocks(self, block_bytes: int, gpu_memory_utilization: float) -> int:
        """Blocks, the null block included, in what a share of the whole leaves. Raises ``OutOfMemory``."""
        taken = self.weight_bytes + self.activation_peak_bytes + self.other_bytes
        blocks = int(self.total_bytes * gpu_memory_utilization - taken) // block_bytes
        if blocks < 2:
            raise OutOfMemory(
                f"No KV block fits: {gpu_memory_utilization:.0%} of {self.total_bytes / 1e9:.1f} GB is taken by "
                f"weights ({self.weight_bytes / 1e9:.1f} GB), activations ({self.activation_peak_bytes / 1e9:.1f} GB) "
                f"and others ({self.other_bytes / 1e9:.1f} GB): lower max_num_batched_tokens or raise "
                f"gpu_memory_utilization."
            )
        return blocks


def block_bytes(loaded: LoadedModel, block_size: int) -> int:
    """Bytes of one KV block over all layers."""
    shape = loaded.shape
    return 2 * shape.num_layers * block_size * shape.num_kv_heads * shape.head_dim * loaded.model.dtype.itemsize


def measure_memory(loaded: LoadedModel, *, max_num_seqs: int, max_num_batched_tokens: int) -> DeviceMemory:
    """Run one step at the budget, without attention (as vLLM's profile run), and read torch's own peak. Raises
    ``DeviceUnavailable`` on a CPU, where memory is no such pool, and ``OutOfMemory``.
    """
    if loaded.device != "cuda":
        raise DeviceUnavailable("KV blocks are measured on a CUDA device only: give num_gpu_blocks or a memory budget.")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    weights = torch.cuda.memory_allocated()
    try:
        _largest_step(loaded, max_num_seqs, max_num_batched_tokens)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"A step of {max_num_batched_tokens} tokens does not fit beside {weights / 1e9:.1f} GB of weights: lower "
            f"max_num_batched_tokens."
        ) from error
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - weights
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return DeviceMemory(total, weights, peak, max(0, total - free - torch.cuda.memory_reserved()))


@torch.inference_mode()
def _largest_step(loaded: LoadedModel, max_num_seqs: int, max_num_batched_tokens: int) -> None:
    positions = torch.arange(max_num_batched_tokens, device=loaded.device) % loaded.shape.max_model_len
    rows = torch.arange(min(max_num_seqs, max_num_batched_tokens), device=loaded.device)
    logits = loaded.model(
        input_ids=torch.zeros_like(positions)[None],
        position_ids=positions[None],
        use_cache=False,
        logits_to_keep=rows,
        paged=AttentionProbe(),
    ).logits[0]
    logits.float().softmax(dim=-1)  # the sampler's peak

from __future__ import annotations

import pytest
import torch

from batchtwin.executor.design import design_batch
from batchtwin.executor.engine import Engine
from batchtwin.executor.errors import DeviceUnavailable, OutOfMemory
from batchtwin.executor.memory import DeviceMemory, block_bytes, measure_memory
from batchtwin.executor.models import load_model
from batchtwin.kernels.errors import KernelError

GB = 10**9


def test_blocks_are_what_a_share_of_the_memory_leaves() -> None:
    # An 8B model on 80 GB: 0.9 · 80 − 16 − 2 − 0.5 = 53.5 GB, in blocks of 16 tokens × 131,072 bytes.
    memory = DeviceMemory(80 * GB, 16 * GB, 2 * GB, GB // 2)
    assert memory.num_gpu_blocks(16 * 131_072, 0.9) == 53_500_000_000 // 2_097_152 == 25_510


def test_no_room_is_said_with_what_took_it() -> None:
    memory = DeviceMemory(24 * GB, 16 * GB, 6 * GB, GB)
    with pytest.raises(OutOfMemory, match=r"weights \(16.0 GB\), activations \(6.0 GB\).*lower max_num_batched_tokens"):
        memory.num_gpu_blocks(2_097_152, 0.9)


def test_a_block_holds_keys_and_values_of_every_layer() -> None:
    assert block_bytes(load_model("tiny-llama"), 16) == 2 * 4 * 16 * 4 * 32 * 4


def test_a_cpu_has_no_pool_to_measure() -> None:
    with pytest.raises(DeviceUnavailable, match="give num_gpu_blocks"):
        measure_memory(load_model("tiny-llama"), max_num_seqs=4, max_num_batched_tokens=64)


class _Broken(Engine):
    """A device that fails in its first step, or in any."""

    error: Exception = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    at_start = True

    def _warm_up(self) -> None:
        if self.at_start:
            raise self.error

    def _forward(self, shapes: object) -> torch.Tensor:
        raise self.error


def test_memory_that_runs_out_at_start_is_said_with_the_knob_to_turn() -> None:
    with pytest.raises(OutOfMemory) as caught:
        _Broken(load_model("tiny-llama"), num_gpu_blocks=100, block_size=16)
    # 5.25 million parameters of 4 bytes; 100 blocks of 65,536 bytes
    assert "the weights take 0.02 GB and 100 KV blocks 0.01 GB; lower num_gpu_blocks" in str(caught.value)


def test_memory_that_runs_out_in_a_step_names_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Broken, "at_start", False)
    engine = _Broken(load_model("tiny-llama"), num_gpu_blocks=100, block_size=16)
    with pytest.raises(OutOfMemory, match="in a step of 23 tokens"):
        engine.run(design_batch([40, 50, 60], [(0, 20)], block_size=16, num_gpu_blocks=100))


def test_a_kernel_that_cannot_be_compiled_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Broken, "error", KernelError("Triton 3.8.0 cannot compile the kernel: no C compiler."))
    with pytest.raises(DeviceUnavailable, match="cannot compile the kernel"):
        _Broken(load_model("tiny-llama"), num_gpu_blocks=100, block_size=16)


def test_any_other_error_is_not_called_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Broken, "error", RuntimeError("shape mismatch"))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        _Broken(load_model("tiny-llama"), num_gpu_blocks=100, block_size=16)

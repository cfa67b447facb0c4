"""The paged KV cache: blocks of keys and values for every layer, on the device and, for swapping, on the host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from .devices import free_memory_bytes
from .errors import KVCacheTooLarge
from .models import ModelShape


def check_room(num_blocks: int, block_size: int, num_bytes: int, device: str) -> None:
    """Raise ``KVCacheTooLarge`` before the memory is taken: a CPU would hand it out and be killed when it is filled."""
    free = free_memory_bytes(device)
    if num_bytes > free:
        raise KVCacheTooLarge(
            f"A KV cache of {num_blocks} blocks of {block_size} tokens takes {num_bytes / 1e9:.1f} GB, but beside the "
            f"weights {device} has {free / 1e9:.1f} GB free: lower num_gpu_blocks."
        )


class PagedKVCache:
    """``num_blocks`` blocks of ``block_size`` tokens, block 0 the null block that belongs to nobody.

    One tensor [2, layers, blocks, block_size, kv_heads, head_dim] holds keys and values; layers see views of it.
    """

    def __init__(self, num_blocks: int, block_size: int, shape: ModelShape, device: str, dtype: torch.dtype) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        layout = (2, shape.num_layers, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        check_room(num_blocks, block_size, math.prod(layout) * dtype.itemsize, device)
        try:
            self._data = torch.empty(layout, device=device, dtype=dtype)
        except RuntimeError as error:  # torch.OutOfMemoryError is one; the CPU's allocator raises a plain one
            raise KVCacheTooLarge(
                f"A KV cache of {num_blocks} blocks of {block_size} tokens does not fit the memory of {device}: "
                f"lower num_gpu_blocks."
            ) from error
        # Written, not calloc'ed: untouched memory is one shared page of zeros, which reads faster than any real cache.
        self._data.fill_(0.0)
        self.layers: list[tuple[Tensor, Tensor]] = list(zip(self._data[0], self._data[1], strict=True))
        self._host = torch.empty((2, shape.num_layers, 0, *layout[3:]), dtype=dtype)

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return self._data.nbytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers: what swapping it moves."""
        return self._data.nbytes // self.num_blocks

    def poison(self, blocks: Iterable[int]) -> None:
        """Fill ``blocks`` with NaN: whoever reads them shows it."""
        self._data[:, :, list(blocks)] = float("nan")

    def swap_out(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy (device block, host block) pairs to the host."""
        if copies:
            device_blocks, host_blocks = zip(*copies, strict=True)
            self._reserve_host(max(host_blocks) + 1)
            self._host[:, :, list(host_blocks)] = self._data[:, :, list(device_blocks)].to("cpu")

    def swap_in(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy (device block, host block) pairs back to the device."""
        if copies:
            device_blocks, host_blocks = zip(*copies, strict=True)
            self._data[:, :, list(device_blocks)] = self._host[:, :, list(host_blocks)].to(self._data.device)

    def _reserve_host(self, num_blocks: int) -> None:
        have = self._host.shape[2]
        if num_blocks > have:
            grown = torch.empty((*self._host.shape[:2], max(num_blocks, 2 * have), *self._host.shape[3:]))
            grown = grown.to(self._host.dtype)
            grown[:, :, :have] = self._host
            self._host = grown

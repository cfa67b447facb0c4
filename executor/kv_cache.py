"""The paged KV cache: blocks of keys and values for every layer, on the device and, for swapping, on the host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from .devices import free_memory_bytes
from .errors import KVCacheTooLarge
from .models import ModelShape

SWAP_GROUP_BLOCKS = 32
"""Blocks that are on their way at a time: what swapping takes of the device's memory beside the cache."""


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

    One tensor [2, layers, blocks, block_size, kv_heads, head_dim] holds keys and values; layers see views of it. Host
    blocks, numbered from 1 as well, lie one after the other, all layers of a block side by side, so that each travels
    in one piece; beside a CUDA device their memory is pinned.

    Swapping never waits for the device. It is ordered by the stream alone: gathering a block, sending it, and every
    kernel that could overwrite it are queued on the current stream, in that order. So a device block is read before
    the step that its new owner is in writes to it, a host block is complete before it is sent back, and it is sent
    before another block overwrites it. The host itself never reads or writes pinned blocks.
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
        self._pinned = device == "cuda"
        self._host = self._data.new_empty((0, 2, shape.num_layers, *layout[3:]), device="cpu")

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return self._data.nbytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers: what swapping it moves."""
        return self._data.nbytes // self.num_blocks

    @property
    def num_host_blocks(self) -> int:
        """Host blocks there is memory for."""
        return self._host.shape[0]

    def poison(self, blocks: Iterable[int]) -> None:
        """Fill ``blocks`` with NaN: whoever reads them shows it."""
        self._data[:, :, list(blocks)] = float("nan")

    def reserve_host(self, num_blocks: int) -> None:
        """Room for ``num_blocks`` host blocks, in one piece: a scenario's ``num_cpu_blocks``, taken before it runs.
        More that is asked for later moves what is there, for which everything queued must have ended. Raises
        ``KVCacheTooLarge``.
        """
        have = self.num_host_blocks
        if num_blocks <= have:
            return
        num_bytes = num_blocks * self.block_bytes
        # torch keeps pinned memory in pieces of powers of two.
        _check_host_room(num_blocks, 1 << (num_bytes - 1).bit_length() if self._pinned else num_bytes)
        try:
            grown = torch.empty((num_blocks, *self._host.shape[1:]), dtype=self._host.dtype, pin_memory=self._pinned)
        except RuntimeError as error:
            raise KVCacheTooLarge(_no_host_room(num_blocks, num_bytes)) from error
        if have:
            if self._pinned:
                torch.cuda.current_stream().synchronize()
            grown[:have] = self._host
        self._host = grown

    def swap_out(self, copies: Sequence[tuple[int, int]]) -> None:
        """Queue the copy of (device block, host block) pairs to the host."""
        if not copies:
            return
        self._grow_host(max(host_block for _, host_block in copies))
        for group in _groups(copies):
            blocks = self._data.index_select(2, self._index(group)).permute(2, 0, 1, 3, 4, 5).contiguous()
            for block, (_, host_block) in zip(blocks, group, strict=True):
                self._host[host_block - 1].copy_(block, non_blocking=True)

    def swap_in(self, copies: Sequence[tuple[int, int]]) -> None:
        """Queue the copy of (device block, host block) pairs back to the device."""
        for group in _groups(copies):
            blocks = self._data.new_empty((len(group), *self._host.shape[1:]))
            for block, (_, host_block) in zip(blocks, group, strict=True):
                block.copy_(self._host[host_block - 1], non_blocking=True)
            self._data.index_copy_(2, self._index(group), blocks.permute(1, 2, 0, 3, 4, 5))

    def _index(self, copies: Sequence[tuple[int, int]]) -> Tensor:
        """[copies] device blocks, on the device. torch hands the pinned memory out again only after it was read."""
        host = torch.tensor([device_block for device_block, _ in copies], pin_memory=self._pinned)
        return host.to(self._data.device, non_blocking=True)

    def _grow_host(self, num_blocks: int) -> None:
        if num_blocks > self.num_host_blocks:
            self.reserve_host(max(num_blocks, 2 * self.num_host_blocks))


def _groups(copies: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    for at in range(0, len(copies), SWAP_GROUP_BLOCKS):
        yield copies[at : at + SWAP_GROUP_BLOCKS]


def _check_host_room(num_blocks: int, num_bytes: int) -> None:
    if num_bytes > free_memory_bytes("cpu"):
        raise KVCacheTooLarge(_no_host_room(num_blocks, num_bytes))


def _no_host_room(num_blocks: int, num_bytes: int) -> str:
    return (
        f"{num_blocks} KV blocks for swapping take {num_bytes / 1e9:.1f} GB of the host's memory, but "
        f"{free_memory_bytes('cpu') / 1e9:.1f} GB are free: lower num_cpu_blocks."
    )

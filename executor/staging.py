"""A step's index arrays on their way to the device: one buffer, one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNED = 4
"""int32 elements: 16 bytes. A kernel is compiled anew for a pointer that is aligned otherwise."""
NUM_HOST_BUFFERS = 3
"""One being filled, one on its way, one more than the two steps of asynchronous scheduling need."""


class Staging:
    """Packs integer arrays into pinned host memory and sends them in one asynchronous copy.

    Arrays of the same sizes always land at the same device addresses, as a captured graph needs them; host buffers
    take turns, so that the next step may be packed while this one is still copied. Steps are sent on one stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = device.type == "cuda"
        self._on_device = torch.zeros(0, dtype=torch.int32, device=device)
        self._hosts: list[Tensor] = []
        self._copied: list[Any] = []
        self._turn = 0
        self.num_copies = 0

    def reserve(self, num_elements: int) -> None:
        """Room for so many int32 elements. Growing moves the device buffer: reserve before a graph is captured."""
        if num_elements <= self._on_device.numel():
            return
        if self._pinned:
            torch.cuda.current_stream().synchronize()  # nothing may still read the buffers that go
        size = max(num_elements, 2 * self._on_device.numel())
        self._on_device = torch.zeros(size, dtype=torch.int32, device=self._device)
        self._hosts = [torch.zeros(size, dtype=torch.int32, pin_memory=self._pinned) for _ in range(NUM_HOST_BUFFERS)]
        self._copied = [None] * NUM_HOST_BUFFERS

    def send(self, arrays: Sequence[NDArray[np.integer[Any]]]) -> list[Tensor]:
        """int32 views on the device, of the arrays' shapes."""
        starts = self.starts(arrays)
        self.reserve(starts[-1])
        host = self._next_host()
        flat = host.numpy()
        for array, at in zip(arrays, starts[:-1], strict=True):
            flat[at : at + array.size] = array.ravel()
        self._on_device[: starts[-1]].copy_(host[: starts[-1]], non_blocking=True)
        self.num_copies += 1
        if self._pinned:
            event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._copied[self._turn] = event
        return [
            self._on_device[at : at + array.size].view(array.shape)
            for array, at in zip(arrays, starts[:-1], strict=True)
        ]

    @staticmethod
    def starts(arrays: Sequence[NDArray[np.integer[Any]]]) -> list[int]:
        """Where each array begins, and where the last ends, in elements."""
        sizes = [-(-array.size // _ALIGNED) * _ALIGNED for array in arrays]
        return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]

    def _next_host(self) -> Tensor:
        self._turn = (self._turn + 1) % NUM_HOST_BUFFERS
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        return self._hosts[self._turn]

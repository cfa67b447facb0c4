"""What this device can do at best: the roof under which every iteration runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

_REPEATS = 7
_COPY_BYTES = 256 * 2**20
_MATRIX = 1536


def device_name(device: str) -> str:
    """The device as its maker calls it."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        with open("/proc/cpuinfo") as lines:  # noqa: PTH123  (a pseudo-file)
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return "cpu"


def memory_bytes_per_s(device: str) -> float:
    """Read plus write rate of a copy far larger than the caches, median of seven."""
    source = torch.ones(_COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return 2 * _COPY_BYTES / _seconds(device, lambda: target.copy_(source))


def flops_per_s(device: str, dtype: str) -> float:
    """Rate of a square matrix product in ``dtype``, median of seven."""
    a = torch.ones(_MATRIX, _MATRIX, device=device, dtype=getattr(torch, dtype))
    return 2.0 * _MATRIX**3 / _seconds(device, lambda: a @ a)


def num_threads() -> int:
    """CPU threads the engine's process uses."""
    return torch.get_num_threads()


def _seconds(device: str, work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(_REPEATS):
        _synchronize(device)
        began = time.perf_counter()
        work()
        _synchronize(device)
        times.append(time.perf_counter() - began)
    return median(times)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()

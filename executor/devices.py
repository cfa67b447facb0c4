"""Which devices there are, and what running out of their memory looks like. Importing this imports no torch."""

from __future__ import annotations

import os
from importlib.util import find_spec

from .errors import DeviceUnavailable, OutOfMemory

DEVICES = ("cpu", "cuda")


def check_device(device: str) -> None:
    """Raise ``DeviceUnavailable`` unless torch can use ``device`` here."""
    import torch

    if device not in DEVICES:
        raise DeviceUnavailable(f"Device {device!r} is not supported: choose cpu or cuda.")
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailable(
            "No CUDA device is available to torch here: choose cpu, or install a CUDA build of torch and a driver."
        )
    if device == "cuda" and find_spec("triton") is None:
        raise DeviceUnavailable("The cuda device needs Triton's kernels: install triton, or choose cpu.")


def is_out_of_memory(error: BaseException) -> bool:
    """Torch has an exception of its own for a CUDA device; the CPU's allocator raises a plain ``RuntimeError``."""
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text


def free_memory_bytes(device: str) -> int:
    """Memory that could still be taken: of the GPU, or of the host as the kernel estimates it."""
    if device == "cuda":
        import torch

        free: int = torch.cuda.mem_get_info()[0]
        return free
    try:
        with open("/proc/meminfo") as lines:  # noqa: PTH123  (a pseudo-file)
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_fits(what: str, num_bytes: int, device: str) -> None:
    """Raise ``OutOfMemory`` if ``what`` cannot fit: better said now than killed by the system while it fills."""
    free = free_memory_bytes(device)
    if num_bytes > free:
        raise OutOfMemory(
            f"{what} take {num_bytes / 1e9:.1f} GB, but {device} has {free / 1e9:.1f} GB free: "
            f"choose a smaller model, a smaller dtype or a larger device."
        )

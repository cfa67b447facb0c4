"""What can go wrong between a kernel and a device, each as one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class KernelError(Exception):
    """A kernel that cannot be compiled or launched here, or inputs that it does not take."""


@contextmanager
def explained(kernel: str, shape: Callable[[], str]) -> Iterator[None]:
    """Turn whatever Triton, ptxas, a C compiler or a driver raises while ``kernel`` is built and launched into one
    ``KernelError`` that names the kernel, its ``shape`` (asked for only then) and the cause.
    """
    try:
        yield
    except KernelError:
        raise
    except Exception as error:  # Triton raises RuntimeError, its own classes and those of the tools that it calls
        raise KernelError(
            f"Triton {_triton_version()} cannot compile or launch the kernel {kernel} for {shape()} here "
            f"({cause(error)}): check that a GPU with its driver and a C compiler are there, try another triton, "
            f"or choose the device cpu."
        ) from error


def cause(error: BaseException) -> str:
    """The innermost exception in one line; of a compiler's report the first line that speaks of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower()]
    return " ".join((named or lines or [""])[0].split())[:200].rstrip(".") or type(error).__name__


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return "(not installed)"
    return str(triton.__version__)

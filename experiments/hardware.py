"""What can be told of this machine's hardware without torch, whose import takes seconds."""

from __future__ import annotations

import sys
from pathlib import Path

from .errors import ExperimentError

ACCELERATOR_NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
"""Of NVIDIA's driver, of the same under WSL 2, and of AMD's, which torch also calls cuda."""


def check_hardware(device: str, nodes: tuple[str, ...] = ACCELERATOR_NODES) -> None:
    """Raise ``ExperimentError`` if ``device`` is cuda and the kernel knows of no GPU; torch may still refuse later."""
    if device != "cuda" or sys.platform != "linux" or any(Path(node).exists() for node in nodes):
        return
    raise ExperimentError(
        f"There is no GPU on this machine (none of {', '.join(nodes)} is there): choose the device cpu, or run where "
        f"a GPU and its driver are."
    )

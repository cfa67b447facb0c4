"""The engine on a real device: model, paged KV cache, backend, designed batches and their measured times.

Importing the package imports no torch: names are fetched from their modules when they are first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Before torch is imported: two OpenMP threads that spin beside a busy neighbour cost 15 times a step.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from .backend import DeviceBackend, MeasuredStep
    from .calibration import MeasuredBatch, measure_batches, time_batch_s
    from .checkpoints import PRESETS
    from .design import calibration_batches, design_batch
    from .engine import Engine
    from .errors import DeviceUnavailable, ExecutorError, KVCacheTooLarge, ModelUnavailable, OutOfMemory
    from .models import LoadedModel, ModelShape, load_model
    from .sampling import SamplingParams

_MODULE_OF = {
    "PRESETS": "checkpoints",
    "DeviceBackend": "backend",
    "DeviceUnavailable": "errors",
    "Engine": "engine",
    "ExecutorError": "errors",
    "KVCacheTooLarge": "errors",
    "LoadedModel": "models",
    "MeasuredBatch": "calibration",
    "MeasuredStep": "backend",
    "ModelShape": "models",
    "ModelUnavailable": "errors",
    "OutOfMemory": "errors",
    "SamplingParams": "sampling",
    "calibration_batches": "design",
    "design_batch": "design",
    "load_model": "models",
    "measure_batches": "calibration",
    "time_batch_s": "calibration",
}

__all__ = [
    "PRESETS",
    "DeviceBackend",
    "DeviceUnavailable",
    "Engine",
    "ExecutorError",
    "KVCacheTooLarge",
    "LoadedModel",
    "MeasuredBatch",
    "MeasuredStep",
    "ModelShape",
    "ModelUnavailable",
    "OutOfMemory",
    "SamplingParams",
    "calibration_batches",
    "design_batch",
    "load_model",
    "measure_batches",
    "time_batch_s",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)

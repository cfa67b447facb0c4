"""What can go wrong between a model's name and its first token."""

from __future__ import annotations

from ..scheduler.errors import BatchTwinError


class ExecutorError(BatchTwinError):
    """Base of the executor's errors."""


class ModelUnavailable(ExecutorError):
    """A model that cannot be loaded, has no weights, or cannot run on paged attention."""


class DeviceUnavailable(ExecutorError):
    """A device that this machine or this installation does not have."""


class OutOfMemory(ExecutorError):
    """The device's memory ran out: at start, or in a step."""


class KVCacheTooLarge(OutOfMemory):
    """A KV pool that does not fit the device's memory."""

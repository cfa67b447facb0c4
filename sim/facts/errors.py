"""What can be wrong with a fact."""

from ...scheduler.errors import BatchTwinError


class FactsError(BatchTwinError):
    """A model or a device that is not known, or a config that cannot be read."""

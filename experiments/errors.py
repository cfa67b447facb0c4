"""What can be wrong with an experiment."""

from ..scheduler.errors import BatchTwinError


class ExperimentError(BatchTwinError):
    """A scenario, a grid or a results folder that cannot be used."""

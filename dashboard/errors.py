"""What can be wrong with the dashboard."""

from ..scheduler.errors import BatchTwinError


class DashboardError(BatchTwinError):
    """A results folder that cannot be shown, a port that is taken, a library that is missing."""


class NoSweepError(DashboardError):
    """A page needs a sweep and none is open: the shell says how to make one."""

"""DECIDES: which requests, how many tokens each, which KV blocks. Pure Python and numpy."""

from .batch import Batch, Bound, Chunk
from .config import SchedulerConfig
from .errors import BatchTwinError, ConfigError, InfeasibleBatch, RequestRefused, UnknownPolicy
from .policies import POLICIES, Policy, load_policy
from .request import Request, RequestStatus
from .scheduler import Scheduler
from .shapes import ForwardShapes, PaddedRectangle, forward_shapes, padded_rectangle
from .step import Step
from .waiting import ArrivalQueue, SortedQueue, WaitingQueue

__all__ = [
    "POLICIES",
    "ArrivalQueue",
    "Batch",
    "BatchTwinError",
    "Bound",
    "Chunk",
    "ConfigError",
    "ForwardShapes",
    "InfeasibleBatch",
    "PaddedRectangle",
    "Policy",
    "Request",
    "RequestRefused",
    "RequestStatus",
    "Scheduler",
    "SchedulerConfig",
    "SortedQueue",
    "Step",
    "UnknownPolicy",
    "WaitingQueue",
    "forward_shapes",
    "load_policy",
    "padded_rectangle",
]

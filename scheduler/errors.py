"""What a user can get wrong, as exceptions of our own: each message says what, where and what to do."""


class BatchTwinError(Exception):
    """Base of every error whose message is meant for the user; the command line prints it as one sentence."""


class ConfigError(BatchTwinError):
    """Knobs that contradict each other, the model or the device."""


class RequestRefused(BatchTwinError):
    """A request that could never be served with these knobs."""


class InfeasibleBatch(BatchTwinError):
    """A policy has to form a batch that the knobs do not allow: the cell cannot work at all."""


class MissingPrediction(BatchTwinError):
    """A policy that goes by predicted lengths met a request without one."""


class UnknownPolicy(BatchTwinError):
    """A policy name that is not registered, or a path that cannot be loaded."""

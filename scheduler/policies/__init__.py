"""The policies, by name."""

from __future__ import annotations

from importlib import import_module

from ..errors import UnknownPolicy
from .base import Policy
from .prefill_first import PrefillFirst
from .priority import Priority
from .static_batch import StaticBatch
from .vllm_v1 import VllmV1

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (VllmV1, PrefillFirst, StaticBatch, Priority)}

__all__ = ["POLICIES", "Policy", "load_policy"]


def load_policy(spec: str) -> Policy:
    """A new policy object: a registered name, ``package.module:Class``, or an entry point of the group
    ``batchtwin.policies``. Raises ``UnknownPolicy``.
    """
    if spec in POLICIES:
        return POLICIES[spec]()
    if ":" in spec:
        return _load_path(spec)
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    for point in entry_points(group="batchtwin.policies"):
        if point.name == spec:
            return _instance(spec, point.load())
    raise UnknownPolicy(
        f"There is no policy {spec!r}; known are {', '.join(sorted(POLICIES))}, or give your own as "
        f"package.module:Class."
    )


def _load_path(spec: str) -> Policy:
    module, _, name = spec.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownPolicy(f"The policy {spec!r} cannot be loaded ({error}): give package.module:Class.") from error
    return _instance(spec, found)


def _instance(spec: str, found: object) -> Policy:
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise UnknownPolicy(f"The policy {spec!r} is not a subclass of batchtwin.scheduler.Policy.")
    return found()

"""Policies by name, and anybody's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from ..errors import UnknownPolicy
from .base import Policy
from .chunk_when_decoding import ChunkWhenDecoding
from .decode_first import DecodeFirst
from .fair import Fair
from .orca import Orca
from .prefill_first import PrefillFirst
from .priority import Priority
from .reserve import Reserve
from .shortest import ShortestJobFirst, ShortestRemainingTimeFirst
from .static_batch import StaticBatch
from .vllm_v1 import VllmV1

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        VllmV1,
        PrefillFirst,
        StaticBatch,
        DecodeFirst,
        Orca,
        ShortestJobFirst,
        ShortestRemainingTimeFirst,
        Priority,
        Fair,
        ChunkWhenDecoding,
        Reserve,
    )
}
_READERS: dict[str, Callable[[str], Any]] = {
    "bool": {"true": True, "false": False}.__getitem__,
    "int": int,
    "float": float,
    "str": str,
}


def load_policy(spec: str) -> Policy:
    """A new policy object. ``spec`` is a registered name, an entry point of the group ``batchtwin.policies``, or
    ``package.module:Class``; options follow as ``name:option=value,option=value``. Raises ``UnknownPolicy``.
    """
    name, options = _split(spec)
    found = POLICIES.get(name) or _entry_point(name) or _imported(name)
    if found is None:
        raise UnknownPolicy(
            f"There is no policy {name!r}; known are {', '.join(sorted(POLICIES))}, or give your own as "
            f"package.module:Class."
        )
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise UnknownPolicy(f"The policy {name!r} is not a subclass of batchtwin.scheduler.Policy.")
    try:
        return found(**_typed(name, found, options))
    except TypeError as error:
        raise UnknownPolicy(
            f"The policy {name!r} cannot be made ({error}): it must define schedule, and every argument of its "
            f"constructor needs a default."
        ) from error


def policy_options(policy: type[Policy]) -> dict[str, tuple[str, Any]]:
    """The options of a policy: name → (type, default)."""
    if not is_dataclass(policy):
        return {}
    return {field.name: (_type_name(field.type), field.default) for field in fields(policy) if field.init}


def _type_name(annotation: Any) -> str:
    """A string already where the module postpones annotations."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _split(spec: str) -> tuple[str, dict[str, str]]:
    name, _, last = spec.rpartition(":")
    if "=" not in last:
        return spec, {}
    pairs = (part.partition("=") for part in last.split(","))
    return name, {option: value for option, _, value in pairs}


def _typed(name: str, policy: type[Policy], options: dict[str, str]) -> dict[str, Any]:
    known = policy_options(policy)
    typed: dict[str, Any] = {}
    for option, text in options.items():
        if option not in known:
            listed = ", ".join(known) or "none"
            raise UnknownPolicy(f"Policy {name!r} has no option {option!r}; it has: {listed}.")
        kind = known[option][0]
        if kind not in _READERS:
            raise UnknownPolicy(
                f"Option {option} of policy {name!r} is of type {kind}, which cannot be given as text: only "
                f"{', '.join(_READERS)} can."
            )
        try:
            typed[option] = _READERS[kind](text)
        except (ValueError, KeyError) as error:
            raise UnknownPolicy(f"Option {option} of policy {name!r} is {text!r}, but it must be {kind}.") from error
    return typed


def _entry_point(name: str) -> object:
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    return next((point.load() for point in entry_points(group="batchtwin.policies") if point.name == name), None)


def _imported(path: str) -> object:
    module, colon, name = path.partition(":")
    if not colon:
        return None
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownPolicy(f"The policy {path!r} cannot be loaded ({error}): give package.module:Class.") from error

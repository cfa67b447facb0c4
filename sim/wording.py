"""What a checked value has wrong, in plain words: pydantic's errors as the sentence that its user needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a word",
    "dict": "an object",
    "model": "an object",
    "list": "a list",
    "tuple": "a list",
    "finite": "a finite number",
}
_FEW = 20
"""Fields that are all named where none is close."""
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem of ``error``, raised by ``model``, without a full stop: which field, what it is, what it must
    be; a field that does not exist comes with those of similar names.
    """
    first = error.errors()[0]
    kind, place, context = first["type"], first["loc"], first.get("ctx", {})
    where = ".".join(str(part) for part in place)
    if kind == "extra_forbidden":
        return f"there is no field {where}{_close(str(place[-1]), _fields_at(model, place[:-1]))}"
    if kind == "missing":
        return f"{where} is missing"
    if kind == "json_invalid":
        return f"it is not JSON ({context.get('error', 'broken')})"
    if kind == "value_error":
        return (f"{where}: " if where else "") + first["msg"].removeprefix("Value error, ")
    return f"{where or 'it'} is {shown(first['input'])}, but it must be {_wanted(kind, context, first['msg'])}"


def shown(value: object) -> str:
    """A value as a JSON file would write it, short."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _wanted(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind == "literal_error":
        return str(context["expected"])
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"{words} {context[name]:g}"
    if kind == "too_short":
        return f"at least {context['min_length']} long"
    return _KINDS.get(kind.partition("_")[0], message.removeprefix("Input should be ").lower())


def _close(name: str, known: list[str]) -> str:
    if near := get_close_matches(name, known, n=2):
        return f"; close to it are {' and '.join(near)}" if len(near) > 1 else f"; close to it is {near[0]}"
    return f"; known are {', '.join(known)}" if 0 < len(known) <= _FEW else ""


def _fields_at(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The fields of the model to which ``place`` leads; none if that is no model."""
    for part in place:
        field = model.model_fields.get(str(part))
        inner = [] if field is None else [field.annotation, *get_args(field.annotation)]
        found = next((kind for kind in inner if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if found is None:
            return []
        model = found
    return list(model.model_fields)

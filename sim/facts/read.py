"""Small checked reads out of JSON that somebody else wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import FactsError

MAX_SIZE = 2**40
"""No size in a model config is larger: what is, is no config."""
MAX_LISTED = 12
"""Names in a message."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ``FactsError`` if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise FactsError(
            f"{path} cannot be read ({error.strerror or error}): give a config.json or its folder."
        ) from error
    except (ValueError, RecursionError) as error:
        raise FactsError(f"{path} is not JSON: give the config.json of a Hugging Face model.") from error
    if not isinstance(found, dict):
        raise FactsError(f"{path} holds no JSON object: give the config.json of a Hugging Face model.")
    return found


class Fields:
    """The fields of a config by any of their names; whatever is wrong with one is a sentence with its name."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def size(self, *names: str, default: int | None = None) -> int:
        """A whole number of at least 1 under the first of ``names`` that is set."""
        for name in names:
            if self.raw.get(name) is not None:
                return self._checked(name, self.raw[name])
        if default is None:
            raise FactsError(f"{self.where} has no {names[0]}: it is needed to size the model.")
        return default

    def size_or_none(self, name: str) -> int | None:
        """The same, or None where the field is absent, null or 0 (switched off)."""
        value = self.raw.get(name)
        return None if value is None or value is False or value == 0 else self._checked(name, value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise FactsError(f"{self.where}: {name} is {_short(value)}, but it must be true or false.")
        return value

    def text(self, *names: str, default: str | None = None) -> str:
        """A string under the first of ``names`` that is set."""
        for name in names:
            value = self.raw.get(name)
            if value is not None:
                if not isinstance(value, str):
                    raise FactsError(f"{self.where}: {name} is {_short(value)}, but it must be a word.")
                return value
        if default is None:
            raise FactsError(f"{self.where} has no {names[0]}: it is needed to know the model.")
        return default

    def number(self, name: str, default: float) -> float:
        """A finite number above 0."""
        value = self.raw.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MAX_SIZE:
            raise FactsError(f"{self.where}: {name} is {_short(value)}, but it must be a number above 0.")
        return float(value)

    def part(self, name: str) -> Fields | None:
        """An object within, or None if it is absent or null."""
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise FactsError(f"{self.where}: {name} is {_short(value)}, but it must be an object.")
        return Fields(value, f"{self.where}: {name}")

    def _checked(self, name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise FactsError(f"{self.where}: {name} is {_short(value)}, but it must be a whole number of at least 1.")
        return value


def close_matches(word: str, known: Sequence[str]) -> str:
    """``did you mean A or B?`` where something is close (owners do not count), else some of what is known."""
    from difflib import get_close_matches

    by_key = {name.rsplit("/", maxsplit=1)[-1].lower(): name for name in known}
    near = get_close_matches(word.lower(), list(by_key), n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(by_key[name] for name in near)}?"
    some = ", ".join(list(by_key.values())[:: max(1, len(by_key) // MAX_LISTED)])
    return f"known are {some}, …" if len(by_key) > MAX_LISTED else f"known are {some}."


def _short(value: object) -> str:
    """At most forty characters of a value, on one line."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # a number of thousands of digits, a deep nest
        return "a " + type(value).__name__
    return text if len(text) <= 40 else text[:39] + "…"

"""Values of somebody else's file: a number, nothing, or something that is noted as wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .measured_row import Flag

MOST_ROWS = 10_000_000


class Reader:
    """Reads fields of one record and collects what is wrong with them."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = {str(name).replace("-", "_"): value for name, value in record.items()}
        self.flags: list[Flag] = []

    def number(self, name: str) -> float | None:
        """A finite number (as text too), None where there is none."""
        value = self.record.get(name)
        if value is None or value == "" or isinstance(value, bool):
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            self._wrong(name, value, "no number")
            return None
        if math.isnan(number):  # what an empty CSV field becomes, and what a mean over nothing is
            return None
        if math.isinf(number):
            self._wrong(name, value, "not finite")
            return None
        return number

    def count(self, name: str) -> int | None:
        """A whole number of at least 0."""
        number = self.number(name)
        if number is None:
            return None
        if number < 0 or number != int(number):
            self._wrong(name, self.record[name], "no whole number of at least 0")
            return None
        return int(number)

    def at_least_one(self, name: str) -> int | None:
        """A whole number of at least 1."""
        number = self.count(name)
        if number == 0:
            self._wrong(name, 0, "less than 1")
            return None
        return number

    def text(self, name: str) -> str:
        """A word; empty where there is none."""
        value = self.record.get(name)
        return value[:200] if isinstance(value, str) else ""

    def numbers(self, name: str) -> list[float] | None:
        """A list of finite numbers, None where there is none or something else stands in it."""
        values = self.record.get(name)
        if not isinstance(values, list) or not values:
            return None
        try:
            found = [float(value) for value in values]
        except (TypeError, ValueError, OverflowError):
            self._wrong(name, values, "no list of numbers")
            return None
        if not all(map(math.isfinite, found)):
            self._wrong(name, values, "no list of finite numbers")
            return None
        return found

    def _wrong(self, name: str, value: object, what: str) -> None:
        self.flags.append(Flag(True, f"{name} is {quoted(value)}, which is {what}"))


def quoted(value: object) -> str:
    """A value of a file as it may stand in a message: on one line, printable, short."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a list of {len(value)}"
    text = ascii(value)
    return text if len(text) <= 60 else text[:60] + "…"

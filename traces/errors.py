"""What can be wrong with a trace, as one sentence: where, what, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_QUOTE = 60


class TraceError(ValueError):
    """A trace that cannot be read, made or cut as asked; the message is meant for the user."""

    @classmethod
    def at(cls, path: Path, line: int, what: str) -> Self:
        """Error about one line (counted from 1) of a file."""
        return cls(f"{path}, line {line}: {what}")


def quoted(text: str) -> str:
    """Text of a file as it may stand in a message: on one line, printable, and short whatever the file holds."""
    return ascii(text) if len(text) <= _LONGEST_QUOTE else ascii(text[:_LONGEST_QUOTE]) + "…"

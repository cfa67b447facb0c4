"""A trace by its name: a file, or one of the generators that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .azure_conv import AZURE_CONV_REQUESTS, azure_conv_like
from .errors import TraceError, quoted
from .readers import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from .trace import Trace

GENERATORS: dict[str, tuple[Callable[[int, int], Trace], int]] = {
    "azure-conv-like": (azure_conv_like, AZURE_CONV_REQUESTS),
}
"""Name → (generator of ``n`` requests from a seed, the ``n`` it has by default)."""


def load_trace(spec: str, *, seed: int = 0, sort: bool = False, drop_zero_output: bool = False) -> Trace:
    """The trace in the file ``spec``, or a generated one: ``azure-conv-like``, with a count ``azure-conv-like:2000``.

    ``seed`` is for generators, ``sort`` and ``drop_zero_output`` (see ``read_trace``) are for files. A file that has
    the name of a generator is reached as ``./azure-conv-like``.
    """
    name, colon, count = spec.partition(":")
    if name in GENERATORS:
        make, default = GENERATORS[name]
        return make(_count(spec, count) if colon else default, seed)
    if not spec or not _exists(spec):
        known = ", ".join(sorted(GENERATORS))
        raise TraceError(
            f"{quoted(spec)} is neither a file nor a generated trace; give a path or one of: {known} (or {known}:N)"
        )
    return read_trace(spec, sort=sort, drop_zero_output=drop_zero_output)


def _count(spec: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise TraceError(
            f"{quoted(spec)} asks for {quoted(text)} requests; write a whole number, as in azure-conv-like:2000"
        )
    return int(text)


def _exists(spec: str) -> bool:
    try:
        return Path(spec).exists()
    except (OSError, ValueError):  # a name too long or with a NUL is no file
        return False

"""Names for full blocks of tokens: equal exactly where everything up to and including the block is equal."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from .request import Request, Segment

_DIGEST_BYTES = 16
_MAX_RUN_BITS = 24
"""A run of one stream is shorter than 2²⁴ tokens."""


class Run(NamedTuple):
    """A request's tokens from ``start`` to ``stop − 1``, which follow each other in one stream. ``base`` names the run
    and all before it (it holds their digest); a block that ends within the run is named by it and the place of its end.
    """

    start: int
    stop: int
    base: int


def runs_of(request: Request) -> tuple[Run, ...]:
    """The prompt's segments, then the request's own outputs, as maximal runs; kept with the request, since a token's
    identity never changes.
    """
    if not request.runs:
        request.runs = _runs(request)
    return request.runs


def block_names(request: Request, block_size: int, num_blocks: int) -> list[int]:
    """A name for each of the request's first ``num_blocks`` full blocks."""
    names: list[int] = []
    for start, stop, base in runs_of(request):
        first, last = start // block_size + 1, min(num_blocks, stop // block_size)
        if first <= last:
            names.extend(range(base + first * block_size, base + last * block_size + 1, block_size))
    return names


def _runs(request: Request) -> tuple[Run, ...]:
    own = (f"out:{request.request_id}", 0, (1 << _MAX_RUN_BITS) - 1)
    runs, start, before = [], 0, ""
    for stream, first, length in _merged((*request.prompt, own)):
        digest = blake2b(f"{before}\0{stream}\0{first}".encode(), digest_size=_DIGEST_BYTES)
        runs.append(Run(start, start + length, (int.from_bytes(digest.digest()) << _MAX_RUN_BITS) - start))
        before = f"{digest.hexdigest()}\0{length}"
        start += length
    return tuple(runs)


def _merged(segments: Sequence[Segment]) -> list[Segment]:
    out: list[Segment] = []
    for stream, first, length in segments:
        if out and out[-1][0] == stream and out[-1][1] + out[-1][2] == first:
            out[-1] = (stream, out[-1][1], out[-1][2] + length)
        elif length > 0:
            out.append((stream, first, length))
    return out

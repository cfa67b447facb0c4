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
    """A request's tokens from ``start`` to ``stop − 1``, which follow each other in one stream. A block that ends within
    it is named ``base`` plus the tokens up to its end: two blocks have one name only if the runs before are the same
    (their digest is in ``base``) and they end at the same place of the same run.
    """

    start: int
    stop: int
    base: int


def extend_names(request: Request, block_size: int, num_blocks: int) -> list[int]:
    """The names of the request's first ``num_blocks`` full blocks, and maybe more; kept with the request and only ever
    extended, since a token's identity never changes.
    """
    names = request.block_names
    known = len(names)
    if known >= num_blocks:
        return names
    runs = request.runs
    if not runs:
        runs = request.runs = _runs(request)
    for start, stop, base in runs:
        first, last = max(known, start // block_size) + 1, min(num_blocks, stop // block_size)
        if first <= last:
            names.extend(range(base + first * block_size, base + last * block_size + 1, block_size))
    return names


def _runs(request: Request) -> tuple[Run, ...]:
    """The prompt's segments, then the request's own outputs, as maximal runs."""
    own = (f"out:{request.request_id}", 0, (1 << _MAX_RUN_BITS) - 1)
    runs, start, before = [], 0, b"batchtwin"
    for stream, first, length in _merged((*request.prompt, own)):
        key = before + f"{stream}\0{first}".encode()
        base = int.from_bytes(blake2b(key, digest_size=_DIGEST_BYTES).digest()) << _MAX_RUN_BITS
        runs.append(Run(start, start + length, base - start))
        before = blake2b(key + f"\0{length}".encode(), digest_size=_DIGEST_BYTES).digest()
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

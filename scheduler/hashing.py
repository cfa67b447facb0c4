"""Names for full blocks of tokens: equal exactly where everything up to and including the block is equal."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b

from .request import Request, Segment

_ROOT = b"batchtwin"
_DIGEST_BYTES = 16


def extend_hashes(request: Request, block_size: int, num_blocks: int) -> list[bytes]:
    """The request's first ``num_blocks`` block hashes, a chain over (parent, the block's token identities); kept with
    the request and only ever extended, since a token's identity never changes.
    """
    hashes = request.block_hashes
    known = len(hashes)
    if known == num_blocks - 1 and (first := known * block_size - request.num_prompt_tokens) >= 0:
        key = (
            f"out:{request.request_id}\0{first}\0{block_size}".encode()
        )  # a decode has filled a block: the common case
        hashes.append(blake2b((hashes[-1] if hashes else _ROOT) + key, digest_size=_DIGEST_BYTES).digest())
    elif known < num_blocks:
        runs = _Runs(request)
        parent = hashes[-1] if hashes else _ROOT
        for block in range(known, num_blocks):
            key = runs.key(block * block_size, (block + 1) * block_size)
            parent = blake2b(parent + key, digest_size=_DIGEST_BYTES).digest()
            hashes.append(parent)
    return hashes


class _Runs:
    """A request's tokens as maximal runs of one stream: the prompt's segments, then its own outputs."""

    def __init__(self, request: Request) -> None:
        own = (f"out:{request.request_id}", 0, 1 << 62)
        self._segments = _merged((*request.prompt, own))
        self._starts = [0]
        for _, _, length in self._segments[:-1]:
            self._starts.append(self._starts[-1] + length)

    def key(self, start: int, stop: int) -> bytes:
        """The identities of tokens ``start`` to ``stop − 1``."""
        index = bisect_right(self._starts, start) - 1
        parts = []
        while start < stop:
            stream, first, length = self._segments[index]
            begins = self._starts[index]
            end = min(stop, begins + length)
            parts.append(f"{stream}\0{first + start - begins}\0{end - start}")
            start, index = end, index + 1
        return "\0".join(parts).encode()


def _merged(segments: Sequence[Segment]) -> list[Segment]:
    out: list[Segment] = []
    for stream, first, length in segments:
        if out and out[-1][0] == stream and out[-1][1] + out[-1][2] == first:
            out[-1] = (stream, out[-1][1], out[-1][2] + length)
        elif length > 0:
            out.append((stream, first, length))
    return out

"""A trace: who asks for how much, and when. Columns, one row a request."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..scheduler.request import Request
from .columns import ARRAYS, check_columns, check_factor, frozen, scaled
from .errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from ..scheduler.request import Segment
    from .columns import FloatArray, IntArray

_ROWS_AT_A_TIME = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival; never empty, never changed: every verb returns a new trace.

    Invariants, checked on construction: all columns have one length; ``arrival_s`` starts at 0 and does not decrease;
    lengths are at least one token. ``prompt_blocks`` holds, per request, the ids of its leading prompt blocks of
    ``hash_block_tokens`` tokens: equal ids are equal tokens. Two traces are equal if their columns are (``digest``),
    whatever their ``name`` and ``source`` (a line that tells where the columns come from).
    """

    name: str
    arrival_s: FloatArray
    num_prompt_tokens: IntArray
    output_len: IntArray
    prompt_blocks: tuple[IntArray, ...] | None = None
    hash_block_tokens: int = 512
    priority: IntArray | None = None
    predicted_output_len: IntArray | None = None
    """Somebody's guess of each output length, which a scheduler may know where it may not know the truth."""
    client_id: tuple[str, ...] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for column, kind in ARRAYS.items():
            values = getattr(self, column)
            if values is not None:
                object.__setattr__(self, column, frozen(values, kind, column))
        if self.prompt_blocks is not None:
            blocks = tuple(frozen(ids, np.int64, "prompt_blocks") for ids in self.prompt_blocks)
            object.__setattr__(self, "prompt_blocks", blocks)
        if self.client_id is not None:
            object.__setattr__(self, "client_id", tuple(self.client_id))
        check_columns(self)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __eq__(self, other: object) -> bool:
        return self.digest() == other.digest() if isinstance(other, Trace) else NotImplemented

    def __hash__(self) -> int:
        return int(self.digest()[:15], 16)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival_s[-1])

    @property
    def is_plain(self) -> bool:
        """Whether requests are arrivals and lengths and nothing else."""
        return all(
            column is None for column in (self.prompt_blocks, self.priority, self.predicted_output_len, self.client_id)
        )

    def digest(self) -> str:
        """SHA-256 over the columns, the same on every machine; name and source are left out."""
        sha = hashlib.sha256(f"{len(self)} {self.hash_block_tokens if self.prompt_blocks else 0}".encode())
        for label, column in (("arrival_s", self.arrival_s.astype("<f8")), *self._integer_columns()):
            sha.update(f"|{label}:{column.size}|".encode())
            sha.update(column.tobytes())
        for client in self.client_id or ():
            sha.update(f"|{len(client)}:{client}".encode("utf-8", "surrogatepass"))
        return sha.hexdigest()

    def _integer_columns(self) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        yield "num_prompt_tokens", self.num_prompt_tokens.astype("<i8")
        yield "output_len", self.output_len.astype("<i8")
        if self.priority is not None:
            yield "priority", self.priority.astype("<i8")
        if self.predicted_output_len is not None:
            yield "predicted_output_len", self.predicted_output_len.astype("<i8")
        if self.prompt_blocks is not None:
            yield "blocks", np.array([ids.size for ids in self.prompt_blocks], dtype="<i8")
            yield "ids", np.concatenate(self.prompt_blocks).astype("<i8")

    # -- cutting ------------------------------------------------------------------------------------------------------

    def head(self, n: int) -> Trace:
        """The first ``n`` requests (all of them if there are fewer)."""
        return self._rows(np.arange(len(self)) < n, f"head({n})")

    def slice(self, start: int, stop: int) -> Trace:
        """Rows ``start`` to ``stop − 1``, as Python slices count them; the first kept arrival becomes 0."""
        kept = np.zeros(len(self), dtype=np.bool_)
        kept[start:stop] = True
        return self._rows(kept, f"slice({start}, {stop})")

    def between(self, start_s: float, stop_s: float) -> Trace:
        """Requests that arrive at ``start_s`` or later and before ``stop_s``; the first kept arrival becomes 0."""
        kept = (self.arrival_s >= start_s) & (self.arrival_s < stop_s)
        return self._rows(kept, f"between({start_s:g} s, {stop_s:g} s)")

    def thin(self, fraction: float, seed: int) -> Trace:
        """Keep each request with probability ``fraction``, independently: the same hour, less busy."""
        if not 0 < fraction <= 1:
            raise TraceError(f"a trace can be thinned to a fraction above 0 and up to 1, not to {fraction:g}")
        kept = np.random.Generator(np.random.PCG64(seed)).random(len(self)) < fraction
        return self._rows(kept, f"thin({fraction:g}, seed={seed})")

    def _rows(self, kept: npt.NDArray[np.bool_], verb: str) -> Trace:
        rows = np.flatnonzero(kept)
        if not rows.size:
            raise TraceError(f"{verb} leaves no request of the {len(self)} in trace {self.name!r}; keep at least one")
        return self._take(rows, self.arrival_s[rows] - self.arrival_s[rows[0]], verb)

    def _take(self, rows: npt.NDArray[np.intp], arrival_s: FloatArray, verb: str) -> Trace:
        blocks, clients = self.prompt_blocks, self.client_id
        return replace(
            self,
            arrival_s=arrival_s,
            num_prompt_tokens=self.num_prompt_tokens[rows],
            output_len=self.output_len[rows],
            prompt_blocks=None if blocks is None else tuple(blocks[row] for row in rows.tolist()),
            priority=None if self.priority is None else self.priority[rows],
            predicted_output_len=None if self.predicted_output_len is None else self.predicted_output_len[rows],
            client_id=None if clients is None else tuple(clients[row] for row in rows.tolist()),
            source=self._source_after(verb),
        )

    # -- scaling ------------------------------------------------------------------------------------------------------

    def scale_rate(self, factor: float) -> Trace:
        """``factor`` 2 is twice the request rate: every arrival is divided by it."""
        check_factor("the rate", factor)
        with np.errstate(over="ignore"):  # infinite arrivals are refused by the new trace
            arrival_s = self.arrival_s / factor
        return replace(self, arrival_s=arrival_s, source=self._source_after(f"scale_rate({factor:g})"))

    def scale_lengths(
        self,
        prompt: float = 1.0,
        output: float = 1.0,
        max_prompt_tokens: int | None = None,
        max_output_tokens: int | None = None,
    ) -> Trace:
        """Lengths times a factor, rounded half to even, at least one token and at most the given maximum.

        A prompt that shrinks keeps its leading hash blocks, one that grows gets a tail that nobody shares.
        """
        prompts = scaled(self.num_prompt_tokens, "prompt lengths", prompt, max_prompt_tokens)
        outputs = scaled(self.output_len, "output lengths", output, max_output_tokens)
        blocks = self.prompt_blocks
        if blocks is not None:
            needed = -(-prompts // self.hash_block_tokens)
            blocks = tuple(ids[:count] for ids, count in zip(blocks, needed.tolist(), strict=True))
        limits = f", at most {max_prompt_tokens} and {max_output_tokens} tokens".replace("None", "any")
        verb = f"scale_lengths({prompt:g}, {output:g}{limits if max_prompt_tokens or max_output_tokens else ''})"
        predicted = self.predicted_output_len
        if predicted is not None:
            predicted = scaled(predicted, "predicted output lengths", output, max_output_tokens)
        return replace(
            self,
            num_prompt_tokens=prompts,
            output_len=outputs,
            predicted_output_len=predicted,
            prompt_blocks=blocks,
            source=self._source_after(verb),
        )

    def offline(self) -> Trace:
        """The same requests, all there at time 0."""
        return replace(self, arrival_s=np.zeros(len(self)), source=self._source_after("offline()"))

    def arriving(self, arrival_s: FloatArray, how: str) -> Trace:
        """The same requests in the same order at other times (s, from 0, not decreasing); ``how`` tells where they
        come from.
        """
        return replace(self, arrival_s=arrival_s, source=self._source_after(f"arriving({how})"))

    def repeat(self, n: int) -> Trace:
        """The trace ``n`` times, one after another, a mean gap between the last arrival and the next first one.

        Hash ids repeat as well: the second pass asks the same prompts again. Prompts without ids stay all different.
        """
        if n < 1:
            raise TraceError(f"a trace can be repeated 1 time or more, not {n} times")
        period_s = self.span_s + self.span_s / max(len(self) - 1, 1)
        arrival_s = (np.arange(n, dtype=np.float64)[:, None] * period_s + self.arrival_s).ravel()
        return self._take(np.tile(np.arange(len(self)), n), arrival_s, f"repeat({n})")

    def _source_after(self, verb: str) -> str:
        return f"{self.source or self.name} | {verb}"

    # -- handing out --------------------------------------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """A fresh request per row, with the row as its index and, in digits, as its id."""
        return list(self.iter_requests())

    def iter_requests(self) -> Iterator[Request]:
        """Like ``requests``, one at a time."""
        priority = None if self.priority is None else self.priority.tolist()
        predicted = None if self.predicted_output_len is None else self.predicted_output_len.tolist()
        if self.is_plain:
            for row, (arrival_s, prompt_tokens, output_len) in enumerate(self._lengths()):
                yield Request(str(row), prompt_tokens, output_len, arrival_s=arrival_s, index=row)
            return
        for row, (arrival_s, prompt_tokens, output_len) in enumerate(self._lengths()):
            yield Request(
                str(row),
                prompt_tokens,
                output_len,
                arrival_s=arrival_s,
                prompt=self._segments(row, prompt_tokens),
                priority=0 if priority is None else priority[row],
                predicted_output_len=None if predicted is None else predicted[row],
                client_id="" if self.client_id is None else self.client_id[row],
                index=row,
            )

    def _lengths(self) -> Iterator[tuple[float, int, int]]:
        """Arrivals and lengths as plain numbers, some thousands at a time: a long trace is not there twice."""
        for start in range(0, len(self), _ROWS_AT_A_TIME):
            rows = slice(start, start + _ROWS_AT_A_TIME)
            columns = (self.arrival_s[rows], self.num_prompt_tokens[rows], self.output_len[rows])
            yield from zip(*(column.tolist() for column in columns), strict=True)

    def _segments(self, row: int, prompt_tokens: int) -> list[Segment] | None:
        """Hash blocks as token streams that requests share, then whatever no block covers as one of the row's own."""
        if self.prompt_blocks is None:
            return None
        size = self.hash_block_tokens
        ids = self.prompt_blocks[row].tolist()
        segments = [(f"h:{block}", 0, min(size, prompt_tokens - at * size)) for at, block in enumerate(ids)]
        covered = min(len(ids) * size, prompt_tokens)
        if covered < prompt_tokens:
            segments.append((f"p:{row}", 0, prompt_tokens - covered))
        return segments

"""A recorder that hands on what it has recorded: a trace of any length in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..scheduler.batch import Batch
from ..scheduler.request import Request
from .backend import Execution
from .iteration_rows import CHUNK_ROWS
from .records import FLOAT_COLUMNS, REQUEST_COLUMNS, Columns, Recorder, Records, column


class Sink(Protocol):
    """Takes records block by block: iterations and gaps as they happen, requests in the order of the trace."""

    def iterations(self, columns: Columns) -> None:
        """The next iterations, with ``ITERATION_COLUMNS``."""
        ...

    def requests(self, columns: Columns) -> None:
        """The next requests, with ``REQUEST_COLUMNS``."""
        ...

    def gaps(self, gaps: NDArray[np.int64]) -> None:
        """The next gaps, [G, 2]."""
        ...

    def records(self) -> Records:
        """All that came, when nothing more will."""
        ...


class SpillingRecorder(Recorder):
    """Hands iterations and gaps on as blocks of them fill, and requests when all before them have finished too. What it
    keeps grows with the requests that are under way, not with the trace. For a single replica.
    """

    def __init__(self, sink: Sink) -> None:
        super().__init__(0)
        self._sink = sink
        self._requests = {name: array("d" if name in FLOAT_COLUMNS else "q") for name in REQUEST_COLUMNS}
        self._last, self._seated, self._ended = array("q"), array("b"), array("b")
        self._bind()
        self._num_rows = self._num_arrived = 0  # that are here, and of those the ones that arrived
        self._num_ended = 0  # since requests were handed on

    def arrived(self, request: Request, due_s: float) -> None:
        """A request reached the server at ``request.arrival_s``."""
        row = request.index - self._base
        self._num_arrived = max(self._num_arrived, row + 1)
        while row >= self._num_rows:
            self._make_room()
        super().arrived(request, due_s)

    def finished(self, requests: list[Request]) -> None:
        """These got their last token in the iteration recorded last."""
        super().finished(requests)
        for request in requests:
            self._ended[request.index - self._base] = 1
        self._num_ended += len(requests)
        if self._num_ended >= CHUNK_ROWS:
            self._hand_on(next((row for row, ended in enumerate(self._ended) if not ended), self._num_rows))

    def completed(self, batch: Batch, launched_s: float, execution: Execution, finished: list[Request]) -> None:
        """A batch ended."""
        super().completed(batch, launched_s, execution, finished)
        if len(self._gaps) >= CHUNK_ROWS:
            self._hand_on_gaps()

    def records(self) -> Records:
        """Hand the rest on; returns what the sink has."""
        self._flush()
        self._hand_on_gaps()
        self._hand_on(self._num_arrived)
        return self._sink.records()

    def _flush(self) -> None:
        super()._flush()
        for block in self._blocks:
            if len(block["end_s"]):
                self._sink.iterations(self._with_replica(block))
        self._blocks.clear()

    def _hand_on(self, count: int) -> None:
        """Give the first ``count`` rows away: they are done with."""
        self._num_ended = 0
        if count:
            self._sink.requests({name: column(name, np.array(rows[:count])) for name, rows in self._requests.items()})
        for rows in self._arrays():
            del rows[:count]
        self._base += count
        self._num_rows -= count
        self._num_arrived -= count

    def _make_room(self) -> None:
        for rows in self._arrays():
            empty = 0 if rows.typecode == "b" else -1
            rows.extend(array(rows.typecode, (empty,)) * CHUNK_ROWS)
        self._num_rows += CHUNK_ROWS

    def _arrays(self) -> Iterator[array[Any]]:
        yield from self._requests.values()
        yield from (self._last, self._seated, self._ended)

    def _hand_on_gaps(self) -> None:
        if self._gaps:
            self._sink.gaps(np.array(self._gaps, dtype=np.int64))
            self._gaps.clear()

"""A recorder that hands on what it has recorded: a trace of any length in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence
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


class Window(MutableSequence[Any]):
    """A column of which only the rows from ``base`` on are still here. Rows before it are done with: they read as the
    default, and writing them does nothing.
    """

    def __init__(self, typecode: str, default: int) -> None:
        self._values = array(typecode)
        self._default = default
        self._base = 0

    def __len__(self) -> int:
        return self._base + len(self._values)

    def __getitem__(self, row: Any) -> Any:
        return self._values[row - self._base] if row >= self._base else self._default

    def __setitem__(self, row: Any, value: Any) -> None:
        if row >= self._base:
            self._values[row - self._base] = value

    def reach(self, row: int) -> None:
        """Make room up to ``row``."""
        missing = row + 1 - len(self)
        if missing > 0:
            self._values.extend(array(self._values.typecode, (self._default,)) * missing)

    def drop(self, count: int) -> array[Any]:
        """Take the first ``count`` rows away; returns them."""
        taken = self._values[:count]
        del self._values[:count]
        self._base += count
        return taken

    def leading(self, value: int) -> int:
        """How many rows from the first on hold ``value``."""
        return next((i for i, found in enumerate(self._values) if found != value), len(self._values))

    def __delitem__(self, row: Any) -> None:
        raise TypeError("Rows leave a window from the front.")

    def insert(self, index: int, value: Any) -> None:
        """Not what a window is for."""
        raise TypeError("Rows enter a window at the end.")


class SpillingRecorder(Recorder):
    """Hands iterations and gaps on as blocks of them fill, and requests when all before them have finished too. What it
    keeps grows with the requests that are under way, not with the trace. For a single replica.
    """

    def __init__(self, sink: Sink) -> None:
        super().__init__(0)
        self._sink = sink
        self._windows = {name: Window("d" if name in FLOAT_COLUMNS else "q", -1) for name in REQUEST_COLUMNS}
        self._state = (Window("q", -1), Window("B", 0), Window("B", 0))
        self._requests = dict(self._windows)
        self._last, self._seated, self._ended = self._state
        self._bind()
        self._num_ended = 0  # since requests were handed on

    def arrived(self, request: Request, due_s: float) -> None:
        """A request reached the server at ``request.arrival_s``."""
        for window in (*self._windows.values(), *self._state):
            window.reach(request.index)
        super().arrived(request, due_s)

    def finished(self, requests: list[Request]) -> None:
        """These got their last token in the iteration recorded last."""
        super().finished(requests)
        for request in requests:
            self._ended[request.index] = 1
        self._num_ended += len(requests)
        if self._num_ended >= CHUNK_ROWS:
            self._hand_on(self._ended.leading(1))

    def completed(self, batch: Batch, launched_s: float, execution: Execution, finished: list[Request]) -> None:
        """A batch ended."""
        super().completed(batch, launched_s, execution, finished)
        if len(self._gaps) >= CHUNK_ROWS:
            self._hand_on_gaps()

    def records(self) -> Records:
        """Hand the rest on; returns what the sink has."""
        self._flush()
        self._hand_on_gaps()
        self._hand_on(len(self._ended))
        return self._sink.records()

    def _flush(self) -> None:
        super()._flush()
        for table in self._blocks:
            if len(table):
                self._sink.iterations(self._columns(table))
        self._blocks.clear()

    def _hand_on(self, count: int) -> None:
        self._num_ended = 0
        columns = {name: column(name, np.array(window.drop(count))) for name, window in self._windows.items()}
        for window in self._state:
            window.drop(count)
        if len(columns["due_s"]):
            self._sink.requests(columns)

    def _hand_on_gaps(self) -> None:
        if self._gaps:
            self._sink.gaps(np.array(self._gaps, dtype=np.int64))
            self._gaps.clear()

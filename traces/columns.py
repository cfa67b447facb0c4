"""What the columns of a trace must be, and how lengths are scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import TraceError

if TYPE_CHECKING:
    from .trace import Trace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MAX_TOKENS = 1_000_000_000
"""A length above this is taken for a mistake in the file or in a factor."""

ARRAYS: dict[str, type[np.generic]] = {
    "arrival_s": np.float64,
    "num_prompt_tokens": np.int64,
    "output_len": np.int64,
    "priority": np.int64,
    "predicted_output_len": np.int64,
}


def frozen(values: npt.ArrayLike, kind: type[np.generic], column: str) -> npt.NDArray[Any]:
    """A copy of a column, of its own type and read-only; a type that would lose something is an error."""
    given = np.asarray(values)
    if given.ndim != 1 or (given.size and not np.can_cast(given.dtype, kind, "same_kind")):
        raise TraceError(
            f"column {column} of a trace is one row of {np.dtype(kind)} values, "
            f"not an array of {given.dtype} with {given.ndim} dimensions"
        )
    array = np.array(given, dtype=kind)
    array.setflags(write=False)
    return array


def check_columns(trace: Trace) -> None:
    """Raise where the invariants that ``Trace`` states do not hold."""
    n = trace.arrival_s.size
    if n == 0:
        raise TraceError(f"trace {trace.name!r} has no requests; a trace needs at least one")
    for column in (*ARRAYS, "prompt_blocks", "client_id"):
        values = getattr(trace, column)
        if values is not None and len(values) != n:
            raise TraceError(f"column {column} of trace {trace.name!r} has {len(values)} rows, arrival_s has {n}")
    if not np.isfinite(trace.arrival_s).all() or trace.arrival_s[0] != 0 or (np.diff(trace.arrival_s) < 0).any():
        raise TraceError(f"arrivals of trace {trace.name!r} must be finite, start at 0 s and never go back")
    for column in ("num_prompt_tokens", "output_len"):
        lengths = getattr(trace, column)
        if lengths.min() < 1 or lengths.max() > MAX_TOKENS:
            raise TraceError(f"{column} of trace {trace.name!r} must lie between 1 and {MAX_TOKENS:,} tokens")
    _check_blocks(trace)


def _check_blocks(trace: Trace) -> None:
    if trace.prompt_blocks is None:
        return
    if trace.hash_block_tokens < 1:
        raise TraceError(f"a hash block of trace {trace.name!r} must hold a token or more")
    room = -(-trace.num_prompt_tokens // trace.hash_block_tokens)
    counts = np.array([ids.size for ids in trace.prompt_blocks])
    if (counts > room).any():
        row = int(np.flatnonzero(counts > room)[0])
        raise TraceError(f"row {row} of trace {trace.name!r} has more hash blocks than its prompt has room for")


def check_factor(what: str, factor: float) -> None:
    """Raise unless ``factor`` is finite and above 0."""
    if not (factor > 0 and np.isfinite(factor)):
        raise TraceError(f"{what} can be scaled by a finite factor above 0, not by {factor:g}")


def scaled(lengths: IntArray, what: str, factor: float, at_most: int | None) -> IntArray:
    """Lengths (tokens) times ``factor``, rounded half to even, kept between 1 and ``at_most``."""
    check_factor(what, factor)
    if at_most is not None and at_most < 1:
        raise TraceError(f"{what} cannot be capped at {at_most} tokens; a cap is 1 or more")
    with np.errstate(over="ignore"):  # an infinite product is refused below
        product: FloatArray = np.clip(np.rint(lengths * factor), 1, at_most)
    if product.max() > MAX_TOKENS:
        raise TraceError(f"{what} times {factor:g} would exceed {MAX_TOKENS:,} tokens; use a smaller factor or a cap")
    return product.astype(np.int64)

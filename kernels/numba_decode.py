"""Decode attention on the CPU in numba: pages are read in place, all heads of a token together.

A token's keys of all heads are contiguous in its page, so the loops run page, token, head: the cache is walked once
front to back. The scores of one sequence are kept whole, which lets the compiler vectorise the softmax; the
exponential is a polynomial for the same reason (numba has no vector ``exp`` without Intel's library).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from .numba_prefetch import prefetch

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
Jit = Callable[[Callable[..., Any]], Callable[..., Any]]

# Sums may be reordered and contracted. NaN and infinity stay what they are: a poisoned page must not pass unseen.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
_PREFETCH_TOKENS = 16
_CACHE_LINE_BYTES = 64


def _jit(*, parallel: bool = False) -> Jit:
    """Compiled code is kept on disk where numba finds a place for it, else only in this process."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] = {"fastmath": _FASTMATH, "nogil": True, "parallel": parallel}
        try:
            return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:
            return njit(**options)(function)  # type: ignore[no-any-return]

    return decorate


@_jit()
def _softmax(scores: FloatArray, exponents: NDArray[np.int32], powers: FloatArray) -> None:
    """In place. ``powers`` is ``exponents`` seen as floats: 2**n is n + 127 in the exponent field.

    e**x = 2**n · e**r with |r| ≤ ln 2 / 2, and for e**r the polynomial of Cephes' expf (error 2e-7).
    """
    largest = scores[0]
    for t in range(scores.size):
        largest = max(largest, scores[t])
    for t in range(scores.size):
        x = max(scores[t] - largest, np.float32(-87.0))
        n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
        r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
        y = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
        y = y * r + np.float32(8.3334519073e-3)
        y = y * r + np.float32(4.1665795894e-2)
        y = y * r + np.float32(1.6666665459e-1)
        y = y * r + np.float32(5.0000001201e-1)
        scores[t] = y * r * r + r + np.float32(1.0)
        exponents[t] = (np.int32(n) + np.int32(127)) << np.int32(23)
    total = np.float32(0.0)
    for t in range(scores.size):
        scores[t] *= powers[t]
        total += scores[t]
    for t in range(scores.size):
        scores[t] /= total


@_jit()
def _prefetch_token(cache: FloatArray, table: IntArray, t: int) -> None:
    """Ask for the row of token ``t``: pages lie scattered, so the hardware would only notice at their first miss."""
    block_size = cache.shape[1]
    row_bytes = cache.strides[1]
    address = cache.ctypes.data + (table[t // block_size] * block_size + t % block_size) * row_bytes
    for offset in range(0, row_bytes, _CACHE_LINE_BYTES):
        prefetch(address + offset)


@_jit()
def _score(
    query: FloatArray,
    key_cache: FloatArray,
    value_cache: FloatArray,
    first: int,
    length: int,
    table: IntArray,
    scale: np.float32,
    scores: FloatArray,
) -> None:
    """``scores`` [n_q_heads, tokens] of every head with every token; ends by asking for the first values."""
    block_size = key_cache.shape[1]
    num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    for t in range(first, length):
        ahead = t + _PREFETCH_TOKENS
        if ahead < length:
            _prefetch_token(key_cache, table, ahead)
        else:
            _prefetch_token(value_cache, table, min(first + ahead - length, length - 1))
        keys = key_cache[table[t // block_size], t % block_size]
        for head in range(num_heads):
            dot = np.float32(0.0)
            for d in range(head_dim):
                dot += query[head, d] * keys[head // group, d]
            scores[head, t - first] = dot * scale


@_jit()
def _cap(scores: FloatArray, softcap: np.float32) -> None:
    """Bend scores to softcap · tanh(score / softcap), in place."""
    for t in range(scores.size):
        scores[t] = softcap * np.tanh(scores[t] / softcap)


@_jit()
def _weigh(
    weights: FloatArray, value_cache: FloatArray, first: int, length: int, table: IntArray, out: FloatArray
) -> None:
    """``out`` [n_q_heads, head_dim] is the sum of the values, weighted."""
    block_size = value_cache.shape[1]
    num_heads, head_dim = out.shape
    group = num_heads // value_cache.shape[2]
    out[:] = np.float32(0.0)
    for t in range(first, length):
        if t + _PREFETCH_TOKENS < length:
            _prefetch_token(value_cache, table, t + _PREFETCH_TOKENS)
        values = value_cache[table[t // block_size], t % block_size]
        for head in range(num_heads):
            weight = weights[head, t - first]
            for d in range(head_dim):
                out[head, d] += weight * values[head // group, d]


@_jit()
def _attend(
    query: FloatArray,
    key_cache: FloatArray,
    value_cache: FloatArray,
    first: int,
    length: int,
    table: IntArray,
    scale: np.float32,
    softcap: np.float32,
    out: FloatArray,
) -> None:
    """One sequence: ``query`` and ``out`` [n_q_heads, head_dim] over tokens ``first … length − 1`` of ``table``."""
    scores = np.empty((query.shape[0], length - first), np.float32)
    exponents = np.empty(length - first, np.int32)
    _score(query, key_cache, value_cache, first, length, table, scale, scores)
    for head in range(query.shape[0]):
        if softcap > 0:
            _cap(scores[head], softcap)
        _softmax(scores[head], exponents, exponents.view(np.float32))
    _weigh(scores, value_cache, first, length, table, out)


@_jit()
def decode_serial(
    query: FloatArray,
    key_cache: FloatArray,
    value_cache: FloatArray,
    seq_lens: IntArray,
    block_tables: IntArray,
    scale: np.float32,
    softcap: np.float32,
    window: int,
    order: IntArray,
    out: FloatArray,
) -> None:
    """Row s of ``query`` [S, n_q_heads, head_dim] is the last token of sequence s; ``order`` is a permutation."""
    for i in range(order.size):
        s = order[i]
        first = max(seq_lens[s] - window, 0) if window > 0 else 0
        _attend(query[s], key_cache, value_cache, first, seq_lens[s], block_tables[s], scale, softcap, out[s])


@_jit(parallel=True)
def decode_parallel(
    query: FloatArray,
    key_cache: FloatArray,
    value_cache: FloatArray,
    seq_lens: IntArray,
    block_tables: IntArray,
    scale: np.float32,
    softcap: np.float32,
    window: int,
    order: IntArray,
    out: FloatArray,
) -> None:
    """As ``decode_serial``, the sequences of ``order`` shared out among numba's threads in contiguous stretches."""
    for i in prange(order.size):
        s = order[i]
        first = max(seq_lens[s] - window, 0) if window > 0 else 0
        _attend(query[s], key_cache, value_cache, first, seq_lens[s], block_tables[s], scale, softcap, out[s])

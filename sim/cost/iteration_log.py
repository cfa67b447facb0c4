"""The per-iteration lines of a running vLLM (``--enable-logging-iteration-details``): reading them.

``Engine 000: Iteration(17): 2 context requests, 812 context tokens, 63 generation requests, 63 generation tokens,
iteration elapsed time: 9.87 ms, GPU KV cache usage: 12.3%``, as vLLM 0.33.0 writes them
(``vllm/v1/metrics/loggers.py``), whatever stands before on the line. Older versions have no KV usage at the end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

import numpy as np

from .timings import TimingsError

_MARK = "Iteration("
_LINE = re.compile(
    r"(?:Engine (?P<engine>\d{1,6}): )?Iteration\((?P<index>\d{1,12})\): "
    r"(?P<context_requests>\d{1,9}) context requests, (?P<context_tokens>\d{1,9}) context tokens, "
    r"(?P<generation_requests>\d{1,9}) generation requests, (?P<generation_tokens>\d{1,9}) generation tokens, "
    r"iteration elapsed time: (?P<elapsed_ms>\d{1,12}(?:\.\d{1,9})?) ms(?P<dummy> \(dummy\))?"
    r"(?:, \w+ KV cache usage: (?P<usage>\d{1,3}(?:\.\d{1,6})?)%)?(?P<encoder>, encoder inputs: )?",
    re.ASCII,
)
_VERSION = re.compile(r"LLM engine \(v(\d[\w.+-]{0,40})\)")
_KV_SIZE = re.compile(r"KV cache size: (\d[\d,]{0,15}) tokens")
_MOST_BLOCKED, _BLOCKED_SHARE_OF_P90 = 0.2, 0.1
_STRETCH, _FEWEST_IN_STRETCH = 16, 8


class LoggedIteration(NamedTuple):
    """One line. A request is *context* while it has no output token yet, every chunk counts."""

    engine: int
    number: int
    """Of the iteration, counted by the server."""
    num_context_requests: int
    num_context_tokens: int
    num_generation_requests: int
    num_generation_tokens: int
    elapsed_s: float
    kv_usage: float | None
    """Share of the KV blocks in use after it; None where the line does not say."""

    @property
    def num_requests(self) -> int:
        """Sequences served."""
        return self.num_context_requests + self.num_generation_requests

    @property
    def num_tokens(self) -> int:
        """New tokens computed."""
        return self.num_context_tokens + self.num_generation_tokens


@dataclass(frozen=True, slots=True)
class IterationLog:
    """A server's log as far as it tells of iterations: those of its first engine up to a restart, in order."""

    name: str
    iterations: tuple[LoggedIteration, ...]
    left_out: Counter[str]
    """Reason → lines that tell of an iteration and are not used."""
    versions: tuple[str, ...]
    """vLLM versions that the log names, in order."""
    kv_cache_tokens: int | None
    """Size of the KV cache, where the log says it."""

    @property
    def waits_are_too_short(self) -> bool:
        """Whether many pure decodes took next to nothing: with asynchronous scheduling a line tells how long the engine
        *waited*, which is no iteration's time where the host is the slower one.
        """
        times = np.array([line.elapsed_s for line in self.iterations if not line.num_context_requests])
        if len(times) < _FEWEST_IN_STRETCH:
            return False
        return bool((times < _BLOCKED_SHARE_OF_P90 * np.percentile(times, 90)).mean() > _MOST_BLOCKED)


def read_iteration_log(path: str | Path) -> IterationLog:
    """Read a log of any size, line by line. Raises ``TimingsError`` if it cannot be read or tells of no iteration."""
    path = Path(path)
    found: list[LoggedIteration] = []
    left_out: Counter[str] = Counter()
    versions: list[str] = []
    kv_cache_tokens: int | None = None
    restarted = False
    for line in _lines(path):
        if _MARK in line and "elapsed time" in line:
            iteration = _read(line, left_out)
            if iteration is None:
                continue
            if found and iteration.engine != found[0].engine:
                left_out["of another engine than the first"] += 1
                continue
            restarted |= bool(found) and iteration.number <= found[-1].number
            if restarted:
                left_out["after a restart of the server"] += 1
            else:
                found.append(iteration)
        elif match := _VERSION.search(line):
            versions.append(match[1])
        elif (match := _KV_SIZE.search(line)) and kv_cache_tokens is None:
            kv_cache_tokens = int(match[1].replace(",", ""))
    if not found:
        broken = f"; {sum(left_out.values()):,} lines look like it but cannot be read" if left_out else ""
        raise TimingsError(
            f"{path} holds no line of an iteration{broken}: start vLLM with --enable-logging-iteration-details."
        )
    return IterationLog(path.name, tuple(found), left_out, tuple(dict.fromkeys(versions)), kv_cache_tokens)


def stretch_noise_percent(iterations: tuple[LoggedIteration, ...]) -> float:
    """The device's own noise from stretches of pure decodes of the same requests: (p75 − p25) / median of up to 16
    successive iterations, which differ in one KV token a request; the median over the stretches. NaN if there is none.
    """
    stretches: list[list[float]] = [[]]
    for before, line in pairwise(iterations):
        same = line.num_generation_requests == before.num_generation_requests and not line.num_context_requests
        if not same or len(stretches[-1]) >= _STRETCH:
            stretches.append([])
        if same:
            stretches[-1].append(line.elapsed_s)
    spreads = []
    for times in stretches:
        if len(times) >= _FEWEST_IN_STRETCH and (median := float(np.median(times))) > 0:
            low, high = np.percentile(times, (25, 75))
            spreads.append(100.0 * float(high - low) / median)
    return float(np.median(spreads)) if spreads else float("nan")


def _read(line: str, left_out: Counter[str]) -> LoggedIteration | None:
    match = _LINE.search(line)
    if match is None:
        left_out["cannot be read"] += 1
        return None
    if match["dummy"]:
        left_out["a dummy step (data parallelism)"] += 1
        return None
    if match["encoder"]:
        left_out["with encoder inputs (multimodal)"] += 1
        return None
    return LoggedIteration(
        engine=int(match["engine"] or 0),
        number=int(match["index"]),
        num_context_requests=int(match["context_requests"]),
        num_context_tokens=int(match["context_tokens"]),
        num_generation_requests=int(match["generation_requests"]),
        num_generation_tokens=int(match["generation_tokens"]),
        elapsed_s=float(match["elapsed_ms"]) / 1e3,
        kv_usage=None if match["usage"] is None else float(match["usage"]) / 100.0,
    )


def _lines(path: Path) -> Iterator[str]:
    try:
        if not S_ISREG(path.stat().st_mode):
            raise TimingsError(f"{path} is no regular file: give the log that the server wrote.")
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise TimingsError(f"{path} cannot be read ({error.strerror or error}).") from error

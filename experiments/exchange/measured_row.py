"""One run of somebody's server, as far as a file tells of it: what is missing stays missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

INFINITE = math.inf


class Flag(NamedTuple):
    """What is wrong with a row."""

    impossible: bool
    """Whether the row cannot be true, and is not taken for a measurement; else it is taken and this is said."""
    text: str


@dataclass(frozen=True, slots=True)
class Workload:
    """What the client asked for; None where the file does not say."""

    request_rate: float = INFINITE
    """Requests per second; infinite if all are sent at once (or as fast as ``max_concurrency`` lets them)."""
    burstiness: float = 1.0
    max_concurrency: int | None = None
    num_prompts: int | None = None
    total_input_tokens: int | None = None
    total_output_tokens: int | None = None
    requests: tuple[tuple[float, int, int], ...] | None = None
    """(start in s, prompt tokens, output tokens) of every request that completed, where the file lists them."""
    ramps_up: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One run: the two knobs, the other settings of server and client, and metrics under our (vLLM's) names."""

    source: str
    """File, and place in it."""
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    metrics: Mapping[str, float]
    workload: Workload
    settings: Mapping[str, str] = field(default_factory=dict)
    """Every other parameter of the record: runs that differ in one are not repeats of each other."""
    model: str = ""
    flags: tuple[Flag, ...] = ()
    """What reading it found wrong."""

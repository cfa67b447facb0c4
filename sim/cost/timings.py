"""Times of iterations that somebody else measured, as columns to which a law is fitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...scheduler.errors import BatchTwinError
from .features import Features, FloatArray, stack

FEWEST = 20
"""Iterations below which nothing is fitted: a law has up to fourteen coefficients, and a fifth is held out."""


class TimingsError(BatchTwinError):
    """Times that cannot be read, or too few of them to fit anything."""


@dataclass(frozen=True, slots=True)
class Timings:
    """N measured iterations, what was left out of the source and why, and what is known only roughly."""

    features: Features
    seconds: FloatArray
    """[N] what each took."""
    left_out: Mapping[str, int]
    """Reason → how many entries of the source it cost."""
    notes: tuple[str, ...] = ()
    repeat_noise_percent: float = float("nan")
    """How far the device repeats itself, as (p75 − p25) / median; NaN where the source does not tell."""
    max_model_len: int | None = None
    """Longest context among them in tokens, where it is known."""


@dataclass(slots=True)
class TimingsBuilder:
    """Collects iterations one by one."""

    rows: list[Features] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, features: Features, seconds: float) -> None:
        """Take an iteration, unless it took no time that can be fitted."""
        if not (0.0 < seconds < float("inf")):
            self.left_out["a time of 0 or none"] += 1
        elif not features.num_tokens:
            self.left_out["no tokens"] += 1
        else:
            self.rows.append(features)
            self.seconds.append(seconds)

    def build(self, source: str, notes: Sequence[str] = (), noise_percent: float = float("nan")) -> Timings:
        """All of them. Raises ``TimingsError`` if they are too few, with what became of the rest."""
        if len(self.rows) < FEWEST:
            raise TimingsError(
                f"{source} gives {len(self.rows)} usable iterations, but a fit needs at least {FEWEST}"
                f"{told(self.left_out)}: give a longer recording."
            )
        return Timings(stack(self.rows), np.array(self.seconds), dict(self.left_out), tuple(notes), noise_percent)


def told(left_out: Mapping[str, int]) -> str:
    """What was left out, to stand in a sentence; empty if nothing was."""
    if not left_out:
        return ""
    most = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    return f" (left out: {', '.join(f'{count:,} × {reason}' for reason, count in most)})"

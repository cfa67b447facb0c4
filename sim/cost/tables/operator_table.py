"""An iteration's time, composed from operator times that others measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ....scheduler.graph_sizes import padded_size
from ..contexts import Contexts
from ..features import Features, FloatArray
from .lines import Line


@dataclass(frozen=True, slots=True)
class AttentionLoad:
    """What one attention call works on."""

    num_decodes: int
    mean_kv: float
    """Tokens of context a decode reads on average."""
    spread: tuple[float, float] | None
    """(variance of those contexts, the longest of them); None if not known."""
    chunk: float
    """Tokens of one chunk of prompt that stands for all of the step; 0 if there is none."""
    chunk_start: float
    """Tokens of context before it."""


class Attention(Protocol):
    """Seconds of attention over all layers."""

    def seconds(self, load: AttentionLoad) -> float:
        """For one step."""
        ...

    def reaches(self, load: AttentionLoad) -> bool:
        """Whether that is interpolated, and not extrapolated."""
        ...


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """dense(T padded to the captured sizes) + attention + head(sampled rows) + swaps; all in seconds on the slowest
    rank of a tensor-parallel group, all-reduces within ``dense``.
    """

    dense: Line
    """Everything that depends on the tokens alone, over all layers."""
    attention: Attention
    head: Line
    """Final projection and sampler, by rows."""
    graph_sizes: tuple[int, ...] = ()
    per_swapped_block_s: float = 0.0
    needs_spread: bool = False
    """Whether ``attention`` asks how unequal the contexts of the decodes are (``sim.cost.contexts``)."""
    factor: float = 1.0
    """On every step: the ends of an interval."""
    name: str = "operator_table"

    def duration_s(self, features: Features, contexts: Contexts | None = None) -> float:
        """Device seconds; nothing to compute costs nothing but its swaps. Without ``contexts`` those of the decodes
        count as equal.
        """
        swaps_s = self.per_swapped_block_s * features.num_blocks_swapped
        tokens = int(features.num_tokens)
        if not tokens:
            return float(swaps_s)
        dense_s = self.dense(padded_size(tokens, self.graph_sizes) or tokens)
        head_s = self.head(int(features.num_samples)) if features.num_samples else 0.0
        attention_s = self.attention.seconds(attention_load(features, contexts))
        return float(self.factor * (dense_s + attention_s + head_s) + swaps_s)

    def durations_s(self, features: Features) -> FloatArray:
        """[N] device seconds, each computed as ``duration_s`` does, at equal contexts: columns do not know others."""
        return np.array([self.duration_s(row) for row in rows(features)], dtype=np.float64)

    def steady_s(self, features: Features, num_steps: int, contexts: Contexts | None = None) -> list[float]:
        """Device seconds of a stretch of pure decodes."""
        n, kv = features.num_decodes, features.num_decode_kv_tokens
        return [
            self.duration_s(features._replace(num_decode_kv_tokens=kv + i * n), contexts and contexts.later(i, n, kv))
            for i in range(num_steps)
        ]

    def extrapolates(self, features: Features) -> NDArray[np.bool_]:
        """[N] which iterations lie outside what was measured."""
        return np.array([not self._reaches(row) for row in rows(features)], dtype=np.bool_)

    def _reaches(self, features: Features) -> bool:
        return not features.num_tokens or (
            (features.num_tokens <= self.dense.high and features.num_samples <= self.head.high)
            and self.attention.reaches(attention_load(features))
        )


def attention_load(features: Features, contexts: Contexts | None = None) -> AttentionLoad:
    """The attention call of a step.

    Several chunks are replaced by one with as many query-context pairs behind the same context: the chunks of a step
    share one launch, and its time follows the pairs. A step of one chunk is that chunk exactly.
    """
    n, kv = features.num_decodes, features.num_decode_kv_tokens
    mean_kv = kv / n if n else 0.0
    spread = None
    if n and contexts is not None:
        spread = (max(contexts.squares / n - mean_kv * mean_kv, 0.0), float(contexts.longest))
    tokens, chunks = features.num_prefill_tokens, features.num_prefills
    if not tokens:
        return AttentionLoad(n, mean_kv, spread, 0.0, 0.0)
    pairs = features.prefill_attention_work
    start = max(pairs / tokens - tokens / chunks / 2, 0.0)  # of chunks of equal length
    chunk = tokens if chunks == 1 else (start * start + 2.0 * pairs) ** 0.5 - start
    return AttentionLoad(n, mean_kv, spread, float(chunk), float(start))


def rows(features: Features) -> list[Features]:
    """Columns of features as single iterations, in plain numbers."""
    columns = [np.asarray(column).tolist() for column in features]
    size = max((len(column) for column in columns if isinstance(column, list)), default=1)
    return [Features(*(column[i] if isinstance(column, list) else column for column in columns)) for i in range(size)]

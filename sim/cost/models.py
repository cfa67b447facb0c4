"""Cost models: how long an iteration takes, from its features.

Every model is elementwise and computes in a fixed order, so that one batch at a time or all at once give the same
bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .contexts import Contexts
from .features import Features, FloatArray, Number


class CostModel(Protocol):
    """Says how long the device needs."""

    @property
    def name(self) -> str:
        """What it is called in results."""
        ...

    def durations_s(self, features: Features) -> FloatArray:
        """Device seconds of each iteration in columns of features."""
        ...

    def duration_s(self, features: Features) -> float:
        """Device seconds of one iteration."""
        ...

    def steady_s(self, features: Features, num_steps: int) -> list[float]:
        """Device seconds of ``num_steps`` iterations, each of which reads ``num_decodes`` KV tokens more than the one
        before: the same bits as ``duration_s`` one by one.
        """
        ...


class SpreadModel(CostModel, Protocol):
    """One whose time depends on how unequal the contexts of the decodes are; without them they count as equal."""

    needs_spread: bool
    """Whether it does."""

    def duration_s(self, features: Features, contexts: Contexts | None = None) -> float:
        """Device seconds of one iteration."""
        ...

    def steady_s(self, features: Features, num_steps: int, contexts: Contexts | None = None) -> list[float]:
        """``contexts`` are those of the first step."""
        ...


def _one_by_one(model: CostModel, features: Features, num_steps: int) -> list[float]:
    start, step = features.num_decode_kv_tokens, features.num_decodes
    return [model.duration_s(features._replace(num_decode_kv_tokens=start + i * step)) for i in range(num_steps)]


def is_replayed(features: Features, capture_sizes: tuple[int, ...]) -> NDArray[np.bool_]:
    """[N] whether each iteration in columns of features is a step of decodes alone within the captured sizes."""
    most = capture_sizes[-1] if capture_sizes else -1
    replayed: NDArray[np.bool_] = np.equal(features.num_prefills, 0) & np.less_equal(features.num_tokens, most)
    return replayed


@dataclass(frozen=True, slots=True)
class Constant:
    """Every iteration takes the same time, whatever is in it (nothing takes none): the null baseline."""

    seconds: float
    name: str = "constant"

    def durations_s(self, features: Features) -> FloatArray:
        """[N] the constant."""
        return np.where(np.asarray(features.num_tokens) > 0, self.seconds, 0.0)

    def duration_s(self, features: Features) -> float:
        """The constant."""
        return self.seconds if features.num_tokens else 0.0

    def steady_s(self, features: Features, num_steps: int) -> list[float]:
        """The constant, every time."""
        return [self.seconds] * num_steps


@dataclass(frozen=True, slots=True)
class Fitted:
    """A physical law with non-negative coefficients, in seconds.

    fixed + tokens(T) + per_decode · decodes + per_decode_kv_token · KV read + per_prefill · chunks
    + per_prefill_token · prefill tokens + per_attention_pair · query-context pairs + per_sample · sampled rows
    + per_swapped_block · blocks. ``tokens`` rises piecewise linearly in T: slope ``token_slopes_s[k]`` per token
    between ``token_knots[k]`` and the next knot.

    With ``capture_sizes`` (ascending) a step of decodes alone is replayed from a CUDA graph and computes as many tokens
    as the next size has; any other step is launched operator by operator, which takes ``eager_s`` more.
    """

    fixed_s: float = 0.0
    token_knots: tuple[int, ...] = (0,)
    token_slopes_s: tuple[float, ...] = (0.0,)
    per_decode_s: float = 0.0
    per_decode_kv_token_s: float = 0.0
    per_prefill_s: float = 0.0
    per_prefill_token_s: float = 0.0
    per_attention_pair_s: float = 0.0
    per_sample_s: float = 0.0
    per_swapped_block_s: float = 0.0
    capture_sizes: tuple[int, ...] = ()
    eager_s: float = 0.0
    name: str = "fitted"
    _table: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    _replayed: list[float] = field(default_factory=list, init=False, repr=False, compare=False)

    def durations_s(self, features: Features) -> FloatArray:
        """[N] device seconds."""
        tokens = np.asarray(features.num_tokens, dtype=np.int64)
        self._tabulate(int(tokens.max(initial=0)))
        base = np.asarray(self._table)[tokens]
        if self.capture_sizes:
            replayed = is_replayed(features, self.capture_sizes)
            base[replayed] = np.asarray(self._replayed)[tokens[replayed]]
        times = base + self._linear(features)
        return np.where(tokens > 0, times, self.per_swapped_block_s * np.asarray(features.num_blocks_swapped))

    def duration_s(self, features: Features) -> float:
        """Device seconds; nothing to compute costs nothing but its swaps."""
        tokens, decodes, kv_tokens, prefills, prefill_tokens, pairs, samples, swapped, _ = features
        if tokens == 0:
            return float(self.per_swapped_block_s * swapped)
        table = self._table
        if self.capture_sizes and not prefills and tokens <= self.capture_sizes[-1]:
            table = self._replayed
        try:
            base = table[tokens]
        except (IndexError, TypeError):
            self._tabulate(int(tokens))
            base = table[int(tokens)]
        linear = self.per_decode_s * decodes + self.per_decode_kv_token_s * kv_tokens
        if prefills or prefill_tokens or pairs:  # terms that are 0 change no bit
            linear += self.per_prefill_s * prefills
            linear += self.per_prefill_token_s * prefill_tokens
            linear += self.per_attention_pair_s * pairs
        total: float = base + (linear + self.per_sample_s * samples + self.per_swapped_block_s * swapped)
        return total

    def steady_s(self, features: Features, num_steps: int) -> list[float]:
        """Device seconds of a stretch of pure decodes. Terms that are 0 are left out, which changes no bit."""
        tokens, step, kv, _, _, _, num_samples, _, _ = features
        self._tabulate(tokens)
        replayed = self.capture_sizes and tokens <= self.capture_sizes[-1]
        base = (self._replayed if replayed else self._table)[tokens]
        decodes, per_kv, samples = self.per_decode_s * step, self.per_decode_kv_token_s, self.per_sample_s * num_samples
        return [base + (decodes + per_kv * at + samples) for at in range(kv, kv + num_steps * step, step)]

    def _linear(self, f: Features) -> Number:
        return (
            self.per_decode_s * f.num_decodes
            + self.per_decode_kv_token_s * f.num_decode_kv_tokens
            + self.per_prefill_s * f.num_prefills
            + self.per_prefill_token_s * f.num_prefill_tokens
            + self.per_attention_pair_s * f.prefill_attention_work
            + self.per_sample_s * f.num_samples
            + self.per_swapped_block_s * f.num_blocks_swapped
        )

    def _tabulate(self, up_to_tokens: int) -> None:
        """Fixed + tokens(T) for every whole T: exact, since T is an integer."""
        if up_to_tokens < len(self._table):
            return
        most = max((2 * up_to_tokens, *self.capture_sizes[-1:]))
        tokens = np.arange(most + 1, dtype=np.float64)
        times = np.full(len(tokens), self.fixed_s)
        highs = (*self.token_knots[1:], np.inf)
        for low, high, slope in zip(self.token_knots, highs, self.token_slopes_s, strict=True):
            times += slope * (np.minimum(np.maximum(tokens, low), high) - low)
        if self.capture_sizes:
            sizes = np.asarray(self.capture_sizes)
            small = np.arange(min(len(times), self.capture_sizes[-1] + 1))
            self._replayed[:] = times[sizes[np.searchsorted(sizes, small)]].tolist()
            times += self.eager_s
        self._table[:] = times.tolist()


@dataclass(frozen=True, slots=True)
class Roofline:
    """The larger of memory and compute time, from the model's shape and the device's data sheet: no measurement.

    Bytes: the weights once, and K and V of every context token read. FLOPs: 2 per parameter and token, 2 per
    vocabulary entry and sampled row, and 4 · hidden · layers per query-context pair (QKᵀ and PV).
    """

    weight_bytes: float
    kv_bytes_per_token: float
    flops_per_token: float
    flops_per_sample: float
    flops_per_attention_pair: float
    memory_bytes_per_s: float
    flops_per_s: float
    launch_s: float = 0.0
    alpha: float = 1.0
    name: str = "roofline"

    def durations_s(self, features: Features) -> FloatArray:
        """[N] device seconds."""
        f = features
        moved = self.weight_bytes + self.kv_bytes_per_token * f.num_decode_kv_tokens
        flops = (
            self.flops_per_token * f.num_tokens
            + self.flops_per_sample * f.num_samples
            + self.flops_per_attention_pair * (f.num_decode_kv_tokens + f.prefill_attention_work)
        )
        floor = np.maximum(moved / self.memory_bytes_per_s, flops / self.flops_per_s)
        return np.where(np.asarray(f.num_tokens) > 0, self.launch_s + self.alpha * floor, 0.0)

    def duration_s(self, features: Features) -> float:
        """Device seconds."""
        return float(self.durations_s(features))

    def steady_s(self, features: Features, num_steps: int) -> list[float]:
        """Device seconds of a stretch of pure decodes."""
        return _one_by_one(self, features, num_steps)


@dataclass(frozen=True, slots=True)
class HostTerm:
    """What the host takes an iteration: a fixed part and a part per sequence served."""

    fixed_s: float = 0.0
    per_seq_s: float = 0.0

    def host_s(self, features: Features) -> float:
        """Host seconds of one iteration."""
        total: float = self.fixed_s + self.per_seq_s * features.num_seqs
        return total

    def hosts_s(self, features: Features) -> FloatArray:
        """[N] host seconds."""
        return np.asarray(self.fixed_s + self.per_seq_s * np.asarray(features.num_seqs))

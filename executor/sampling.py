"""From logits to tokens, for a whole batch at once.

A request's token at a position depends on its logits, its parameters, its seed and the position alone, so it is the
same however the request is batched. Noise comes from a counter-based generator instead of torch's, whose numbers
depend on what was drawn before.

On a CUDA device the greedy choice is captured with the decode step (``cuda_runner``), and drawing is one kernel behind
it (``kernels/triton_sampling.py``), with a sort before it where top-k or top-p is asked for. That part is not captured:
what a batch needs of it changes from step to step. Parameters travel in one copy, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .errors import ExecutorError

_MASK = 0xFFFFFFFF
_NOISE_BITS = 23
"""As many as leave room for a half in a float32: with 24 the largest would be rounded to 1, whose noise is infinite."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen; the default is greedy.

    ``temperature`` 0 takes the most probable token. ``top_k`` keeps the k most probable (0: all), then ``top_p`` the
    smallest set of the most probable whose share of what is left reaches p.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ExecutorError(f"temperature is {self.temperature:g}: give 0 (greedy) or a number above it.")
        if self.top_k < 0:
            raise ExecutorError(f"top_k is {self.top_k}: give the number of tokens to keep, or 0 for all.")
        if not 0 < self.top_p <= 1:
            raise ExecutorError(f"top_p is {self.top_p:g}: give a share above 0 and up to 1.")


GREEDY = SamplingParams()


def sample(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> Tensor:
    """[n] int64 token ids from ``logits`` [n, vocab]; row i is to become the token at ``positions[i]``. No ``params``
    at all means greedy for everybody.
    """
    if is_greedy(params):
        return _argmax(logits)
    vocab_size = logits.shape[1]
    keys, top_k, temperature, top_p = _columns(params, positions, vocab_size, logits.device)
    if any(p.top_k or p.top_p < 1 for p in params):
        logits = _restricted(_tempered(logits, temperature), top_k, top_p)
        temperature = (temperature > 0).float()  # applied already, but greedy stays greedy
    if logits.device.type == "cuda":
        from ..kernels.triton_sampling import draw

        return draw(logits, keys, temperature)
    return draw_on_host(logits, keys, temperature)


def draw_on_host(logits: Tensor, keys: Tensor, temperature: Tensor) -> Tensor:
    """[n] int64 tokens from ``logits`` [n, vocab] by ``keys`` and ``temperature`` [n, 1]."""
    scores = _tempered(logits, temperature)
    return torch.where(temperature == 0, scores, scores + _gumbel(keys, logits.shape[1])).argmax(dim=-1)


def _tempered(logits: Tensor, temperature: Tensor) -> Tensor:
    return logits.float() / torch.where(temperature == 0, 1.0, temperature)


def is_greedy(params: Sequence[SamplingParams]) -> bool:
    """Whether everybody takes the most probable token."""
    return all(p.temperature == 0 for p in params)


def _columns(
    params: Sequence[SamplingParams], positions: Sequence[int], vocab_size: int, device: torch.device
) -> tuple[Tensor, ...]:
    """Keys, top-k (int64), temperatures and top-p (float32), each [n, 1] on the device, in one copy: the floats travel
    as the integers of the same bits.
    """
    host = torch.empty((4, len(params)), dtype=torch.int64, pin_memory=device.type == "cuda")
    rows = host.numpy()
    rows[0] = [_key(p.seed, at) for p, at in zip(params, positions, strict=True)]
    rows[1] = [p.top_k or vocab_size for p in params]
    rows[2:].view(np.float64)[:] = [p.temperature for p in params], [p.top_p for p in params]
    there = host.to(device, non_blocking=True)[:, :, None]
    floats = there[2:].view(torch.float64).float()
    return there[0], there[1], floats[0], floats[1]


def _argmax(logits: Tensor) -> Tensor:
    """[rows] the first largest of each row. numpy's is ten times as fast on the CPU, but knows no bfloat16."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.from_numpy(np.argmax(logits.numpy(), axis=-1))
    return logits.argmax(dim=-1)


def _restricted(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """``scores`` with −∞ where top-k or top-p leaves a token out."""
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scores.shape[1], device=scores.device)
    ordered = ordered.masked_fill(rank >= top_k, float("-inf"))
    share = torch.softmax(ordered, dim=-1)
    before = share.cumsum(dim=-1) - share
    # The most probable always stays: rounding must not leave a row without any token.
    ordered = ordered.masked_fill((before >= top_p) & (rank > 0), float("-inf"))
    return torch.empty_like(scores).scatter_(1, order, ordered)


def _gumbel(keys: Tensor, vocab_size: int) -> Tensor:
    """[n, vocab] standard Gumbel noise: the argmax of log-probabilities plus it is a draw from them."""
    bits = torch.arange(vocab_size, device=keys.device) * 0x9E3779B1 & _MASK
    bits = _mixed(_mixed(bits ^ (keys & _MASK)) ^ (keys >> 32 & _MASK)) >> (32 - _NOISE_BITS)
    uniform = (bits.float() + 0.5) / 2**_NOISE_BITS
    return -torch.log(-torch.log(uniform))


def _mixed(bits: Tensor) -> Tensor:
    """The finaliser of MurmurHash3 on 32 bits held in int64 (whose products wrap, keeping the low bits right)."""
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B & _MASK
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35 & _MASK
    return bits ^ (bits >> 16)


def _key(seed: int, position: int) -> int:
    """63 bits that differ for every seed and position: the finaliser of splitmix64."""
    mask = 2**64 - 1
    x = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & mask
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
    return (x ^ (x >> 31)) >> 1

"""Fitting ``Fitted`` to measured iterations, and saying how wrong it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from .features import Features, FloatArray
from .models import Constant, CostModel, Fitted, HostTerm, Roofline, is_replayed

TOKEN_KNOTS = (1, 2, 8, 32, 128, 512, 2048)
"""Where the time per token may change its slope: small batches are bound by weights and launches, large ones by
arithmetic. The first knot carries the fixed part, so that T = 1 has its own offset."""
LINEAR_TERMS = {
    "per_decode_s": "num_decodes",
    "per_decode_kv_token_s": "num_decode_kv_tokens",
    "per_prefill_s": "num_prefills",
    "per_prefill_token_s": "num_prefill_tokens",
    "per_attention_pair_s": "prefill_attention_work",
    "per_sample_s": "num_samples",
}
NUM_FOLDS = 5
Fitter = Callable[[Features, FloatArray], CostModel]


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Signed relative errors of predicted iteration times, in per cent."""

    median_percent: float
    p90_percent: float
    worst_percent: float
    bias_percent: float
    """Mean of the signed errors."""


def summarize(predicted_s: FloatArray, measured_s: FloatArray) -> ErrorSummary:
    """Errors of [N] predictions against [N] measurements."""
    error = 100.0 * (predicted_s / measured_s - 1.0)
    size = np.abs(error)
    return ErrorSummary(float(np.median(size)), float(np.percentile(size, 90)), float(size.max()), float(error.mean()))


def fit(features: Features, seconds: FloatArray, *, capture_sizes: tuple[int, ...] = ()) -> Fitted:
    """Non-negative least squares of relative residuals: a 1 ms step counts as much as a 100 ms step.

    ``features`` are columns of N iterations, ``seconds`` [N] what each took (the median of its repeats).
    ``capture_sizes`` are those at which the engine replays CUDA graphs, none where it has none.
    """
    design, knots = design_matrix(features, capture_sizes)
    weights = 1.0 / seconds
    scale = np.maximum(np.abs(design * weights[:, None]).max(axis=0), 1e-300)
    solution, _ = nnls(design * weights[:, None] / scale, np.ones(len(seconds)))
    coefficients = (solution / scale).tolist()
    num_slopes = len(knots)
    return Fitted(
        fixed_s=coefficients[0],
        token_knots=knots,
        token_slopes_s=tuple(coefficients[1 : 1 + num_slopes]),
        capture_sizes=capture_sizes,
        eager_s=coefficients[-1],
        **dict(zip(LINEAR_TERMS, coefficients[1 + num_slopes : -1], strict=True)),
    )


def held_out_predictions(
    features: Features, seconds: FloatArray, *, seed: int = 0, capture_sizes: tuple[int, ...] = ()
) -> FloatArray:
    """[N] Five-fold cross-validation: each iteration's time as a fit predicts it that has not seen it."""
    return _cross_predict(features, seconds, seed, partial(fit, capture_sizes=capture_sizes))


def null_errors(
    features: Features, seconds: FloatArray, roofline: Roofline, *, seed: int = 0
) -> dict[str, ErrorSummary]:
    """The same for the baselines that a fit must beat."""

    def affine(train: Features, train_s: FloatArray) -> CostModel:
        return fit_roofline(roofline, train, train_s)

    return {
        "constant": summarize(_cross_predict(features, seconds, seed, fit_constant), seconds),
        "roofline": summarize(roofline.durations_s(features), seconds),
        "roofline_affine": summarize(_cross_predict(features, seconds, seed, affine), seconds),
    }


def fit_constant(features: Features, seconds: FloatArray) -> Constant:
    """The constant with the least absolute error."""
    return Constant(float(np.median(seconds)))


def fit_roofline(roofline: Roofline, features: Features, seconds: FloatArray) -> Roofline:
    """Roofline · α + β with non-negative α and β, by relative least squares."""
    bare = replace(roofline, launch_s=0.0, alpha=1.0)
    design = np.column_stack((np.ones(len(seconds)), bare.durations_s(features))) / seconds[:, None]
    (beta, alpha), _ = nnls(design, np.ones(len(seconds)))
    return replace(bare, launch_s=float(beta), alpha=float(alpha), name="roofline_affine")


def fit_host(num_seqs: FloatArray, seconds: FloatArray) -> HostTerm:
    """A non-negative line through the host's time of [N] iterations."""
    if len(seconds) == 0:
        return HostTerm()
    (fixed, per_seq), _ = nnls(np.column_stack((np.ones(len(seconds)), num_seqs)), seconds)
    return HostTerm(float(fixed), float(per_seq))


def _cross_predict(features: Features, seconds: FloatArray, seed: int, fitter: Fitter) -> FloatArray:
    folds = np.random.default_rng(seed).permutation(len(seconds)) % NUM_FOLDS
    predicted = np.empty(len(seconds))
    for fold in range(NUM_FOLDS):
        out = folds == fold
        if out.any():
            model = fitter(_take(features, ~out), seconds[~out])
            predicted[out] = model.durations_s(_take(features, out))
    return predicted


def _take(features: Features, rows: NDArray[np.bool_]) -> Features:
    return Features(*(np.asarray(column)[rows] for column in features))


def _knots(num_tokens: FloatArray) -> tuple[int, ...]:
    """Knots with measurements on both sides; one straight line if there is none."""
    return tuple(knot for knot in TOKEN_KNOTS if (num_tokens > knot).any() and (num_tokens <= knot).any()) or (0,)


def design_matrix(features: Features, capture_sizes: tuple[int, ...] = ()) -> tuple[FloatArray, tuple[int, ...]]:
    """[N, terms] what each coefficient of ``fit`` is multiplied by, and the knots of the time per token. The terms: the
    fixed part, the pieces between knots, ``LINEAR_TERMS``, and whether the step is launched operator by operator.
    """
    tokens = np.asarray(features.num_tokens, dtype=np.float64)
    eager = np.zeros_like(tokens)
    if capture_sizes:
        replayed = is_replayed(features, capture_sizes)
        sizes = np.asarray(capture_sizes, dtype=np.float64)
        tokens = np.where(replayed, sizes[np.searchsorted(sizes, tokens).clip(max=len(sizes) - 1)], tokens)
        eager = (~replayed).astype(np.float64)
    knots = _knots(tokens)
    pieces = [
        np.minimum(np.maximum(tokens, low), high) - low for low, high in zip(knots, (*knots[1:], np.inf), strict=True)
    ]
    linear = [np.asarray(getattr(features, name), dtype=np.float64) for name in LINEAR_TERMS.values()]
    return np.column_stack([np.ones_like(tokens), *pieces, *linear, eager]), knots

"""Which batches a calibration measures when time is short, and how its error fell as time was spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..sim.cost.features import Features, FloatArray
from ..sim.cost.fit import NUM_FOLDS, design_matrix, fit, summarize
from ..sim.cost.profile import CurvePoint

NUM_FIRST = 9
"""Chosen without a model: the smallest, a middling and the largest of each third of the candidates."""
MIN_FITTED = 16
NUM_POINTS = 6


class ActiveChoice:
    """Chooses the next of N candidate batches: the one whose time the law is least sure of.

    The variance of a prediction in least squares is proportional to x' (X' X)⁻¹ x, here in relative terms, as the law
    is fitted; measuring where it is largest is the greedy step towards a D-optimal design (Fedorov 1972). Calling it
    costs a fit of what is known, about a millisecond.
    """

    def __init__(self, features: Features, capture_sizes: tuple[int, ...] = ()) -> None:
        self._features = features
        self._capture_sizes = capture_sizes
        self._design, _ = design_matrix(features, capture_sizes)
        count = len(self._design)
        third = max(1, count // 3)
        self._first = sorted({i for at in range(0, count, third) for i in _ends(at, min(at + third, count))})

    def __call__(self, times_s: Mapping[int, float]) -> int | None:
        """The next candidate, given what those before took; None when all are measured."""
        waiting = [i for i in range(len(self._design)) if i not in times_s]
        if not waiting:
            return None
        for i in self._first:
            if i not in times_s:
                return i
        known = sorted(times_s)
        law = fit(
            _take(self._features, known), np.array([times_s[i] for i in known]), capture_sizes=self._capture_sizes
        )
        expected_s = np.maximum(law.durations_s(self._features), 1e-9)
        relative = self._design / expected_s[:, None]
        relative = relative / np.maximum(relative.max(axis=0), 1e-300)
        information = relative[known].T @ relative[known] + 1e-6 * np.eye(relative.shape[1])
        variance = np.einsum("ij,ij->i", relative, np.linalg.solve(information, relative.T).T)
        return max(waiting, key=lambda i: float(variance[i]))


def error_curve(
    features: Features,
    times_s: Sequence[Sequence[float]],
    at_s: Sequence[Sequence[float]],
    capture_sizes: tuple[int, ...] = (),
    *,
    seed: int = 0,
) -> tuple[CurvePoint, ...]:
    """The held-out error that a law fitted to the measurements of the first minutes has, for growing times.

    Of N batches, ``times_s[i]`` are the repeats and ``at_s[i]`` when each was done. A batch is always held against the
    median of all its repeats, and predicted from other batches alone (the folds of ``held_out_predictions``).
    """
    truth_s = np.array([np.median(row) for row in times_s])
    folds = np.random.default_rng(seed).permutation(len(truth_s)) % NUM_FOLDS
    done_s = np.sort(np.concatenate([np.asarray(row) for row in at_s]))
    points = []
    for end_s in _ends_of_points(done_s):
        early = [
            [t for t, at in zip(row, ats, strict=True) if at <= end_s] for row, ats in zip(times_s, at_s, strict=True)
        ]
        known = np.array([bool(row) for row in early])
        if known.sum() < MIN_FITTED:
            continue
        medians_s = np.array([np.median(row) if row else np.nan for row in early])
        error = summarize(_predicted(features, medians_s, known, folds, capture_sizes), truth_s)
        points.append(
            CurvePoint(
                minutes=round(float(end_s) / 60, 3),
                num_batches=int(known.sum()),
                num_measurements=sum(map(len, early)),
                median_percent=error.median_percent,
                p90_percent=error.p90_percent,
            )
        )
    return tuple(points)


def _predicted(
    features: Features, medians_s: FloatArray, known: np.ndarray, folds: np.ndarray, capture_sizes: tuple[int, ...]
) -> FloatArray:
    predicted_s = np.empty(len(medians_s))
    for fold in range(NUM_FOLDS):
        out, train = folds == fold, known & (folds != fold)
        law = fit(_take(features, np.flatnonzero(train)), medians_s[train], capture_sizes=capture_sizes)
        predicted_s[out] = law.durations_s(_take(features, np.flatnonzero(out)))
    return predicted_s


def _ends_of_points(done_s: FloatArray) -> list[float]:
    """Times at which half as many, and half of those, … measurements were done; ascending, the last is all."""
    counts = sorted({len(done_s) // 2**i for i in range(NUM_POINTS)} - {0})
    return [float(done_s[count - 1]) for count in counts]


def _ends(start: int, stop: int) -> tuple[int, int, int]:
    return start, (start + stop) // 2, stop - 1


def _take(features: Features, rows: Sequence[int] | np.ndarray) -> Features:
    return Features(*(np.asarray(column)[rows] for column in features))

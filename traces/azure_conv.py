"""A stand-in for the Azure 2023 conversation trace, made from facts measured on the published file.

Source of the facts: ``AzureLLMInferenceTrace_conv.csv`` of the Azure Public Dataset, CC BY 4.0, released with Patel et
al., "Splitwise" (ISCA 2024); published at https://github.com/Azure/AzurePublicDataset. No row of it is contained here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .generate import check_count, streams, unit_gaps
from .lengths import Quantiles
from .trace import Trace

if TYPE_CHECKING:
    from .columns import FloatArray

AZURE_CONV_REQUESTS = 19_366
AZURE_CONV_SPAN_S = 3_501.721937

_PROBABILITIES = (0.0, 0.005, 0.01, *(k / 40 for k in range(1, 40)), 0.99, 0.995, 0.999, 0.9995, 1.0)
_PROMPT = Quantiles(
    _PROBABILITIES,
    (
        *(2, 17, 29, 120, 181, 200, 207, 235, 372, 379, 387, 393, 396, 400, 403, 407),
        *(414, 428, 703, 922, 984, 1005, 1020, 1034, 1045, 1058, 1071, 1083, 1097, 1112, 1130, 1153),
        *(1189, 1277, 1315, 1434, 1876, 2309, 2734, 4075, 4083, 4092, 4142, 4831, 6179, 6570, 14050),
    ),
)
_OUTPUT = Quantiles(
    _PROBABILITIES,
    (
        *(7, 14, 16, 28, 41, 48, 54, 60, 67, 72, 77, 82, 85, 88, 91, 93),
        *(96, 99, 103, 108, 113, 120, 129, 139, 151, 162, 177, 195, 217, 373, 384, 391),
        *(395, 396, 400, 406, 411, 416, 424, 430, 451, 522, 601, 643, 954, 1000, 1000),
    ),
)

_JOINT_DECILES = np.array(
    (
        (155, 92, 68, 88, 229, 618, 679, 0, 1, 7),
        (397, 623, 318, 165, 139, 148, 146, 0, 0, 1),
        (23, 131, 513, 616, 447, 192, 14, 0, 0, 0),
        (31, 84, 434, 611, 493, 244, 35, 1, 1, 3),
        (84, 80, 126, 93, 125, 40, 144, 460, 401, 383),
        (12, 22, 15, 20, 4, 4, 167, 572, 582, 539),
        (22, 16, 23, 11, 9, 7, 205, 529, 521, 594),
        (75, 72, 38, 23, 47, 214, 309, 361, 415, 382),
        (275, 352, 247, 218, 287, 317, 194, 12, 16, 19),
        (863, 465, 154, 92, 156, 153, 44, 1, 0, 8),
    ),
    dtype=np.float64,
)
"""Requests whose prompt is in the row's tenth (shortest first) and whose output is in the column's.

Middling prompts have long outputs, short and long ones have short outputs: the rank correlation of the file is +0.07
and its linear correlation −0.11, which no Gaussian copula gives at once; this table does.
"""

_ARRIVALS_PER_TWELFTH = np.array((1403, 1384, 1515, 1498, 1808, 2131, 2192, 1897, 1632, 1503, 1275, 1128))
"""How the hour's rate swells and ebbs: requests in each twelfth of the span (292 s)."""

_BURSTINESS = 0.9
"""Shape of the gaps once that swell is taken out of them: their coefficient of variation is then 1.05."""


def azure_conv_like(n: int = AZURE_CONV_REQUESTS, seed: int = 0) -> Trace:
    """A trace with the marginals of the Azure 2023 conversation trace, none of its rows.

    Reproduced: 5.53 requests/s over 3,501.7 s and how the rate drifts, the burstiness of the gaps, the quantiles of
    both lengths and how they go together. Lengths are spread evenly over their quantiles, so every seed has the same
    marginals and seeds differ in order, pairing and arrivals. Another ``n`` keeps the mean rate and gets a span in
    proportion, over which the drift of the hour is stretched.
    """
    check_count(n, seed)
    arrivals, cells, places = streams(seed, 3)
    prompt_rank, output_rank = _joint_ranks(cells, places, n)
    return Trace(
        name="azure-conv-like",
        arrival_s=_arrivals_s(arrivals, n),
        num_prompt_tokens=_PROMPT.at(prompt_rank),
        output_len=_OUTPUT.at(output_rank),
        source=f"azure_conv_like(n={n}, seed={seed}): generated from quantiles of the Azure 2023 conversation trace "
        "(CC BY 4.0, Patel et al. 2024, https://github.com/Azure/AzurePublicDataset)",
    )


def _arrivals_s(rng: np.random.Generator, n: int) -> FloatArray:
    """Gaps of a stationary process, in a time that runs as fast as the hour is busy; the span is exact."""
    if n == 1:
        return np.zeros(1)
    work = np.cumsum(unit_gaps(rng, n, _BURSTINESS))
    busy = np.concatenate(([0.0], np.cumsum(_ARRIVALS_PER_TWELFTH) / _ARRIVALS_PER_TWELFTH.sum()))
    span_s = AZURE_CONV_SPAN_S * (n - 1) / (AZURE_CONV_REQUESTS - 1)
    arrival_s: FloatArray = np.interp(work / work[-1], busy, np.linspace(0.0, span_s, busy.size))
    return arrival_s


def _joint_ranks(cells: np.random.Generator, places: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray]:
    """Pairs of probabilities: a cell of the table, a place in it, then each side spread evenly over 0 to 1."""
    size = _JOINT_DECILES.shape[0]
    cell = cells.choice(size * size, size=n, p=_JOINT_DECILES.ravel() / _JOINT_DECILES.sum())
    within = places.random((2, n))
    return _evenly(cell // size + within[0]), _evenly(cell % size + within[1])


def _evenly(values: FloatArray) -> FloatArray:
    ranks = np.empty(values.size)
    ranks[np.argsort(values, kind="stable")] = (np.arange(values.size) + 0.5) / values.size
    return ranks

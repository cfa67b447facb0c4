"""What a heatmap says of a cell under the mouse: everything that is known of it."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .data import HeatmapData, Place
from .labels import number, percent, quantity

NO_RESULT = {"infeasible": "cannot work", "failed": "failed", "skipped": "left out by the search"}
"""A cell's status in words."""


def hovers(data: HeatmapData) -> NDArray[np.object_]:
    """The text of every cell of a heatmap, as Plotly's HTML."""
    out: NDArray[np.object_] = np.full(data.predicted.shape, "", dtype=object)
    for row, column in np.ndindex(out.shape):
        lines = [
            f"<b>max_num_seqs {data.max_num_seqs[row]:,} · "
            f"max_num_batched_tokens {data.max_num_batched_tokens[column]:,}</b>",
            *_known(data, (row, column)),
        ]
        out[row, column] = "<br>".join(lines)
    return out


def _known(data: HeatmapData, at: Place) -> Iterator[str]:
    if at == data.recommended:
        yield "★ recommended"
    if at == data.default:
        yield "◆ vLLM's default"
    if not data.in_grid[at]:
        yield "not in this grid"
    elif data.reasons[at]:
        yield f"{NO_RESULT.get(data.status[at], data.status[at])}:"
        yield from (html.escape(line) for line in textwrap.wrap(data.reasons[at], 64))
    elif math.isnan(data.predicted[at]):
        yield "not predicted"
    else:
        yield f"predicted {quantity(data.metric, data.predicted[at])}"
        yield from _measurement(data, at)
    if data.meets_slo[at]:
        yield "□ meets the SLOs"
    if data.preempting[at]:
        yield "⋯ preempts"


def _measurement(data: HeatmapData, at: Place) -> Iterator[str]:
    if math.isnan(data.measured[at]):
        yield "not measured"
        return
    noise = data.noise_percent[at]
    spread = "" if math.isnan(noise) else f" ± {number(noise)} %"
    yield f"measured {quantity(data.metric, data.measured[at])}{spread}"
    yield f"error {percent(data.error_percent[at], signed=True)}"

"""A layer of experts by tokens, from a table by tokens and experts that are met."""

from __future__ import annotations

import numpy as np

from ...facts.model import ModelConfig
from .csv_table import Table, TableError
from .grid import PointTable
from .lines import Line


def expert_line(table: Table, config: ModelConfig) -> Line:
    """Seconds of one layer's experts by tokens.

    With routing spread evenly, T tokens meet E · (1 − (1 − k/E)^T) of E experts, k a token. Raises ``TableError`` if
    the model has no experts.
    """
    total, each = config.num_experts, config.num_experts_per_token
    if not total or not each:
        raise TableError(f"{table.path} holds times of experts, but {config.name} has none.")
    tokens = table.numbers("tokens")
    met = table.numbers("activated_experts", default=float(total))
    seconds = table.numbers("time_us") * 1e-6
    points = PointTable(zip(np.column_stack((tokens, met)).tolist(), seconds.tolist(), strict=True), ("linear",) * 2)
    sizes = sorted(set(tokens.tolist()))
    return Line((size, points(size, total * (1 - (1 - each / total) ** size))) for size in sizes)

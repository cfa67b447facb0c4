"""Running the model over a laid-out batch; ``cuda_runner`` has the CUDA device's way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .attention import CpuPagedBatch, PagedAttention

if TYPE_CHECKING:
    from ..scheduler.shapes import ForwardShapes
    from .kv_cache import PagedKVCache
    from .models import LoadedModel

IntArray = NDArray[np.int64]


class Taken(NamedTuple):
    """Input tokens that a step not yet finished is producing: row ``rows[i]`` takes ``tokens[places[i]]``."""

    rows: IntArray
    places: IntArray
    tokens: Tensor


class Forward(NamedTuple):
    """What a forward gives. A captured step's ``logits`` lie where the next replay of it writes."""

    logits: Tensor
    """[samples, vocab]"""
    greedy: Tensor | None = None
    """[samples] the most probable tokens, where they are part of the forward."""


class Runner(Protocol):
    """Runs the model over a batch."""

    def forward(self, shapes: ForwardShapes, taken: Taken | None) -> Forward:
        """Queue the whole forward; the result may not be there yet."""
        ...

    def capture_all(self) -> None:
        """Do beforehand whatever would otherwise be done when it is first needed."""
        ...


class CpuRunner:
    """The arrays are handed over as they are."""

    def __init__(self, loaded: LoadedModel, cache: PagedKVCache) -> None:
        self._model = loaded.model
        self._cache = cache

    def capture_all(self) -> None:
        """Nothing is captured on a CPU."""

    def forward(self, shapes: ForwardShapes, taken: Taken | None) -> Forward:
        """As ``Runner.forward``; the greedy choice is left to the sampler, which is quicker at it on a CPU."""
        input_ids = torch.from_numpy(shapes.input_tokens)
        if taken is not None:
            input_ids[taken.rows] = taken.tokens[taken.places]
        logits = run_model(
            self._model,
            input_ids,
            torch.from_numpy(shapes.positions),
            torch.from_numpy(shapes.sample_rows),
            CpuPagedBatch(self._cache, shapes),
        )
        return Forward(logits)


def run_model(model: Any, input_ids: Tensor, positions: Tensor, sample_rows: Tensor, paged: PagedAttention) -> Tensor:
    """The flattened forward: ids and positions [T]; logits of ``sample_rows`` only."""
    logits: Tensor = model(
        input_ids=input_ids[None],
        position_ids=positions[None],
        use_cache=False,
        logits_to_keep=sample_rows,
        paged=paged,
    ).logits[0]
    return logits

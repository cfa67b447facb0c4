"""Running the model on a CUDA device: index arrays in one copy, pure decode steps replayed from captured graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.metadata import NO_SLOT, AttentionMetadata, PackedBatch, pack
from ..scheduler.graph_sizes import padded_size
from .attention import PagedAttention
from .graphs import Capture, Captured
from .runners import Forward, Taken, run_model
from .staging import Staging

if TYPE_CHECKING:
    from ..scheduler.shapes import ForwardShapes
    from .kv_cache import PagedKVCache
    from .models import LoadedModel

IntArray = NDArray[np.int64]
AttentionOf = Callable[["PagedKVCache", AttentionMetadata], PagedAttention]


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """Which decode steps are replayed: up to ``sizes[-1]`` sequences with contexts up to ``max_model_len``."""

    sizes: tuple[int, ...]
    max_model_len: int


class StepInputs(NamedTuple):
    """A step on the device."""

    input_ids: Tensor
    positions: Tensor
    sample_rows: Tensor
    metadata: AttentionMetadata


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step on the host, as ``ForwardShapes`` names it; ``num_decode_rows`` leading sequences are decodes."""

    input_tokens: IntArray
    positions: IntArray
    sample_rows: IntArray
    query_start_loc: IntArray
    seq_lens: IntArray
    block_tables: IntArray
    slot_mapping: IntArray
    num_decode_rows: int

    @classmethod
    def of(cls, shapes: ForwardShapes) -> StepArrays:
        """A batch as it was laid out."""
        return cls(
            shapes.input_tokens,
            shapes.positions,
            shapes.sample_rows,
            shapes.query_start_loc,
            shapes.seq_lens,
            shapes.block_tables,
            shapes.slot_mapping,
            shapes.num_decode_rows,
        )

    def padded(self, num_seqs: int, max_blocks: int) -> StepArrays:
        """Decodes only: as many sequences and table columns as a captured graph has. Padding reads and writes no KV
        (no context, no slot).
        """
        more = num_seqs - self.seq_lens.size
        tables = np.zeros((num_seqs, max_blocks), dtype=np.int64)
        tables[: self.seq_lens.size, : self.block_tables.shape[1]] = self.block_tables
        return StepArrays(
            np.pad(self.input_tokens, (0, more)),
            np.pad(self.positions, (0, more)),
            np.arange(num_seqs),
            np.arange(num_seqs + 1),
            np.pad(self.seq_lens, (0, more)),
            tables,
            np.pad(self.slot_mapping, (0, more), constant_values=NO_SLOT),
            num_seqs,
        )


_NONE = np.zeros(0, dtype=np.int64)
NO_STEP = StepArrays(_NONE, _NONE, _NONE, np.zeros(1, dtype=np.int64), _NONE, np.zeros((0, 0), np.int64), _NONE, 0)


class CudaRunner:
    """Pure decode steps are padded to a captured size and replayed; mixed steps, and those too large, run eagerly.

    A size is captured by ``capture_all``, or when it is first needed. ``attention`` and ``capture`` stand for what a
    CUDA device brings, so that everything else can be run without one.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        cache: PagedKVCache,
        *,
        num_processors: int,
        graphs: GraphPlan | None,
        attention: AttentionOf,
        capture: Capture,
    ) -> None:
        device = torch.device(loaded.device)
        self._loaded = loaded
        self._cache = cache
        self._num_processors = num_processors
        self.graphs = graphs
        self._attention = attention
        self._capture = capture
        self._captured: dict[int, Captured] = {}
        self._eager = Staging(device)
        self._static = Staging(device)
        if graphs is not None:  # a captured graph reads from fixed addresses: nothing may grow later
            most = np.arange(graphs.sizes[-1])
            arrays, _ = self._host_arrays(self._padded(NO_STEP, most.size), static=True)
            self._static.reserve(Staging.starts([*arrays, most, most])[-1])

    def capture_all(self) -> None:
        """Capture every size now, the largest first, so that smaller ones fit into its memory."""
        for size in reversed(self.graphs.sizes if self.graphs else ()):
            self._graph(size, self._padded(NO_STEP, size))

    def graph_size(self, shapes: ForwardShapes) -> int | None:
        """The captured size that a batch is padded to; None if it runs eagerly."""
        num_seqs = shapes.seq_lens.size
        decodes_only = num_seqs == shapes.num_decode_rows == shapes.sample_rows.size
        if self.graphs is None or not decodes_only or int(shapes.seq_lens.max(initial=0)) > self.graphs.max_model_len:
            return None
        return padded_size(num_seqs, self.graphs.sizes)

    def forward(self, shapes: ForwardShapes, taken: Taken | None) -> Forward:
        """As ``Runner.forward``. The greedy choice is captured with the step; it is copied out of the graph's memory,
        since a later replay may come before the step that waits for these tokens.
        """
        arrays, size = StepArrays.of(shapes), self.graph_size(shapes)
        if size is None:
            return Forward(*self._run(self._send(self._eager, arrays, taken, static=False)))
        arrays = self._padded(arrays, size)
        graph = self._graph(size, arrays)
        self._send(self._static, arrays, taken, static=True)
        logits, greedy = graph.replay()
        num_samples = shapes.sample_rows.size
        return Forward(logits[:num_samples], greedy[:num_samples].clone())

    def _run(self, inputs: StepInputs) -> tuple[Tensor, Tensor]:
        """Logits of the sampled rows and their largest: under a hundredth of a step's bytes, even if nobody asks."""
        paged = self._attention(self._cache, inputs.metadata)
        logits = run_model(self._loaded.model, inputs.input_ids, inputs.positions, inputs.sample_rows, paged)
        return logits, logits.argmax(dim=-1)

    def _graph(self, size: int, arrays: StepArrays) -> Captured:
        if size not in self._captured:
            inputs = self._send(self._static, arrays, None, static=True)
            self._captured[size] = self._capture(lambda: self._run(inputs))
        return self._captured[size]

    def _padded(self, arrays: StepArrays, num_seqs: int) -> StepArrays:
        assert self.graphs is not None
        return arrays.padded(num_seqs, -(-self.graphs.max_model_len // self._cache.block_size))

    def _send(self, staging: Staging, arrays: StepArrays, taken: Taken | None, *, static: bool) -> StepInputs:
        host_arrays, packed = self._host_arrays(arrays, static)
        if taken is not None:  # behind the others, whose places must not depend on it
            host_arrays += [taken.rows, taken.places]
        ids, positions, sample_rows, on_device, *takes = staging.send(host_arrays)
        if taken is not None:
            rows, places = takes
            ids[rows] = taken.tokens[places].to(ids.dtype)
        return StepInputs(ids, positions, sample_rows, replace(packed, host=on_device).to(on_device.device))

    def _host_arrays(self, arrays: StepArrays, static: bool) -> tuple[list[IntArray], PackedBatch]:
        """What travels: three arrays of ours, and the kernels' own, packed."""
        packed = pack(
            arrays.query_start_loc,
            arrays.seq_lens,
            arrays.block_tables,
            arrays.slot_mapping,
            num_decodes=arrays.num_decode_rows,
            num_kv_heads=self._loaded.shape.num_kv_heads,
            num_processors=self._num_processors,
            windows=self._loaded.windows,
            static=static,
        )
        return [arrays.input_tokens, arrays.positions, arrays.sample_rows, packed.host.numpy()], packed

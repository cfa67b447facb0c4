"""Operator times composed into a profile that predictions can rest on, as a calibrated one."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from ....scheduler.graph_sizes import capture_sizes
from ..features import Features
from ..models import Constant, CostModel, HostTerm, Roofline
from ..profile import DeviceFacts, MemoryFacts, ModelFacts, ProfileError, roofline_of
from .lines import Line
from .operator_table import Attention, OperatorTable

CONSTANT_CONTEXT = 1024
NO_HOST = HostTerm()
HALF_WIDTH = 0.10
"""By how much a step may be longer or shorter than tables say: an assumption, the size by which two independent tables
of one operator typically differ (``benchmarks/operator_tables.py``: medians of 0.88 to 1.35)."""


@dataclass(frozen=True, slots=True)
class Operators:
    """Composed times of one model on one device at one tensor-parallel degree, in seconds."""

    dense: Line
    attention: Attention
    head: Line
    needs_spread: bool = False


@dataclass(frozen=True, slots=True)
class TableProfile:
    """Operator tables as a profile: what ``load_profile`` gives for a folder of tables."""

    source: str
    """The folder, as it was given."""
    layout: str
    tensor_parallel: int
    model: ModelFacts
    device: DeviceFacts
    block_size: int
    operators: Operators
    digest: str
    notes: tuple[str, ...]
    """What was missing, and what was done without it."""
    provenance: dict[str, str]
    enforce_eager: bool = False
    host: HostTerm = NO_HOST
    """0: a server that schedules asynchronously hides its host behind the device, and tables have no time for it."""
    attention_backend: str = "operator tables"
    memory: MemoryFacts | None = None
    """None: tables say nothing of where a GPU's memory went."""

    @property
    def cost_model(self) -> OperatorTable:
        """With the graph sizes of vLLM's defaults for a GPU (256 sequences, 2,048 tokens)."""
        return self.cost_model_for(256, 2048)

    def cost_model_for(self, max_num_seqs: int, max_num_batched_tokens: int) -> OperatorTable:
        """With the graph sizes that a server with these knobs captures."""
        parts = self.operators
        sizes = () if self.enforce_eager else capture_sizes(max_num_seqs, max_num_batched_tokens)
        return OperatorTable(parts.dense, parts.attention, parts.head, sizes, needs_spread=parts.needs_spread)

    @property
    def fast_and_slow(self) -> tuple[OperatorTable, OperatorTable]:
        """Both ends of an interval, assumed: tables carry no error of whole steps (see ``HALF_WIDTH``)."""
        fast, slow = (
            replace(self.cost_model, factor=factor) for factor in (1.0 / (1.0 + HALF_WIDTH), 1.0 + HALF_WIDTH)
        )
        return fast, slow

    @property
    def roofline(self) -> Roofline:
        """The roofline of this model on this device, split over the tensor-parallel group."""
        return roofline_of(self.model, self.device)

    def null(self, name: str) -> CostModel:
        """A null baseline. ``constant`` is the table's own 64 decodes at 1,024 tokens; ``roofline_affine`` is the
        roofline scaled to that step, since tables hold no measured iterations to fit.
        """
        step = Features(64, 64, 64 * CONSTANT_CONTEXT, 0, 0, 0.0, 64, 0, 64)
        seconds = self.cost_model.duration_s(step)
        if name == "constant":
            return Constant(seconds)
        bare = self.roofline
        if name == "roofline":
            return bare
        if name != "roofline_affine":
            raise ProfileError(f"There is no null baseline {name!r}: constant, roofline and roofline_affine are known.")
        alpha = seconds / bare.duration_s(step)
        return replace(bare, alpha=alpha, name="roofline_affine")

    def check(self, *, model: str, dtype: str, device: str, threads: int | None, block_size: int) -> None:
        """Raise ``ProfileError`` unless the tables are of this model and dtype; they have no threads, and their times
        do not depend on the block size.
        """
        for what, wanted, own in (("model", model, self.model.name), ("dtype", dtype, self.model.dtype)):
            if wanted != own:
                raise ProfileError(
                    f"The tables in {self.source} are of {what} {own!r}, but the scenario asks for {what} {wanted!r}."
                )

    def hash(self) -> str:
        """A name for exactly these times and this model."""
        return self.digest

    def save(self, path: str | Path) -> None:
        """Write where the tables are, so that ``load_profile(path)`` finds the same ones. Raises ``ProfileError``."""
        pointer = {
            "format": "tables",
            "folder": str(Path(self.source).resolve()),
            "tensor_parallel": self.tensor_parallel,
            "model": self.model.name,
            "enforce_eager": self.enforce_eager,
            "hash": self.digest,
        }
        try:
            Path(path).write_text(json.dumps(pointer, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ProfileError(f"The profile {path} cannot be written ({error.strerror or error}).") from error


def extrapolated(profile: TableProfile, model: OperatorTable, features: Features) -> str:
    """One line on how much of a prediction lies beyond the tables."""
    beyond = model.extrapolates(features)
    if not beyond.any():
        return "every iteration lies within the measured tables"
    share = 100 * beyond.mean()
    return f"{share:.1f} % of the iterations lie beyond the tables of {profile.source} and are extrapolated"

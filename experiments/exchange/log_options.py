"""From the words of a command line to a calibration from somebody's log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...sim.facts.device import find_device
from ...sim.facts.library import load_model_config
from ..calibrate_from import Measured
from ..options import parse_sets

_FIELDS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_gpu_blocks")


def measured_on(model: str, gpu: str, dtype: str | None, block_size: int) -> Measured:
    """The facts of a server's model and device by their names. Raises ``FactsError``."""
    config = load_model_config(model)
    facts = config.facts()
    if dtype is not None:
        facts = facts.model_copy(update={"dtype": dtype})
    return Measured(facts, find_device(gpu).facts(facts.dtype), block_size)


def log_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario fields under which a log is replayed."""
    given = {name: options[name] for name in _FIELDS if options[name] is not None}
    return given | parse_sets(options["fields"] or ())

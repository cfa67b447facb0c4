"""The knobs a recorded run was served with: from what it says, from ``--set``, else from its version's defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..sim.cost.tables.composed import TableProfile
from .errors import ExperimentError
from .grid import DEFAULTS
from .recorded import RecordedRun, engine_argument
from .scenario import Scenario, make_scenario

ALIASES = {
    "max_num_seqs": ("max_num_seqs",),
    "max_num_batched_tokens": ("max_num_batched_tokens",),
    "max_model_len": ("max_model_len",),
    "block_size": ("block_size",),
    "num_gpu_blocks": ("num_gpu_blocks", "num_gpu_blocks_override"),
    "enable_chunked_prefill": ("enable_chunked_prefill",),
    "enable_prefix_caching": ("enable_prefix_caching",),
    "async_scheduling": ("async_scheduling",),
    "scheduler_reserve_full_isl": ("scheduler_reserve_full_isl",),
    "long_prefill_token_threshold": ("long_prefill_token_threshold",),
    "watermark": ("watermark",),
}
TABLE_KEYS = ("model", "tensor_parallel_size", "num_hidden_layers", "all_reduce", "enforce_eager")
"""``--set`` keys that choose or complete the tables, not the scheduler."""
HOST_KEYS = ("host_fixed_ms", "host_per_seq_ms")
KV_TOKENS = ("kv_cache_tokens", "kv_cache_size_tokens", "num_kv_cache_tokens")
ASYNC_SINCE = (0, 14)
"""vLLM schedules asynchronously unless told otherwise since this version."""
V1_SINCE = (0, 8)
"""vLLM's V1 engine: chunked prefill and prefix caching on unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Known:
    """A field, its value, and where it comes from."""

    name: str
    value: Any
    origin: str


@dataclass(slots=True)
class Knobs:
    """Fields of a scenario as they become known; the first to say something is believed."""

    known: dict[str, Known] = field(default_factory=dict)

    def say(self, name: str, value: Any, origin: str) -> None:
        """``value`` is so, by ``origin``, unless somebody said something else before."""
        if value is not None:
            self.known.setdefault(name, Known(name, value, origin))

    def get(self, name: str) -> Any:
        """The value, or None."""
        return self.known[name].value if name in self.known else None


def engine_args(run: RecordedRun, profile: TableProfile, sets: Mapping[str, Any]) -> tuple[Scenario, list[Known]]:
    """The scenario of a recorded run and how each field was known. Raises ``ExperimentError``."""
    knobs = Knobs()
    for name, value in sets.items():
        if name not in TABLE_KEYS + HOST_KEYS:
            knobs.say(name, value, "--set")
    for name, aliases in ALIASES.items():
        knobs.say(name, engine_argument(run.meta, *aliases), "the run's arguments")
    version = vllm_version(engine_argument(run.meta, "vllm_version", "version"))
    knobs.say("model", profile.model.name, "the profile")
    knobs.say("dtype", profile.model.dtype, "the profile")
    knobs.say("device", "cuda", "the profile")
    _defaults(knobs, version, profile)
    _pool(knobs, run)
    fields = {known.name: known.value for known in knobs.known.values()}
    scenario = make_scenario(**fields)
    scenario.config(scenario.num_gpu_blocks or 2)
    return scenario, list(knobs.known.values())


def vllm_version(text: Any) -> tuple[int, int] | None:
    """``0.19.0`` as (0, 19); None if that is no version."""
    match = re.match(r"v?(\d+)\.(\d+)", text) if isinstance(text, str) else None
    return (int(match[1]), int(match[2])) if match else None


def _defaults(knobs: Knobs, version: tuple[int, int] | None, profile: TableProfile) -> None:
    said = f"the default of vLLM {version[0]}.{version[1]}" if version else "vLLM's default (the run says no version)"
    asynchronous = version is None or version >= ASYNC_SINCE
    first_v1 = version is None or version >= V1_SINCE
    knobs.say("async_scheduling", asynchronous, f"{said}: {'on' if asynchronous else 'off before 0.14'}")
    knobs.say("enable_prefix_caching", first_v1, f"{said}: {'on' if first_v1 else 'off before 0.8'}")
    knobs.say("enable_chunked_prefill", first_v1, f"{said}: {'on' if first_v1 else 'off before 0.8'}")
    knobs.say(
        "scheduler_reserve_full_isl",
        True,
        "the rule of vLLM 0.33 (earlier V1 versions checked the next chunk only; it matters once KV blocks run out)",
    )
    knobs.say("block_size", profile.block_size, "the profile")
    knobs.say("max_model_len", profile.model.max_model_len, f"the context of {profile.model.name}")
    seqs, tokens = DEFAULTS[_device_class(profile)]["server"]
    knobs.say("max_num_seqs", seqs, "vLLM 0.33's default for a server on such a GPU")
    if knobs.get("enable_chunked_prefill") is False and isinstance(knobs.get("max_model_len"), int):
        whole = max(tokens, knobs.get("max_model_len"))
        knobs.say("max_num_batched_tokens", whole, "without chunked prefill at least max_model_len, as vLLM takes it")
    knobs.say("max_num_batched_tokens", tokens, "vLLM 0.33's default for a server on such a GPU")


def _device_class(profile: TableProfile) -> str:
    from ..sim.facts.device import find_device
    from ..sim.facts.errors import FactsError

    try:
        found = find_device(profile.device.name).device_class
    except FactsError:
        return "gpu"
    return found if found in DEFAULTS else "large_gpu"


def _pool(knobs: Knobs, run: RecordedRun) -> None:
    """KV blocks are an input. A run that does not state them gets a pool that cannot bind, and that is said."""
    block_size = knobs.get("block_size")
    if not isinstance(block_size, int) or block_size < 1:
        raise ExperimentError(f"block_size is {block_size!r}, but it must be a whole number of at least 1.")
    if knobs.get("kv_memory_bytes") is not None:
        return
    tokens = engine_argument(run.meta, *KV_TOKENS)
    if isinstance(tokens, int | float) and tokens >= block_size:
        knobs.say(
            "num_gpu_blocks", int(tokens) // block_size + 1, "the run's KV tokens / block_size, and the null block"
        )
    seqs = knobs.get("max_num_seqs")
    if not isinstance(seqs, int) or seqs < 1:
        raise ExperimentError(f"max_num_seqs is {seqs!r}, but it must be a whole number of at least 1.")
    longest = int((run.prompt_tokens + run.output_tokens).max())
    enough = (min(seqs, len(run.prompt_tokens)) + 1) * -(-(longest + 1) // block_size) + 1
    knobs.say(
        "num_gpu_blocks",
        enough,
        "not stated by the run: a pool that cannot bind (if the server's did, give --set num_gpu_blocks=N)",
    )

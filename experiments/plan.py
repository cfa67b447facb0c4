"""Capacity before time: does a cell fit its GPU, how much does it hold, and what to change if it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..sim.facts.device import DeviceSpec, find_device
from ..sim.facts.memory import GPU_MEMORY_UTILIZATION, VLLM_VERSION, Knobs, MemoryPlan, max_concurrency
from ..sim.facts.model import ModelConfig
from .ask import Ask, configured
from .errors import ExperimentError
from .fixes import problems
from .grid import DEFAULTS

ENTRIES = ("server", "llm_class")
"""Which of vLLM's defaults: those of its API server or of its ``LLM`` class."""
MAP_SEQS = (64, 256, 1024)
MAP_TOKENS = (2048, 8192, 16384, 32768, 65536)


class Pair(NamedTuple):
    """Both knobs."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """An answer to ``Ask``."""

    ask: Ask
    memory: MemoryPlan
    num_gpu_blocks: int
    max_concurrency: float
    """Of requests of ``max_model_len`` tokens, as vLLM prints it."""
    problems: tuple[str, ...]
    """One sentence each: what is wrong and what to change; none if a server would start."""
    notes: tuple[str, ...]
    defaults: dict[str, Pair]
    """What vLLM takes if neither knob is given, by entry point."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def feasible(self) -> bool:
        """Whether a server would start."""
        return not self.problems

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.num_gpu_blocks * self.ask.knobs.block_size

    @property
    def practical_concurrency(self) -> int | None:
        """Requests of the given prompt and output that are resident at once at their full length; None if no lengths
        were given. The null block holds none.
        """
        if self.prompt_tokens is None or self.output_tokens is None:
            return None
        each = -(-(self.prompt_tokens + self.output_tokens) // self.ask.knobs.block_size)
        return min(max(self.num_gpu_blocks - 1, 0) // each, self.ask.knobs.max_num_seqs)

    def blocks_by_cell(self) -> dict[Pair, int]:
        """KV blocks over a small grid of both knobs: 0 where the cell does not fit."""
        cells = (Pair(seqs, tokens) for seqs in MAP_SEQS for tokens in MAP_TOKENS)
        asks = {cell: self.ask.with_knobs(**cell._asdict()) for cell in cells}
        return {cell: ask.memory.num_gpu_blocks if ask.fits else 0 for cell, ask in asks.items()}


def plan(
    model: str | ModelConfig,
    gpu: str | DeviceSpec,
    *,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None,
    tensor_parallel_size: int = 1,
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
    kv_cache_dtype: str = "auto",
    quantization: str | None = None,
    block_size: int = 16,
    enable_chunked_prefill: bool = True,
    enforce_eager: bool = False,
    vllm_version: str = VLLM_VERSION,
    num_gpu_blocks: int | None = None,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
    entry: str = "server",
) -> Plan:
    """Plan one cell. Knobs that are not given are vLLM's defaults for the device and entry point, and the model's own
    context length. Raises ``BatchTwinError`` for what is unknown or cannot be; what merely does not fit is in
    ``Plan.problems``.
    """
    config, device = configured(model, quantization), find_device(gpu) if isinstance(gpu, str) else gpu
    length = config.max_model_len if max_model_len is None else max_model_len
    _check_positive(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=length,
        block_size=block_size,
        num_gpu_blocks=num_gpu_blocks,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )
    if (prompt_tokens is None) != (output_tokens is None):
        raise ExperimentError("A practical concurrency needs both prompt_tokens and output_tokens: give the other too.")
    cell = default_cell(device, entry, length, enable_chunked_prefill, max_num_seqs, max_num_batched_tokens)
    knobs = Knobs(
        *cell,
        tensor_parallel_size=tensor_parallel_size,
        gpu_memory_utilization=gpu_memory_utilization,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        enforce_eager=enforce_eager,
        vllm_version=vllm_version,
    )
    ask = Ask(config, device, knobs, length, enable_chunked_prefill, num_gpu_blocks)
    blocks = ask.blocks
    return Plan(
        ask=ask,
        memory=ask.memory,
        num_gpu_blocks=blocks,
        max_concurrency=max_concurrency(blocks, length, block_size),
        problems=tuple(problems(ask)),
        notes=tuple(_notes(ask)),
        defaults={name: Pair(*knobs) for name, knobs in DEFAULTS[device.device_class].items()},
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )


def default_cell(
    device: DeviceSpec,
    entry: str,
    max_model_len: int,
    enable_chunked_prefill: bool = True,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> Pair:
    """Both knobs, where they are not given vLLM 0.33's for ``device`` and the entry point: without chunked prefill the
    budget rises to the model length (so that the pool shrinks as the model length grows); it is never more than all
    sequences could fill, and there are never more sequences than tokens.
    """
    seqs, tokens = DEFAULTS[device.device_class][entry]
    if max_num_batched_tokens is None:
        tokens = tokens if enable_chunked_prefill else max(tokens, max_model_len)
        tokens = min(tokens, (max_num_seqs or seqs) * max_model_len)
    else:
        tokens = max_num_batched_tokens
    return Pair(min(seqs, tokens) if max_num_seqs is None else max_num_seqs, tokens)


def _notes(ask: Ask) -> Iterator[str]:
    if ask.model.sliding_window is not None:
        yield (
            f"{ask.model.name} has a sliding window of {ask.model.sliding_window:,} tokens in some or all layers: KV "
            f"is counted as if every layer kept all tokens, an upper bound."
        )
    if ask.model.dtype == "bfloat16" and ask.device.bf16_flops_per_s is None:
        yield f"A {ask.device.name} has no bfloat16: serve the model in float16 (--dtype half), of the same size."
    if ask.knobs.tensor_parallel_size > 1:
        yield "Bytes are of one GPU; what NCCL takes is that of H100s with NVLink, other links take less."


def _check_positive(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise ExperimentError(f"{name} is {value}, but it must be at least 1.")

"""Capacity before time: does a cell fit its GPU, how much does it hold, and what to change if it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from ..scheduler.config import SchedulerConfig
from ..scheduler.errors import ConfigError
from ..sim.facts.device import DeviceSpec, find_device
from ..sim.facts.hf_config import quantization_of
from ..sim.facts.library import load_model_config
from ..sim.facts.memory import (
    GIB,
    GPU_MEMORY_UTILIZATION,
    VLLM_VERSION,
    Knobs,
    MemoryPlan,
    max_concurrency,
    plan_memory,
)
from ..sim.facts.model import ModelConfig
from .errors import ExperimentError
from .grid import DEFAULTS

MAX_UTILIZATION = 0.98
"""The most that is suggested: the rest is the driver's and fragmentation's."""
ENTRIES = ("server", "llm_class")
"""Which of vLLM's defaults: those of its API server or of its ``LLM`` class."""
MAP_SEQS = (64, 256, 1024)
MAP_TOKENS = (2048, 8192, 16384, 32768, 65536)


class Cell(NamedTuple):
    """Both knobs."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A model on so many GPUs of a kind, and its knobs."""

    model: ModelConfig
    device: DeviceSpec
    knobs: Knobs
    max_model_len: int
    enable_chunked_prefill: bool = True
    num_gpu_blocks: int | None = None
    """Given instead of derived."""

    @property
    def memory(self) -> MemoryPlan:
        """Where a GPU's memory goes."""
        return plan_memory(self.model, self.device, self.knobs)

    @property
    def blocks(self) -> int:
        """KV blocks, given or derived."""
        return self.memory.num_gpu_blocks if self.num_gpu_blocks is None else self.num_gpu_blocks

    @property
    def fits(self) -> bool:
        """Whether a server would start: one request of ``max_model_len`` tokens has room."""
        return self.blocks >= max(2, -(-self.max_model_len // self.knobs.block_size))

    def with_knobs(self, **changes: object) -> Ask:
        """The same with some knobs changed."""
        return replace(self, knobs=replace(self.knobs, **changes))  # type: ignore[arg-type]


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
    defaults: dict[str, Cell]
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

    def blocks_by_cell(self) -> dict[Cell, int]:
        """KV blocks over a small grid of both knobs: 0 where the cell does not fit."""
        cells = (Cell(seqs, tokens) for seqs in MAP_SEQS for tokens in MAP_TOKENS)
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
        defaults={name: Cell(*knobs) for name, knobs in DEFAULTS[device.device_class].items()},
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )


@lru_cache(maxsize=32)
def configured(model: str | ModelConfig, quantization: str | None = None) -> ModelConfig:
    """A model's shape as a server would hold it: float32 checkpoints are served in 16 bits, and ``quantization``
    replaces what the config says. Raises ``FactsError``.
    """
    config = load_model_config(model) if isinstance(model, str) else model
    if config.dtype == "float32":
        config = replace(config, dtype="bfloat16")
    return config if quantization is None else replace(config, quantization=quantization_of(quantization))


def default_cell(
    device: DeviceSpec,
    entry: str,
    max_model_len: int,
    enable_chunked_prefill: bool = True,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> Cell:
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
    return Cell(min(seqs, tokens) if max_num_seqs is None else max_num_seqs, tokens)


def problems(ask: Ask) -> Iterator[str]:
    """Every reason why a server would not start, in a sentence that says what to change and by how much."""
    try:
        SchedulerConfig(
            max_num_seqs=ask.knobs.max_num_seqs,
            max_num_batched_tokens=ask.knobs.max_num_batched_tokens,
            max_model_len=ask.max_model_len,
            block_size=ask.knobs.block_size,
            enable_chunked_prefill=ask.enable_chunked_prefill,
        )
    except ConfigError as error:
        yield str(error)
    if ask.max_model_len > ask.model.max_model_len:
        yield (
            f"max_model_len is {ask.max_model_len:,}, but {ask.model.name} has a context of "
            f"{ask.model.max_model_len:,} tokens: lower max_model_len."
        )
    if not ask.fits:
        yield _does_not_fit(ask)


def _does_not_fit(ask: Ask) -> str:
    memory, blocks = ask.memory, ask.blocks
    fixes = ", or ".join(_fixes(ask)) or "take a GPU with more memory"
    if ask.num_gpu_blocks is None and blocks < 2:
        peak = "activations" if memory.activation_bytes >= memory.sampler_bytes else "the sampler"
        where = (
            f"{ask.knobs.max_num_batched_tokens:,} tokens"
            if peak == "activations"
            else f"{ask.knobs.max_num_seqs:,} sequences"
        )
        return (
            f"Nothing is left for KV blocks: of {memory.usable_bytes / GIB:.1f} GiB "
            f"({memory.total_bytes / GIB:.1f} × {ask.knobs.gpu_memory_utilization:g}) weights take "
            f"{memory.weight_bytes / GIB:.1f}, {peak} at {where} {memory.peak_bytes / GIB:.1f}, graphs and context "
            f"{(memory.cuda_graph_bytes + memory.non_torch_bytes) / GIB:.1f}: {fixes}."
        )
    needed = -(-ask.max_model_len // ask.knobs.block_size)
    return (
        f"One request of max_model_len ({ask.max_model_len:,} tokens) needs {needed:,} KV blocks, but {blocks:,} fit "
        f"({blocks * ask.knobs.block_size:,} tokens): {fixes}."
    )


def _fixes(ask: Ask) -> Iterator[str]:
    """Single changes after which the cell fits, the cheapest first."""
    if ask.blocks >= 2:
        yield f"lower max_model_len to {ask.blocks * ask.knobs.block_size:,}"
    if ask.num_gpu_blocks is not None:
        yield f"raise num_gpu_blocks to {-(-ask.max_model_len // ask.knobs.block_size):,}"
        return
    for name, lowest in (("max_num_batched_tokens", ask.knobs.max_num_seqs), ("max_num_seqs", 1)):
        most = _most(lambda value, name=name: ask.with_knobs(**{name: value}).fits, lowest, getattr(ask.knobs, name))  # type: ignore[misc]
        if most is not None and (name == "max_num_seqs" or ask.enable_chunked_prefill or most >= ask.max_model_len):
            yield f"lower {name} to {most:,}"
    for percent in range(int(100 * ask.knobs.gpu_memory_utilization) + 1, int(100 * MAX_UTILIZATION) + 1):
        if ask.with_knobs(gpu_memory_utilization=percent / 100).fits:
            yield f"raise gpu_memory_utilization to {percent / 100:g}"
            break
    if ask.knobs.kv_cache_dtype == "auto" and ask.with_knobs(kv_cache_dtype="fp8").fits:
        yield "set kv_cache_dtype to fp8"
    yield from _bigger_fixes(ask)


def _bigger_fixes(ask: Ask) -> Iterator[str]:
    """More GPUs, or smaller weights."""
    for degree in (2, 4, 8, 16):
        possible = degree > ask.knobs.tensor_parallel_size and ask.model.num_q_heads % degree == 0
        if possible and ask.with_knobs(tensor_parallel_size=degree).fits:
            yield f"raise tensor_parallel_size to {degree}"
            break
    if ask.model.quantization is None:
        for method in ("fp8", "awq"):
            if replace(ask, model=replace(ask.model, quantization=quantization_of(method))).fits:
                yield f"quantise the weights ({method})"
                break


def _most(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest value in [low, high) that fits, for what fits below some value; None if none does."""
    if low >= high or not fits(low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


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


def blocks_of(ask: Ask) -> int:
    """KV blocks of a cell, the null block included. Raises ``ExperimentError`` with what to change if a server would
    not start.
    """
    reason = next(problems(ask), None)
    if reason is not None:
        raise ExperimentError(reason)
    return ask.blocks

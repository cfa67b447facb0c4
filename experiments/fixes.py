"""What keeps a server from starting, and what to change by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..scheduler.config import SchedulerConfig
from ..scheduler.errors import ConfigError
from ..sim.facts.hf_config import quantization_of
from ..sim.facts.memory import GIB
from .ask import Ask
from .errors import ExperimentError

MAX_UTILIZATION = 0.98
"""The most that is suggested: the rest is the driver's and fragmentation's."""


def blocks_of(ask: Ask) -> int:
    """KV blocks of a cell, the null block included. Raises ``ExperimentError`` with what to change if a server would
    not start.
    """
    reason = next(problems(ask), None)
    if reason is not None:
        raise ExperimentError(reason)
    return ask.blocks


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
    yield from _both_knobs(ask)
    if ask.knobs.kv_cache_dtype == "auto" and ask.with_knobs(kv_cache_dtype="fp8").fits:
        yield "set kv_cache_dtype to fp8"
    yield from _bigger_fixes(ask)


def _both_knobs(ask: Ask) -> Iterator[str]:
    """Both knobs, halved together until it fits, where neither alone does: of activations and sampler the larger
    counts, so that lowering the knob of one leaves the other's.
    """
    seqs, tokens = ask.knobs.max_num_seqs, ask.knobs.max_num_batched_tokens
    lowest = 1 if ask.enable_chunked_prefill else ask.max_model_len
    alone = (ask.with_knobs(max_num_seqs=1), ask.with_knobs(max_num_batched_tokens=max(seqs, lowest)))
    if any(one.fits for one in alone):
        return
    while seqs > 1 and tokens > lowest:
        seqs, tokens = max(1, seqs // 2), max(lowest, tokens // 2)
        if ask.with_knobs(max_num_seqs=seqs, max_num_batched_tokens=tokens).fits:
            yield f"lower max_num_seqs to {seqs:,} and max_num_batched_tokens to {tokens:,}"
            return


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

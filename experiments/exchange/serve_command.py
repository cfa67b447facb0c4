"""The ``vllm serve`` command that sets a server up as a cell is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ..grid import CellResult
from ..scenario import Scenario

UNSERVABLE = ("tiny-", "llama-3.1-8b-shaped")
"""How our presets begin: random weights that exist nowhere, so vLLM cannot load them."""
HUB_IDS = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""Where vLLM finds the checkpoints that we take from a package (there as they were before quantisation)."""
POLICIES = {"vllm_v1": "fcfs", "priority": "priority"}
"""Our policies that vLLM has, by what it calls them."""


def serve_command(scenario: Scenario, result: CellResult) -> str:
    """One line for a shell: the command, or a comment (``# …``) that says why vLLM cannot do it, with the flags that
    carry over to a model or a policy that it has.
    """
    flags = shlex.join(_flags(scenario.with_(**result.cell._asdict()), result.num_gpu_blocks))
    reasons = list(_reasons(scenario, result))
    if reasons:
        return f"# vLLM cannot serve this: {'; '.join(reasons)}. The flags for one that it can: {flags}"
    return f"vllm serve {shlex.quote(HUB_IDS.get(scenario.model, scenario.model))} {flags}"


def _reasons(scenario: Scenario, result: CellResult) -> Iterator[str]:
    if scenario.model.startswith(UNSERVABLE) and "/" not in scenario.model:
        yield f"{scenario.model} is a preset of random weights"
    if result.cell.policy not in POLICIES:
        yield f"it has no policy {result.cell.policy}"
    if scenario.preemption_mode == "swap":
        yield "it recomputes what it preempts, and does not swap"
    if scenario.victim is not None:
        yield "who is preempted cannot be chosen"


def _flags(s: Scenario, num_gpu_blocks: int) -> Iterator[str]:
    """Knobs always, switches whose default in vLLM is not the scenario's, thresholds where set."""
    yield from ("--max-num-seqs", str(s.max_num_seqs))
    yield from ("--max-num-batched-tokens", str(s.max_num_batched_tokens))
    yield from ("--max-model-len", str(s.max_model_len), "--dtype", s.dtype, "--block-size", str(s.block_size))
    if num_gpu_blocks:
        yield from ("--num-gpu-blocks-override", str(num_gpu_blocks))
    for name, is_on, by_default in (
        ("enable-chunked-prefill", s.enable_chunked_prefill, True),
        ("enable-prefix-caching", s.enable_prefix_caching, True),
        ("async-scheduling", s.async_scheduling, True),
        ("scheduler-reserve-full-isl", s.scheduler_reserve_full_isl, True),
        ("enforce-eager", s.enforce_eager, False),
        ("long-prefill-token-threshold-adaptive", s.long_prefill_token_threshold_adaptive, False),
    ):
        if is_on != by_default:
            yield f"--{name}" if is_on else f"--no-{name}"
    for name, value, default in (
        ("tensor-parallel-size", s.tensor_parallel_size, 1),
        ("kv-cache-dtype", s.kv_cache_dtype, "auto"),
        ("quantization", s.quantization, None),
        ("max-num-active-seqs", s.max_num_active_seqs, None),
        ("long-prefill-token-threshold", s.long_prefill_token_threshold, 0),
        ("prefill-schedule-interval", s.prefill_schedule_interval, 1),
        ("watermark", s.watermark, 0.0),
        ("scheduling-policy", POLICIES.get(s.policy, "fcfs"), "fcfs"),
    ):
        if value != default:
            yield from (f"--{name}", str(value))
    if s.num_replicas > 1:
        yield from ("--data-parallel-size", str(s.num_replicas))

"""The knobs, under vLLM's names, checked as vLLM checks them at start-up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from .errors import ConfigError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What a scheduler may do. Defaults are vLLM 0.33's bare ``SchedulerConfig`` and ``CacheConfig``, but for prefix
    caching and asynchronous scheduling, which are on in a vLLM server and off here unless asked for.

    ``num_gpu_blocks`` counts block 0, the null block, which is never handed out, as vLLM does.
    """

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    num_gpu_blocks: int = 4096
    block_size: int = 16
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    async_scheduling: bool = False
    scheduler_reserve_full_isl: bool = True
    max_num_active_seqs: int | None = None
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    prefill_schedule_interval: int = 1
    watermark: float = 0.0
    preemption_mode: Literal["recompute", "swap"] = "recompute"
    num_cpu_blocks: int = 0
    """Host blocks for swapping; a victim that does not fit them is computed anew."""
    victim: Literal["last", "lowest_priority", "cheapest"] | None = None
    """Who is preempted: the end of the running list, the worst (priority, arrival), or who has least to compute
    again. None leaves it to the policy."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, but it must be at least 1.")
        if self.num_gpu_blocks < 2:
            raise ConfigError(
                f"num_gpu_blocks is {self.num_gpu_blocks}, but at least 2 are needed: block 0 is never handed out."
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than max_num_seqs "
                f"({self.max_num_seqs}), but every running sequence needs one token a step: "
                f"raise max_num_batched_tokens or lower max_num_seqs."
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"Without chunked prefill a prompt must fit one step, but max_num_batched_tokens "
                f"({self.max_num_batched_tokens}) is less than max_model_len ({self.max_model_len}): raise "
                f"max_num_batched_tokens, lower max_model_len, or enable chunked prefill."
            )
        self._check_admission()

    def _check_admission(self) -> None:
        active = self.max_num_active_seqs
        if active is not None and not 1 <= active <= self.max_num_seqs:
            raise ConfigError(
                f"max_num_active_seqs is {active}, but it must lie between 1 and max_num_seqs ({self.max_num_seqs})."
            )
        if not 0 <= self.long_prefill_token_threshold <= self.max_model_len:
            raise ConfigError(
                f"long_prefill_token_threshold is {self.long_prefill_token_threshold}, but it must lie between 0 (no "
                f"threshold) and max_model_len ({self.max_model_len})."
            )
        if self.prefill_schedule_interval < 1:
            raise ConfigError(
                f"prefill_schedule_interval is {self.prefill_schedule_interval}, but it must be at least 1."
            )
        if self.preemption_mode == "swap" and self.num_cpu_blocks < 1:
            raise ConfigError("preemption_mode is swap, but num_cpu_blocks is 0: give it host blocks to swap to.")
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(
                f"watermark is {self.watermark}, but it must be a share of the blocks, from 0 to below 1."
            )

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that can hold tokens: all but the null block."""
        return self.num_gpu_blocks - 1

    @property
    def admission_limit_seqs(self) -> int:
        """Most resident sequences for admission."""
        return self.max_num_seqs if self.max_num_active_seqs is None else self.max_num_active_seqs

    def with_(self, **changes: Any) -> SchedulerConfig:
        """A copy with some knobs changed, checked again."""
        return replace(self, **changes)

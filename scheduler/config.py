"""The knobs, under vLLM's names, checked as vLLM checks them at start-up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .errors import ConfigError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What a scheduler may do. Defaults are vLLM 0.33's bare ``SchedulerConfig`` and ``CacheConfig``.

    ``num_gpu_blocks`` counts block 0, the null block, which is never handed out, as vLLM does.
    """

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    num_gpu_blocks: int = 4096
    block_size: int = 16
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    max_num_active_seqs: int | None = None

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
        self._check_active_seqs()

    def _check_active_seqs(self) -> None:
        active = self.max_num_active_seqs
        if active is not None and not 1 <= active <= self.max_num_seqs:
            raise ConfigError(
                f"max_num_active_seqs is {active}, but it must lie between 1 and max_num_seqs ({self.max_num_seqs})."
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

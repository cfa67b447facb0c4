"""Worked examples of continuous batching: small enough to be followed number by number, and really scheduled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..scheduler.batch import Batch
from ..scheduler.blocks import BlockPool
from ..scheduler.config import SchedulerConfig
from ..scheduler.request import Request
from ..scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Example:
    """Some requests on one scheduler, and what is to be seen in their iterations."""

    name: str
    title: str
    story: str
    """One or two sentences."""
    config: SchedulerConfig
    start: int
    """The iteration to look at first."""
    _play: Callable[[SchedulerConfig], list[Batch]]

    def batches(self) -> list[Batch]:
        """Every iteration, from the first request to the last token."""
        return self._play(self.config)


@lru_cache
def examples() -> dict[str, Example]:
    """The built-in examples by name."""
    return {example.name: example for example in (_MIXED, _PADDING)}


def _play_padding(config: SchedulerConfig) -> list[Batch]:
    scheduler = Scheduler(config)
    for name, tokens in zip("ABCD", (16, 128, 1024, 2048), strict=True):
        scheduler.add(Request(name, tokens, 4, index=ord(name) - ord("A")))
    return _to_the_end(scheduler)


def _play_mixed(config: SchedulerConfig) -> list[Batch]:
    scheduler = Scheduler(config)
    _hand_out_first(scheduler, (10, 21, 7, 5, 18, 33))
    scheduler.add(Request("B", 7, 3, index=1))
    scheduler.add(Request("C", 2, 9, index=2))
    prefilled = scheduler.schedule()
    scheduler.complete(prefilled)
    scheduler.add(Request("A", 5, 9, index=0))
    return [prefilled, *_to_the_end(scheduler)]


def _hand_out_first(scheduler: Scheduler, blocks: Sequence[int]) -> None:
    """Have the free KV blocks handed out in this order, before all others: a pool that has been in use for a while."""
    pool = scheduler.pool
    assert isinstance(pool, BlockPool)  # a scheduler names its blocks unless told not to
    taken = pool.take(pool.num_free)
    pool.give_back([block for block in reversed(taken) if block not in blocks])
    pool.give_back(list(reversed(blocks)))


def _to_the_end(scheduler: Scheduler) -> list[Batch]:
    played: list[Batch] = []
    while scheduler.has_work:
        played.append(scheduler.schedule())
        scheduler.complete(played[-1])
    return played


_MIXED = Example(
    name="one-mixed-iteration",
    title="One mixed iteration: B, C and A",
    story=(
        "B and C have been prefilled and decode, A has just arrived with five prompt tokens. One forward takes all "
        "three: seven tokens in a row, without padding; only attention asks whose they are."
    ),
    config=SchedulerConfig(
        max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, num_gpu_blocks=40, block_size=4
    ),
    start=1,
    _play=_play_mixed,
)
_PADDING = Example(
    name="what-padding-costs",
    title="What padding costs: prompts of 16 to 2,048",
    story=(
        "Four prompts of 16, 128, 1,024 and 2,048 tokens. Static batching computes a rectangle of 4 × 2,048 slots for "
        "3,216 tokens; flattened, the forward computes 3,216."
    ),
    config=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8192, max_model_len=8192, num_gpu_blocks=512),
    start=0,
    _play=_play_padding,
)

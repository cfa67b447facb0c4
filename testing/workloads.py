"""Small random workloads over every knob: pools too small for all, shared prefixes, priorities, aborts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar, get_args

from ..scheduler.config import SchedulerConfig
from ..scheduler.request import Segment

Pick = Callable[[int, int], int]
"""A number from … to …, both included: the only source of chance, so that any generator can drive it."""
Room = Literal["tight", "whole", "roomy"]
"""``whole``: any prompt fits one step; ``roomy``: so does a rectangle of the longest, and its blocks do."""
ROOMS: tuple[Room, ...] = get_args(Room)
MAX_REQUESTS = 12
_T = TypeVar("_T")


class Ask(NamedTuple):
    """What a client asks for."""

    arrival_s: float
    prompt: tuple[Segment, ...]
    output_len: int
    other_output_len: int
    """Another truth, which a server could not tell from the first."""
    max_tokens: int | None
    predicted_output_len: int
    priority: int
    client_id: str

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(length for _, _, length in self.prompt)


@dataclass(frozen=True, slots=True)
class Workload:
    """Knobs and what clients do. A request's id is its place in ``asks``."""

    config: SchedulerConfig
    asks: tuple[Ask, ...]
    """In order of arrival."""
    aborts: tuple[tuple[float, int], ...]
    """(time in s, request)."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all prompts and outputs."""
        return sum(ask.num_prompt_tokens + max(ask.output_len, ask.other_output_len) for ask in self.asks)


def output_limit(config: SchedulerConfig, num_prompt_tokens: int, output_len: int) -> int:
    """Tokens a request produces: what it asks for or what the model's length leaves."""
    return min(output_len, config.max_model_len - num_prompt_tokens)


def is_servable(config: SchedulerConfig, num_prompt_tokens: int, output_len: int) -> bool:
    """Whether the request fits the model's length and the pool at all: the last token needs no block of its own."""
    limit = output_limit(config, num_prompt_tokens, output_len)
    return limit > 0 and num_prompt_tokens + limit - 1 <= config.num_usable_blocks * config.block_size


def draw_workload(pick: Pick, room: Room = "tight") -> Workload:
    """A workload whose every choice is ``pick``'s."""
    config = _draw_config(pick, room)
    arrivals_s = sorted(pick(0, 40) / 2 for _ in range(pick(1, MAX_REQUESTS)))
    asks: list[Ask] = []
    for arrival_s in arrivals_s:
        asks.append(_draw_ask(pick, config, arrival_s, asks))
    aborts = [(pick(0, 80) / 4, pick(0, len(asks) - 1)) for _ in range(max(0, pick(-2, 2)))]
    return Workload(config, tuple(asks), tuple(sorted(aborts)))


def _draw_config(pick: Pick, room: Room) -> SchedulerConfig:
    model_len, seqs, block_size = pick(8, 64), pick(1, 6), _one_of(pick, (1, 2, 3, 4, 8, 16))
    for_one = -(-model_len // block_size)
    budget = pick(seqs, seqs + 40)
    if room != "tight":
        budget += model_len if room == "whole" else seqs * model_len
    swaps = pick(0, 2) == 2
    return SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_model_len=model_len,
        block_size=block_size,
        num_gpu_blocks=1 + (2 * seqs * for_one if room == "roomy" else pick(-(-for_one // 2), 2 * for_one)),
        enable_chunked_prefill=room == "tight" or pick(0, 1) == 0,
        enable_prefix_caching=pick(0, 1) == 1,
        async_scheduling=pick(0, 3) == 3,
        scheduler_reserve_full_isl=pick(0, 1) == 0,
        max_num_active_seqs=None if pick(0, 2) else pick(1, seqs),
        long_prefill_token_threshold=max(0, pick(-model_len, model_len // 2)),
        long_prefill_token_threshold_adaptive=pick(0, 7) == 7,
        prefill_schedule_interval=max(1, pick(-4, 4)),
        watermark=_one_of(pick, (0.0, 0.0, 0.1, 0.3)),
        preemption_mode="swap" if swaps else "recompute",
        num_cpu_blocks=pick(1, 2 * for_one) if swaps else 0,
        victim=_one_of(pick, (None, None, "last", "lowest_priority", "cheapest")),
    )


def _draw_ask(pick: Pick, config: SchedulerConfig, arrival_s: float, before: Sequence[Ask]) -> Ask:
    prompt = _draw_prompt(pick, config, before)
    num_prompt_tokens = sum(length for _, _, length in prompt)
    output_len, other_len = pick(1, 24), pick(1, 24)
    if is_servable(config, num_prompt_tokens, output_len) != is_servable(config, num_prompt_tokens, other_len):
        other_len = output_len
    return Ask(
        arrival_s,
        prompt,
        output_len,
        other_len,
        None if pick(0, 1) else max(output_len, other_len) + pick(0, 8),
        pick(1, 24),
        pick(-1, 2),
        _one_of(pick, ("", "a", "b")),
    )


def _draw_prompt(pick: Pick, config: SchedulerConfig, before: Sequence[Ask]) -> tuple[Segment, ...]:
    """A prompt of its own, one that begins as others do, or a conversation's next turn; rarely one too long."""
    length = pick(1, config.max_model_len - 1) + (pick(0, 9) == 9)
    own = f"p:{len(before)}"
    kind = pick(0, 2)
    if kind == 1:
        shared = pick(0, length - 1)
        return _cut(((f"sys{pick(0, 1)}", 0, shared), (own, 0, length - shared)), length)
    if kind == 2 and before:
        turn = pick(0, len(before) - 1)
        said = before[turn]
        return _cut((*said.prompt, (f"out:{turn}", 0, said.output_len), (own, 0, length)), length)
    return ((own, 0, length),)


def _cut(segments: Sequence[Segment], num_tokens: int) -> tuple[Segment, ...]:
    """The first ``num_tokens`` of them."""
    out: list[Segment] = []
    for stream, start, length in segments:
        kept = min(length, num_tokens)
        if kept > 0:
            out.append((stream, start, kept))
        num_tokens -= kept
    return tuple(out)


def _one_of(pick: Pick, choices: Sequence[_T]) -> _T:
    return choices[pick(0, len(choices) - 1)]

"""Which runs had one workload, and the requests with which it is predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...traces import Trace
from ...traces.generate import unit_gaps
from ..errors import ExperimentError
from .measured_row import INFINITE, MeasuredRow, Workload

SAME_INPUTS, SAME_OUTPUTS = 0.02, 0.1
"""Share by which totals may differ between runs of one workload: outputs end where the model ends them."""
MOST = 10_000_000
"""Requests, or tokens of one, above which a figure is taken for a mistake."""
NOT_WORKLOAD = ("num_gpu_blocks_override", "label", "version")
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_SCENARIO_FIELDS: Mapping[str, tuple[str, type]] = {
    "max_model_len": ("max_model_len", int),
    "block_size": ("block_size", int),
    "num_gpu_blocks": ("num_gpu_blocks", int),
    "num_gpu_blocks_override": ("num_gpu_blocks", int),
    "max_num_active_seqs": ("max_num_active_seqs", int),
    "long_prefill_token_threshold": ("long_prefill_token_threshold", int),
    "prefill_schedule_interval": ("prefill_schedule_interval", int),
    "enable_chunked_prefill": ("enable_chunked_prefill", bool),
    "enable_prefix_caching": ("enable_prefix_caching", bool),
    "async_scheduling": ("async_scheduling", bool),
    "scheduler_reserve_full_isl": ("scheduler_reserve_full_isl", bool),
}
"""Parameter of ``vllm serve`` → our scenario's field."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one workload on one kind of server: they differ in the two knobs alone."""

    rows: tuple[MeasuredRow, ...]

    @property
    def first(self) -> MeasuredRow:
        """The run whose workload stands for all: one that lists its requests, if there is one."""
        return next((row for row in self.rows if row.workload.requests), self.rows[0])

    def label(self, others: Sequence[Group]) -> str:
        """A name fit for a folder, from what tells this group from the others."""
        mine = _named(self.first)
        differing = [name for name in mine if len({_named(other.first).get(name) for other in others}) > 1]
        text = "-".join(f"{name}={mine[name]}" for name in differing) or "workload"
        return "".join(c if c.isalnum() or c in "=._-" else "_" for c in text)[:100]


def group_rows(rows: Sequence[MeasuredRow]) -> list[Group]:
    """Rows by workload, in the order in which they appear."""
    groups: list[list[MeasuredRow]] = []
    for row in rows:
        home = next((group for group in groups if _same(group[0], row)), None)
        if home is None:
            groups.append([row])
        else:
            home.append(row)
    return [Group(tuple(group)) for group in groups]


def _same(one: MeasuredRow, other: MeasuredRow) -> bool:
    if _named(one, rounded=False) != _named(other, rounded=False):
        return False
    return all(
        a is None or b is None or abs(a - b) <= share * max(a, b, 1)
        for a, b, share in (
            (one.workload.total_input_tokens, other.workload.total_input_tokens, SAME_INPUTS),
            (one.workload.total_output_tokens, other.workload.total_output_tokens, SAME_OUTPUTS),
        )
    )


def _named(row: MeasuredRow, *, rounded: bool = True) -> dict[str, str]:
    """What tells workloads apart, in words; totals only where an approximate figure will do."""
    work = row.workload
    named = {name: value for name, value in row.settings.items() if name not in NOT_WORKLOAD}
    named |= {
        "model": row.model,
        "request_rate": f"{work.request_rate:g}",
        "burstiness": f"{work.burstiness:g}",
        "max_concurrency": str(work.max_concurrency or "none"),
        "num_prompts": str(work.num_prompts or "unknown"),
    }
    if rounded:
        named["input_tokens"] = str(work.total_input_tokens)
        named["output_tokens"] = str(work.total_output_tokens)
    return named


def with_lengths(
    row: MeasuredRow, input_len: int | None, output_len: int | None, num_prompts: int | None
) -> MeasuredRow:
    """``row`` with what its file does not say of the workload filled in: lengths of every request, and how many."""
    work = row.workload
    prompts = work.num_prompts or num_prompts
    inputs, outputs = work.total_input_tokens, work.total_output_tokens
    if prompts and inputs is None and input_len:
        inputs = prompts * input_len
    if prompts and outputs is None and output_len:
        outputs = prompts * output_len
    filled = replace(work, num_prompts=prompts, total_input_tokens=inputs, total_output_tokens=outputs)
    return replace(row, workload=filled)


def trace_of(work: Workload, seed: int = 0) -> tuple[Trace, list[str]]:
    """The requests of a workload, and what had to be assumed. Raises ``ExperimentError`` if lengths are not known."""
    if work.requests:
        listed, prompts, lengths = (np.array(column) for column in zip(*work.requests, strict=True))
        if work.max_concurrency and work.request_rate == INFINITE:
            listed = np.zeros(len(listed))  # who is next is sent when a client is free, which the replay decides
        return _trace(listed - listed[0], prompts, lengths), []
    count = work.num_prompts or 0
    inputs, outputs = work.total_input_tokens, work.total_output_tokens
    if not count or not inputs or not outputs:
        raise ExperimentError(
            "The lengths of its requests are not known, so it cannot be predicted: run the benchmark with "
            "--save-detailed, or give --input-len, --output-len and --num-prompts."
        )
    if max(count, inputs // count, outputs // count) > MOST:
        raise ExperimentError(
            f"{count:,} requests of {inputs:,} and {outputs:,} tokens in all are no workload to replay."
        )
    notes = ["requests all of the mean lengths (the file has totals only)"]
    starts = np.zeros(count)
    if work.request_rate != INFINITE:
        gaps = unit_gaps(np.random.default_rng(seed), count, work.burstiness)
        starts = np.cumsum(gaps)
        if starts[-1] > 0:  # as vllm bench serve does: so many requests take so long, exactly
            starts *= count / work.request_rate / starts[-1]
        notes.append("arrivals drawn anew at its rate and burstiness")
    return _trace(starts, _spread(inputs, count), _spread(outputs, count)), notes


def _spread(total: int, count: int) -> Any:
    """``count`` lengths that differ by at most one and add up to ``total`` (one token each at least)."""
    each = np.full(count, total // count)
    each[: total % count] += 1
    return np.maximum(each, 1)


def _trace(starts: Any, prompts: Any, outputs: Any) -> Trace:
    return Trace(
        name="imported",
        arrival_s=np.asarray(starts, dtype=np.float64),
        num_prompt_tokens=np.asarray(prompts, dtype=np.int64),
        output_len=np.asarray(outputs, dtype=np.int64),
        source="imported",
    )


def server_fields(row: MeasuredRow) -> dict[str, Any]:
    """Scenario fields that the record's parameters of ``vllm serve`` say."""
    found: dict[str, Any] = {}
    for name, text in row.settings.items():
        off = name.startswith("no_")
        if name.removeprefix("no_") not in _SCENARIO_FIELDS:
            continue
        field, kind = _SCENARIO_FIELDS[name.removeprefix("no_")]
        if kind is bool:
            value = _BOOLEANS.get(text.lower())
            if value is not None:
                found[field] = value != off
        elif text.isdecimal() and text.isascii():
            found[field] = int(text)
    return found

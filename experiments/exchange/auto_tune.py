"""Result lines of vLLM's ``benchmarks/auto_tune``: the throughput (requests/s) of each cell at the rate it sustains."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .bench_serve import read_bench_record
from .measured_row import MeasuredRow

_LINE = re.compile(
    r"max_num_seqs: *(?P<max_num_seqs>[^,]*), *max_num_batched_tokens: *(?P<max_num_batched_tokens>[^,]*), "
    r"*request_rate: *(?P<request_rate>[^,]*), *e2el: *(?P<p99_e2el_ms>[^,]*), "
    r"*throughput: *(?P<request_throughput>[^,]*), *goodput: *(?P<request_goodput>[^,]*)"
)
MISSED = "does not meet latency requirement"
PROMPTS_AT_INF, PROMPTS_AT_A_RATE = 1000, 100
"""Requests that the script sends at an infinite rate and at a finite one."""


def is_auto_tune(text: str) -> bool:
    """Whether a text holds result lines."""
    return "max_num_seqs:" in text and ("throughput:" in text or MISSED in text)


def read_auto_tune(text: str, source: str) -> Iterator[MeasuredRow | str]:
    """A row a result line; a sentence for a line that is none but speaks of a cell. ``e2el`` is the P99 in ms, as the
    script takes it.
    """
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{source}, line {number}"
        if match := _LINE.search(line):
            record = {name: value.strip() for name, value in match.groupdict().items()}
            at_inf = record["request_rate"] == "inf"
            prompts = PROMPTS_AT_INF if at_inf else PROMPTS_AT_A_RATE
            yield read_bench_record({**record, "num_prompts": prompts}, where)
        elif MISSED in line:
            yield f"{where}: no rate met the latency limit, so this cell has no figures"
        elif line.startswith("max_num_seqs:"):
            yield f"{where}: cannot be read"

"""Mutated results of other tools: rows with flags, or one sentence, never anything else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_files import detailed, summary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiles import toy_profile

from batchtwin.experiments.calibrate_from import load_requests
from batchtwin.experiments.exchange.checks import check_row
from batchtwin.experiments.exchange.import_runs import Missing, check_runs, import_runs
from batchtwin.experiments.exchange.sources import Found, read_sources
from batchtwin.scheduler.errors import BatchTwinError
from batchtwin.traces import TraceError

AUTO_TUNE = (
    "max_num_seqs: 128, max_num_batched_tokens: 512, request_rate: 4, e2el: 480.1, throughput: 3.9, goodput: 3.9\n"
)
CSV = "".join(f"{','.join(map(str, row))}\n" for row in (["", *summary()], ["0", *summary().values()]))
FILES = {
    "summary.json": json.dumps(summary()),
    "detailed.json": json.dumps(detailed()),
    "list.json": json.dumps([summary(), summary()]),
    "summary.csv": CSV,
    "result.txt": AUTO_TUNE * 3,
}
SPLICES = [b"\0", b'"', b",", b"{", b"}", b"[", b"]", b"null", b"true", b"NaN", b"Infinity", b"1e400", b"-", b"\xff"]
SPLICES += [b"9" * 400, b"[" * 3000, b"\n", b":", b" ", b"e9", b".", b"0", b"x" * 70_000]
edits = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(SPLICES)), min_size=1, max_size=5)
values = st.one_of(
    *(st.none(), st.booleans(), st.integers(-3, 10**30), st.floats(), st.text(max_size=9)),
    *(st.lists(st.floats(), max_size=4), st.lists(st.lists(st.floats(), max_size=2), max_size=4)),
)


def mutated(content: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for where, cut, splice in changes:
        at = int(where * len(content))
        content = content[:at] + splice + content[at + cut :]
    return content


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=edits)
def test_a_mutated_file_is_rows_or_one_sentence(
    tmp_path: Path, name: str, changes: list[tuple[float, int, bytes]]
) -> None:
    path = tmp_path / name
    path.write_bytes(mutated(FILES[name].encode(), changes))
    found, sentence = Found((), ()), ""
    try:
        found = read_sources([path])
    except BatchTwinError as error:
        sentence = str(error)
    assert "\n" not in sentence
    for row in found.rows:
        assert all(math.isfinite(value) for value in row.metrics.values())
        assert all(flag.text.isprintable() for flag in check_row(row))
    assert all(len(said) < 400 for said in found.left_out)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(st.sampled_from(sorted(detailed())), values, min_size=1, max_size=4),
    base=st.sampled_from((summary, detailed)),
)
def test_a_record_with_other_values_is_stored_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], base: Callable[..., dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "r.json"
    path.write_text(json.dumps(base(**changes)))
    sentence = ""
    missing = Missing(max_num_seqs=2, max_num_batched_tokens=64)
    try:
        check_runs([path])
        import_runs([path], folder / "out", toy_profile(), missing=missing)
        load_requests(path)
    except (BatchTwinError, TraceError) as error:
        sentence = str(error)
    assert "\n" not in sentence

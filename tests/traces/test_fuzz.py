"""Mutated files give a trace or a ``TraceError``, never anything else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchtwin.traces import Trace, TraceError, describe, read_trace

SPLICES = [
    *(
        b"\0",
        b"\r",
        b"\n",
        b'"',
        b",",
        b",,",
        b"-",
        b".",
        b"e9",
        b"\xff",
        b"\xef\xbb\xbf",
        b"{",
        b"}",
        b"[",
        b"]",
        b"[[[[",
    ),
    *(
        b"NaN",
        b"null",
        b"true",
        b"1e400",
        b"9" * 40,
        b"9" * 5000,
        b"0",
        b" ",
        b"Z",
        b"+00:00",
        b"\xd9\xa3",
        b"x" * 70_000,
    ),
]
edits = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 12), st.one_of(st.sampled_from(SPLICES), st.binary(max_size=6))),
    min_size=1,
    max_size=5,
)


def mutated(content: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for where, cut, splice in changes:
        at = int(where * len(content))
        content = content[:at] + splice + content[at + cut :]
    return content


def trace_or_sentence(path: Path, **options: bool) -> Trace | str:
    try:
        return read_trace(path, **options)
    except TraceError as error:
        return str(error)


def check(path: Path, **options: bool) -> None:
    trace = trace_or_sentence(path, **options)
    if isinstance(trace, str):
        assert 0 < len(trace) < 900
        assert "\n" not in trace
        return
    assert len(trace) >= 1
    assert trace.arrival_s[0] == 0
    assert (np.diff(trace.arrival_s) >= 0).all()
    for request in trace.requests():
        assert request.num_prompt_tokens >= 1
        assert request.output_len >= 1
        assert sum(length for _, _, length in request.prompt) == request.num_prompt_tokens
    describe(trace)


@pytest.mark.parametrize("name", ["azure", "vidur", "mooncake"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=edits, sort=st.booleans(), drop=st.booleans())
def test_a_mutated_file_is_a_trace_or_a_trace_error(
    tmp_path: Path,
    valid_files: dict[str, bytes],
    name: str,
    changes: list[tuple[float, int, bytes]],
    sort: bool,
    drop: bool,
) -> None:
    path = tmp_path / "mutated"
    path.write_bytes(mutated(valid_files[name], changes))
    check(path, sort=sort, drop_zero_output=drop)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_any_bytes_are_a_trace_or_a_trace_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(content)
    check(path)

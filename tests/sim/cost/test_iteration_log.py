"""Reading a server's log: what is there is used, the rest is counted, and nothing is a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_logs import PREFIX, line

from batchtwin.sim.cost.iteration_log import LoggedIteration, read_iteration_log, stretch_noise_percent
from batchtwin.sim.cost.timings import TimingsError

REAL = (
    "Engine 000: Iteration(17): 2 context requests, 812 context tokens, 63 generation requests, 63 generation tokens, "
    "iteration elapsed time: 9.87 ms, GPU KV cache usage: 12.3%"
)
"""The line as the format's description gives it."""


def read(tmp_path: Path, *lines: str) -> list[LoggedIteration]:
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    return list(read_iteration_log(path).iterations)


def test_the_documented_line_is_read_whatever_stands_before_it(tmp_path: Path) -> None:
    for before in ("", PREFIX, "2026-11-30T02:55:04Z pod/x "):
        (found,) = read(tmp_path, before + REAL)
        assert found == LoggedIteration(0, 17, 2, 812, 63, 63, pytest.approx(9.87e-3), pytest.approx(0.123))
    assert (found.num_requests, found.num_tokens) == (65, 875)


def test_an_older_line_without_kv_usage_is_read_and_a_newer_ending_ignored(tmp_path: Path) -> None:
    older = REAL.partition(", GPU KV")[0]
    older_line, cpu = read(tmp_path, older, REAL.replace("(17)", "(18)").replace("GPU KV", "CPU KV") + ", more: 3")
    assert older_line.kv_usage is None
    assert cpu.kv_usage == pytest.approx(0.123)


def test_what_is_not_used_is_counted_by_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    lines = [
        "INFO Initializing a V1 LLM engine (v0.33.0) with config: …",
        "INFO GPU KV cache size: 27,648 tokens",
        line(1, 1, 20, 0, 0, 5.0, 1),
        line(2, 0, 0, 1, 1, 4.0, 1).replace(" ms,", " ms (dummy),"),
        line(3, 0, 0, 1, 1, 4.0, 1) + ", encoder inputs: 1, encoder output embeddings: 9",
        line(4, 0, 0, 1, 1, 4.0, 1).replace("1 generation tokens", "one generation token"),
        line(4, 0, 0, 1, 1, 4.0, 1).replace("Engine 000", "Engine 001"),
        line(5, 0, 0, 1, 1, 4.0, 1),
        "INFO Initializing a V1 LLM engine (v0.34.0) with config: …",
        line(1, 0, 0, 1, 1, 4.0, 1),
        line(2, 0, 0, 1, 1, 4.0, 1),
    ]
    path.write_text("\n".join(lines))
    log = read_iteration_log(path)
    assert [iteration.number for iteration in log.iterations] == [1, 5]
    assert dict(log.left_out) == {
        "a dummy step (data parallelism)": 1,
        "with encoder inputs (multimodal)": 1,
        "cannot be read": 1,
        "of another engine than the first": 1,
        "after a restart of the server": 2,
    }
    assert log.versions == ("0.33.0", "0.34.0")
    assert log.kv_cache_tokens == 27_648


def test_a_log_without_iterations_says_which_flag_writes_them(tmp_path: Path) -> None:
    with pytest.raises(TimingsError, match="start vLLM with --enable-logging-iteration-details"):
        read(tmp_path, "INFO hello")
    with pytest.raises(TimingsError, match="1 lines look like it but cannot be read"):
        read(tmp_path, "Iteration(x): elapsed time")


def test_a_device_or_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TimingsError, match="is no regular file"):
        read_iteration_log("/dev/null")
    with pytest.raises(TimingsError, match=r"absent\.log cannot be read \(No such file"):
        read_iteration_log(tmp_path / "absent.log")


def test_times_that_tell_how_long_an_asynchronous_engine_waited_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    waits = [0.03, 0.02, 30.0, 0.03] * 10
    path.write_text("\n".join(line(i, 0, 0, 4, 4, ms, 5) for i, ms in enumerate(waits)))
    assert read_iteration_log(path).waits_are_too_short
    path.write_text("\n".join(line(i, 0, 0, 4, 4, 7.0 + 0.1 * (i % 5), 5) for i in range(40)))
    assert not read_iteration_log(path).waits_are_too_short


def test_noise_is_the_spread_of_successive_decodes_of_the_same_requests() -> None:
    """Sixteen times 8, 9, 10, 11, 12 …: quartiles 9 and 11 around 10 are 20 %."""
    times = [8.0, 9.0, 10.0, 11.0, 12.0] * 3 + [10.0]
    same = tuple(LoggedIteration(0, i, 0, 0, 4, 4, ms / 1e3, None) for i, ms in enumerate([9.9, *times]))
    assert stretch_noise_percent(same) == pytest.approx(20.0)
    changing = tuple(LoggedIteration(0, i, 0, 0, i, i, 0.01, None) for i in range(1, 40))
    assert stretch_noise_percent(changing) != stretch_noise_percent(changing), "NaN: nothing tells"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 9), st.binary(max_size=6)), min_size=1, max_size=4),
)
def test_a_mutated_log_is_a_log_or_one_sentence(tmp_path: Path, cuts: list[tuple[int, int, bytes]]) -> None:
    content = "\n".join(line(i, 1, 9, 2, 2, 5.0, 3) for i in range(4)).encode()
    for at, length, splice in cuts:
        content = content[:at] + splice + content[at + length :]
    path = tmp_path / "mutated.log"
    path.write_bytes(content)
    try:
        log = read_iteration_log(path)
    except TimingsError:
        return
    assert 1 <= len(log.iterations) <= 4
    assert all(iteration.elapsed_s >= 0 for iteration in log.iterations)

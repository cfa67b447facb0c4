"""Context lengths recovered from a log, against schedules that the real vLLM recorded."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from server_logs import LAW, Server, golden_server, line

from batchtwin.sim.cost.features import stack
from batchtwin.sim.cost.fit import fit
from batchtwin.sim.cost.iteration_log import IterationLog, read_iteration_log
from batchtwin.sim.cost.log_replay import from_usage, replay_log
from batchtwin.sim.cost.timings import Timings, TimingsError


def log_of(tmp_path: Path, lines: list[str]) -> IterationLog:
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines))
    return read_iteration_log(path)


def replayed(tmp_path: Path, server: Server) -> Timings:
    return replay_log(log_of(tmp_path, server.lines), server.trace, server.config)


def moved(lines: list[str], by: int) -> list[str]:
    """The same iterations under later numbers."""
    return [re.sub(r"Iteration\((\d+)\)", lambda found: f"Iteration({int(found[1]) + by})", text) for text in lines]


@pytest.mark.parametrize("resumed_is_context", [False, True], ids=["V1 runner", "V2 runner"])
@pytest.mark.parametrize("name", ["stream_plain", "stream_pressure"])
def test_every_context_of_a_recorded_schedule_is_recovered(tmp_path: Path, name: str, resumed_is_context: bool) -> None:
    """500 requests, chunks, preemptions: every sum equals what is counted from vLLM's own recording."""
    server = golden_server(name, resumed_is_context=resumed_is_context)
    found = replayed(tmp_path, server)
    assert not found.left_out
    truth = stack(server.features)
    for column, expected, label in zip(found.features, truth, truth._fields, strict=True):
        np.testing.assert_array_equal(column, expected, err_msg=label)


def test_the_law_behind_the_times_is_recovered(tmp_path: Path) -> None:
    """Times are printed to 0.01 ms, which is all that is lost."""
    server = golden_server("stream_pressure")
    law = fit(*(getattr(replayed(tmp_path, server), name) for name in ("features", "seconds")))
    truth = stack(server.features)
    assert np.abs(law.durations_s(truth) / LAW.durations_s(truth) - 1).max() < 0.005
    assert law.per_decode_kv_token_s == pytest.approx(LAW.per_decode_kv_token_s, rel=0.05)


def test_a_warm_up_before_the_trace_is_skipped_and_counted(tmp_path: Path) -> None:
    """As ``vllm bench serve`` does it: one request by itself, before those that it lists."""
    server = golden_server("stream_plain")
    warm = [line(0, 1, 83, 0, 0, 90.0, 0.1), line(1, 0, 0, 1, 1, 7.0, 0.1), line(2, 0, 0, 1, 1, 7.0, 0.1)]
    found = replay_log(log_of(tmp_path, [*warm, *moved(server.lines, 3)]), server.trace, server.config)
    assert found.left_out == {"before the trace begins": 3}
    assert len(found.seconds) == len(server.lines)


def test_lines_that_are_lost_cost_what_follows_them_until_the_schedules_agree_again(tmp_path: Path) -> None:
    server = golden_server("stream_plain")
    found = replay_log(log_of(tmp_path, [*server.lines[:150], *server.lines[151:]]), server.trace, server.config)
    assert found.left_out["our schedule differs"] >= 1
    np.testing.assert_array_equal(
        found.features.num_decode_kv_tokens[:150], [row.num_decode_kv_tokens for row in server.features[:150]]
    )


def test_other_knobs_than_the_servers_are_refused_with_their_values(tmp_path: Path) -> None:
    server = golden_server("stream_plain")
    log = log_of(tmp_path, server.lines)
    with pytest.raises(TimingsError, match=r"max_num_seqs \(4\).* those of the server\?"):
        replay_log(log, server.trace, server.config.with_(max_num_seqs=4))


def test_without_a_trace_the_kv_usage_gives_the_context_of_decodes_roughly(tmp_path: Path) -> None:
    """Printed to 0.1 % of the pool and counted in blocks: a median of 3 % off (half-filled blocks), and said."""
    server = golden_server("stream_plain")
    config = server.config
    found = from_usage(log_of(tmp_path, server.lines), config.num_gpu_blocks, config.block_size)
    truth = stack(server.features)
    decodes = truth.num_decodes >= 4
    ratio = found.features.num_decode_kv_tokens[decodes] / truth.num_decode_kv_tokens[decodes]
    assert decodes.sum() > 300
    assert np.median(np.abs(ratio - 1)) < 0.05
    assert "not replayed" in found.notes[0]


def test_too_few_iterations_are_refused_with_what_was_left_out(tmp_path: Path) -> None:
    lines = [line(i, 0, 0, 1, 1, 0.0, 1) for i in range(30)]
    with pytest.raises(TimingsError, match=r"0 usable iterations.*29 × a time of 0"):
        from_usage(log_of(tmp_path, lines), 100, 16)


def test_a_log_too_short_is_told_apart_from_wrong_knobs(tmp_path: Path) -> None:
    """All 8 lines are what the scheduler makes of the trace: nothing is wrong but their number."""
    server = golden_server("stream_plain")
    with pytest.raises(
        TimingsError, match=r"has 8 iterations from where the trace begins .* needs at least 20"
    ) as said:
        replay_log(log_of(tmp_path, server.lines[:8]), server.trace, server.config)
    assert "knobs" not in str(said.value)

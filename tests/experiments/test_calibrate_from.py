"""A profile from a server's log: the law behind the times, the error on iterations held out, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from bench_files import detailed
from profiles import toy_profile
from server_logs import LAW, Server, golden_server, line

from batchtwin.experiments.calibrate_from import Measured, calibrate_from, load_requests, sniff_kind
from batchtwin.experiments.replay import replay
from batchtwin.scheduler.errors import BatchTwinError
from batchtwin.sim.cost.profile import load_profile
from batchtwin.traces import write_vidur_csv

ABOUT = Measured(toy_profile().model, toy_profile().device)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """A recorded schedule under pressure, its times 3 % noisy, as ``server.log`` and ``requests.csv``."""
    found = golden_server("stream_pressure", noise=0.03)
    (tmp_path / "server.log").write_text("\n".join(found.lines))
    write_vidur_csv(found.trace, tmp_path / "requests.csv")
    return found


def knobs(server: Server) -> dict[str, int]:
    config = server.config
    return {
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": config.max_model_len,
        "num_gpu_blocks": config.num_gpu_blocks,
    }


def test_a_log_and_its_requests_give_the_servers_law(tmp_path: Path, server: Server) -> None:
    done = calibrate_from(tmp_path / "server.log", ABOUT, trace=tmp_path / "requests.csv", fields=knobs(server))
    assert done.kind == "log"
    assert not done.left_out
    fit = done.profile.fit
    assert fit.num_batches == len(server.lines)
    assert fit.held_out.median_percent < 3.5, "3 % of noise have a median of 2 %"
    assert fit.nulls["constant"].median_percent > 3 * fit.held_out.median_percent
    predicted = [done.profile.cost_model.duration_s(row) for row in server.features]
    truth = [LAW.duration_s(row) for row in server.features]
    worst = max(abs(one / other - 1) for one, other in zip(predicted, truth, strict=True))
    assert worst < 0.05


def test_the_profile_is_one_like_any_other(tmp_path: Path, server: Server) -> None:
    done = calibrate_from(tmp_path / "server.log", ABOUT, trace=tmp_path / "requests.csv", fields=knobs(server))
    done.profile.save(tmp_path / "p.json")
    loaded = load_profile(tmp_path / "p.json")
    assert loaded.hash() == done.profile.hash()
    assert loaded.provenance["source"] == "server.log"
    assert "446 of 446 iterations replayed alike" in loaded.provenance["notes"]
    assert "what the host does between iterations is not in" in loaded.provenance["notes"]
    run = replay(trace=str(tmp_path / "requests.csv") and {"source": str(tmp_path / "requests.csv")}, profile=loaded)
    assert run.metrics["completed"] == 500


def test_noise_that_no_stretch_tells_is_unknown_and_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fpm.csv"
    rows = "\n".join(f"decode,{n},0,{64 * n},{5 + 0.01 * n}" for n in range(1, 40))
    path.write_text(f"workload_kind,batch_size,total_prefill_tokens,total_kv_read_tokens,latency_ms\n{rows}\n")
    done = calibrate_from(path, ABOUT)
    assert done.kind == "fpm"
    done.profile.save(tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_text())["fit"]["repeat_noise_percent"] is None
    noise = load_profile(tmp_path / "p.json").fit.repeat_noise_percent
    assert math.isnan(noise)
    assert done.profile.fit.held_out.median_percent < 0.5


def test_a_log_without_requests_needs_the_pool_or_the_size_that_it_prints(tmp_path: Path, server: Server) -> None:
    with pytest.raises(BatchTwinError, match="give its requests with --trace"):
        calibrate_from(tmp_path / "server.log", ABOUT)
    config = server.config
    size = f"INFO GPU KV cache size: {config.num_gpu_blocks * config.block_size:,} tokens"
    (tmp_path / "sized.log").write_text("\n".join([size, *server.lines]))
    done = calibrate_from(tmp_path / "sized.log", ABOUT)
    assert "not replayed" in done.notes[0]
    assert done.profile.fit.held_out.median_percent < 6.0
    blocks = {"num_gpu_blocks": config.num_gpu_blocks}
    assert calibrate_from(tmp_path / "server.log", ABOUT, fields=blocks).profile.law == done.profile.law


def test_a_log_of_an_asynchronous_engine_is_refused(tmp_path: Path) -> None:
    waits = [0.03, 0.02, 30.0, 0.03] * 10
    path = tmp_path / "async.log"
    path.write_text("\n".join(line(i, 0, 0, 4, 4, ms, 5) for i, ms in enumerate(waits)))
    with pytest.raises(BatchTwinError, match="Start vLLM with --no-async-scheduling"):
        calibrate_from(path, ABOUT, fields={"num_gpu_blocks": 100})


def test_the_kind_is_told_from_the_content(tmp_path: Path) -> None:
    for name, content, kind in (
        ("a", '[{"case": "x", "requests": [{"query_len": 1, "kv_len": 3}]}]', "forward"),
        ("b", "workload_kind,total_kv_read_tokens\n", "fpm"),
        ("c", "INFO 11-30 [x] hello\n", "log"),
    ):
        (tmp_path / name).write_text(content)
        assert sniff_kind(tmp_path / name) == kind
    with pytest.raises(BatchTwinError, match="There is no kind 'xml'; known are log, forward, fpm"):
        calibrate_from(tmp_path / "c", ABOUT, kind="xml")


def test_a_benchmarks_own_list_of_requests_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(detailed()))
    trace = load_requests(path)
    assert trace.num_prompt_tokens.tolist() == [10, 20, 30, 40]
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.0, 0.1, 0.2])
    path.write_text(json.dumps({"duration": 1.0, "completed": 3}))
    with pytest.raises(BatchTwinError, match="run vllm bench serve with --save-detailed"):
        load_requests(path)

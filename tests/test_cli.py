"""The command line: what it prints, and that whatever is wrong is one sentence and exit code 1, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench_files import summary
from profiles import toy_profile
from server_logs import golden_server
from sweeps import write_measured

import batchtwin
from batchtwin import cli
from batchtwin.experiments.sweep import open_sweep
from batchtwin.traces import write_vidur_csv

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = VIDUR + "0,20,5\n0.01,30,4\n0.02,12,7\n0.02,40,3\n"
SMALL = ("--trace", "rows.csv", "--max-model-len", "256")
GRID = (*SMALL, "-p", "profile.json", "--seqs", "2,4", "--tokens", "32,64", "-j", "1")


@dataclass
class Outcome:
    """What a command left on the terminal."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Standard output without its line breaks, which depend on the terminal's width."""
        return " ".join(self.out.split())


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("replay", …)`` in a folder that holds ``rows.csv`` and ``profile.json``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "rows.csv").write_text(ROWS)
    toy_profile().save(tmp_path / "profile.json")

    def command(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["batchtwin", *words])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Outcome(code, *capsys.readouterr())

    return command


def one_sentence(outcome: Outcome) -> str:
    """The message, if it is all there is on standard error."""
    assert outcome.code == 1
    assert outcome.err.startswith("batchtwin: ")
    assert outcome.err.endswith("\n")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    return outcome.err


TRACES: dict[str, tuple[str, str]] = {
    "a missing column": (
        "arrived_at,num_prefill_tokens\n0,20\n",
        "line 1: the header lacks the column num_decode_tokens",
    ),
    "a negative length": (VIDUR + "0,-20,5\n", "line 2: num_prefill_tokens is '-20'"),
    "an output of zero": (VIDUR + "0,20,0\n", "line 2: a request with 0 output tokens"),
    "times that go back": (VIDUR + "5,20,5\n4,20,5\n", "line 3: arrives before the row above it"),
    "an empty file": ("", "is empty"),
    "a header and nothing else": (AZURE, "holds no requests"),
    "another format": (
        "when,what\n1,2\n",
        "line 1: 'when,what' is not the header of a known trace; known are Azure CSV",
    ),
    "a Parquet file": ("PAR1....", "is a Parquet file: write it as CSV first"),
    "prose": ("Dear all,\n", "line 1: 'Dear all,' is not the header"),
}


@pytest.mark.parametrize(("content", "sentence"), TRACES.values(), ids=TRACES.keys())
def test_a_bad_trace_is_one_sentence(run: Run, tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)
    for words in (("replay", "-t", str(path), "-p", "profile.json"), ("trace", "describe", str(path))):
        message = one_sentence(run(*words))
        assert f"{path}" in message
        assert sentence in message
    one_sentence(run("sweep", "out", "-p", "profile.json", "-t", str(path)))
    assert not (tmp_path / "out").exists()


REPLAYS: dict[str, tuple[tuple[str, ...], str]] = {
    "no profile": ((), "A prediction needs a profile"),
    "a missing profile": (("-p", "absent.json"), "The profile absent.json cannot be read (No such file or directory)"),
    "a profile that is a trace": (("-p", "rows.csv"), "rows.csv is not a profile of this version"),
    "another model": (
        ("-p", "profile.json", "--model", "gpt2"),
        "with model 'tiny-llama', but the scenario asks for model 'gpt2'",
    ),
    "another dtype": (
        ("-p", "profile.json", "--dtype", "bfloat16"),
        "dtype 'float32', but the scenario asks for dtype 'bfloat16'",
    ),
    "another device": (
        ("-p", "profile.json", "--device", "cuda"),
        "device 'cpu', but the scenario asks for device 'cuda'",
    ),
    "other threads": (("-p", "profile.json", "--threads", "3"), "threads 1, but the scenario asks for threads 3"),
    "another block size": (
        ("-p", "profile.json", "--set", "block_size=8"),
        "block_size 16, but the scenario asks for block_size 8",
    ),
    "more sequences than tokens": (
        ("-p", "profile.json", "--max-num-seqs", "64", "--max-num-batched-tokens", "32"),
        "max_num_batched_tokens (32) is less than max_num_seqs (64)",
    ),
    "two sizes of the pool": (
        ("-p", "profile.json", "--num-gpu-blocks", "9", "--kv-memory-bytes", "9"),
        "give num_gpu_blocks or kv_memory_bytes, not both",
    ),
    "a budget without room": (("-p", "profile.json", "--kv-memory-bytes", "1000"), "leaves no KV block"),
    "whole prompts in a small budget": (
        ("-p", "profile.json", "--max-num-batched-tokens", "200", "--set", "enable_chunked_prefill=false"),
        "Without chunked prefill a prompt must fit one step",
    ),
    "a policy that never chunks": (
        ("-p", "profile.json", "--max-num-batched-tokens", "200", "--policy", "prefill_first"),
        "prefill_first never chunks a prompt",
    ),
    "a prompt too long for the model": (
        ("-p", "profile.json", "--max-model-len", "25"),
        "Request '1' has a prompt of 30 tokens, but max_model_len is 25 and must leave room for an output token: raise "
        "max_model_len or shorten the prompt (the longest prompt of 4 has 40 tokens).",
    ),
    "a request too big for the pool": (
        ("-p", "profile.json", "--num-gpu-blocks", "3"),
        "needs 3 KV blocks of 16 tokens, but of num_gpu_blocks 3 only 2 can be used (block 0 is never handed out",
    ),
    "an unknown policy": (("-p", "profile.json", "--policy", "fastest"), "no policy 'fastest'; known are "),
    "a policy that is no policy": (("-p", "profile.json", "--policy", "json:loads"), "is not a subclass"),
    "a word without a value": (("-p", "profile.json", "--set", "think_s"), "--set think_s: give field=value"),
    "an unknown field": (
        ("-p", "profile.json", "--set", "thinking=1"),
        "there is no field thinking; close to it is think_s.",
    ),
    "an unknown SLO": (
        ("-p", "profile.json", "--slo", "speed=1"),
        "no SLO 'speed'; known are ttft_ms, tpot_ms, e2el_ms",
    ),
    "an SLO without a number": (
        ("-p", "profile.json", "--slo", "ttft_ms"),
        "--slo ttft_ms: give a name and a limit in ms",
    ),
    "no clients": (("-p", "profile.json", "--clients", "0"), "num_clients is 0, but it must be at least 1"),
    "no trace": (("-p", "profile.json", "-t", "absent.csv"), "'absent.csv' is neither a file nor a generated trace"),
    "a slice that leaves nobody": (("-p", "profile.json", "--set", "trace.start=9"), "leaves no request"),
}


@pytest.mark.parametrize(("words", "sentence"), REPLAYS.values(), ids=REPLAYS.keys())
def test_a_replay_that_cannot_be_is_one_sentence(run: Run, words: tuple[str, ...], sentence: str) -> None:
    message = one_sentence(run("replay", *SMALL, *words))
    assert sentence in message


def test_an_unknown_policy_is_told_all_known_ones(run: Run) -> None:
    message = one_sentence(run("replay", *SMALL, "-p", "profile.json", "--policy", "fastest"))
    for name in ("vllm_v1", "prefill_first", "static_batch"):
        assert name in message


SWEEPS: dict[str, tuple[tuple[str, ...], str]] = {
    "seqs": (("--seqs", "8;16"), "--seqs 8;16: give whole numbers separated by commas"),
    "tokens": (("--tokens", "many"), "--tokens many: give whole numbers separated by commas"),
    "measure": (("--measure", "some"), "--measure some: give a number of cells, or all."),
    "measure nothing": (("--measure", "0"), "measure is 0, but it must be at least 1"),
    "workers": (("--workers", "0"), "workers is 0, but it must be at least 1"),
    "policies": (("--policies", "vllm_v1,fastest"), "no policy 'fastest'; known are"),
    "objective": (("--objective", "speed"), "no objective 'speed'; known are output_throughput"),
    "slo": (("--slo", "x=1"), "no SLO 'x'"),
    "profile": (("--model", "other"), "asks for model 'other'"),
}


@pytest.mark.parametrize(("words", "sentence"), SWEEPS.values(), ids=SWEEPS.keys())
def test_a_sweep_that_cannot_be_is_one_sentence_and_leaves_nothing(
    run: Run, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    assert sentence in one_sentence(run("sweep", "out", *GRID, *words))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_no_results_is_one_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for verb in ("compare", "recommend"):
        for folder in ("absent", "empty"):
            assert f"{folder} holds no sweep.json: it is not a folder of results" in one_sentence(run(verb, folder))


def test_a_run_is_never_written_over_something_else(run: Run, tmp_path: Path) -> None:
    message = one_sentence(run("replay", *SMALL, "-p", "profile.json", "-o", "."))
    assert "which is no part of a run: choose another folder" in message
    assert (tmp_path / "rows.csv").read_text() == ROWS


def test_a_predicted_replay_prints_its_table_and_leaves_its_run(run: Run, tmp_path: Path) -> None:
    done = run("replay", *SMALL, "-p", "profile.json", "-o", "run")
    assert (done.code, done.err) == (0, "")
    assert "Predicted: tiny-llama, vllm_v1, max_num_seqs 128, max_num_batched_tokens 2048, 4 requests" in done.words
    expected = batchtwin.load_run(tmp_path / "run").metrics
    assert f"Output throughput {expected['output_throughput']:,.1f} tokens/s" in done.words
    assert f"TTFT P99 {expected['p99_ttft_ms']:,.1f} ms" in done.words
    assert f"Iterations {expected['num_iterations']}" in done.words
    assert "KV pool: 4096 blocks of 16." in done.words
    assert done.words.endswith("Wrote run")


def test_a_closed_loop_with_an_slo_prints_gate_and_goodput(run: Run) -> None:
    done = run(
        "replay", *SMALL, "-p", "profile.json", "--clients", "1", "--slo", "ttft_ms=500", "--set", "think_s=0.01"
    )
    assert done.code == 0
    assert "Goodput" in done.words
    assert "Client's gate mean" in done.words


def test_the_clients_of_a_benchmark_have_their_gate_told_apart(run: Run) -> None:
    done = run("replay", *SMALL, "-p", "profile.json", "--request-rate", "500", "--max-concurrency", "1")
    assert done.code == 0
    assert "Client's gate P99" in done.out
    assert "at the client's own gate before they are sent. That is no part of TTFT here" in done.words
    assert "Warm-up of" in done.words
    ramp = ("ramp_up_strategy=linear", "ramp_up_start_rps=50", "ramp_up_end_rps=500")
    words = [word for field in ramp for word in ("--set", f"trace.{field}")]
    assert run("replay", *SMALL, "-p", "profile.json", *words).code == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--burstiness", "0.5"), "burstiness is that of a client: give request_rate"),
        (("--request-rate", "-1"), "request_rate"),
        (("--request-rate", "5", "--offline"), "offline sends all requests at once"),
        (("--max-concurrency", "0"), "max_concurrency"),
        (("--max-concurrency", "2", "--clients", "2"), "give num_clients or max_concurrency, not both"),
    ],
)
def test_clients_that_cannot_be_are_one_sentence(run: Run, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in one_sentence(run("replay", *SMALL, "-p", "profile.json", *words))


def test_a_sweep_rests_on_three_seeds_of_drawn_arrivals_or_says_so(run: Run) -> None:
    few = run("sweep", "few", *GRID, "--request-rate", "50", "--seeds", "1")
    assert "It rests on one seed of drawn requests: sweep with 3 seeds or more" in few.words
    three = run("sweep", "three", *GRID, "--request-rate", "50")
    assert "It rests on" not in three.words
    assert open_sweep(Path("three")).spec.num_seeds == 3
    assert "seeds is 0, but it must be at least 1" in one_sentence(run("sweep", "none", *GRID, "--seeds", "0"))


def test_a_sweep_prints_the_grid_and_its_answer_and_can_be_resumed(run: Run, tmp_path: Path) -> None:
    first = run("sweep", "out", *GRID)
    assert first.code == 0
    found = open_sweep(tmp_path / "out")
    assert "Choose max_num_seqs=" in first.words
    for result in found.feasible():
        assert f"{result.metrics['output_throughput']:,.1f}" in first.words
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json")}
    again = run("sweep", "out", *GRID)
    assert (again.code, again.out) == (0, first.out)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json")} == before
    assert "(scenario.trace.rate_scale differs)" in one_sentence(run("sweep", "out", *GRID, "--rate-scale", "2"))


def test_a_sweep_without_a_feasible_cell_says_why(run: Run) -> None:
    done = run("sweep", "out", *GRID, "--num-gpu-blocks", "3")
    assert done.code == 1
    assert "infeasible" in done.out
    last = done.err.splitlines()[-1]
    assert last.startswith(
        "batchtwin: No cell of out is feasible; the first, vllm_v1-seqs2-tokens32: Request '1' needs 3"
    )
    assert "Traceback" not in done.err


def test_an_interrupted_sweep_says_how_to_go_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from batchtwin.experiments import cells as module

    real, calls = module.predict, []

    def interrupted(*args: object) -> object:
        calls.append(args)
        if len(calls) == 4:  # the second cell; each takes three predictions
            raise KeyboardInterrupt
        return real(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(module, "predict", interrupted)
        done = run("sweep", "out", *GRID)
    assert done.code == 130
    assert "Finished cells are kept in out; the same command goes on from there." in " ".join(done.err.split())
    assert "Traceback" not in done.err
    assert len(open_sweep(tmp_path / "out").predicted()) == 1
    assert run("sweep", "out", *GRID).code == 0
    assert len(open_sweep(tmp_path / "out").predicted()) == 5


def test_a_streamed_replay_leaves_the_run_that_is_saved_at_the_end(run: Run, tmp_path: Path) -> None:
    streamed = run("replay", *SMALL, "-p", "profile.json", "-o", "streamed", "--stream")
    saved = run("replay", *SMALL, "-p", "profile.json", "-o", "saved")
    assert (streamed.code, streamed.err) == (0, "")
    assert streamed.out.replace("streamed", "saved") == saved.out
    for name in ("run.json", "scenario.json"):
        assert (tmp_path / "streamed" / name).read_bytes() == (tmp_path / "saved" / name).read_bytes()
    refused = run("replay", *SMALL, "-p", "profile.json", "--stream")
    assert (refused.code, refused.err) == (1, "batchtwin: --stream needs a folder: give --output.\n")


def test_a_capacity_prints_every_rate_tried_and_the_answer(run: Run) -> None:
    done = run("capacity", *SMALL, "-p", "profile.json", "--slo", "ttft_ms=12", "--tolerance", "0.1")
    assert (done.code, done.err) == (0, "")
    assert "Rates tried" in done.out
    assert "requests/s meet P99 TTFT ≤ 12 ms; " in done.words
    assert {"yes", "no"} <= set(done.words.split())
    without = run("capacity", *SMALL, "-p", "profile.json")
    assert (without.code, without.err) == (1, "batchtwin: A capacity needs an SLO: give one, such as ttft_ms=500.\n")


def test_a_capacity_over_a_grid_is_a_row_a_cell(run: Run) -> None:
    words = ("--slo", "ttft_ms=15", "--tolerance", "0.2", "--seqs", "2,4,99", "--tokens", "64", "-j", "1")
    done = run("capacity", *SMALL, "-p", "profile.json", *words)
    assert (done.code, done.err) == (0, "")
    assert done.words.count("vllm_v1") == 3
    assert "is less than max_num_seqs (99)" in done.words
    assert "Most: max_num_seqs=" in done.words


def test_a_sweep_may_search_and_runs_where_it_is_told(run: Run) -> None:
    done = run("sweep", "out", *GRID, "--search", "--backend", "loky")
    assert done.code == 0
    assert open_sweep("out").spec.search
    refused = run("sweep", "other", *GRID, "--backend", "slurm")
    assert (refused.code, refused.err) == (1, "batchtwin: There is no back end 'slurm'; known are loky, ray, dask.\n")


def test_recommend_prints_the_sentence_and_a_command_to_copy(run: Run) -> None:
    run("sweep", "out", *GRID)
    done = run("recommend", "out")
    assert (done.code, done.err) == (0, "")
    assert "Choose max_num_seqs=" in done.words
    assert "# vLLM cannot serve this: tiny-llama is a preset of random weights." in done.words
    assert "--max-num-seqs 2 --max-num-batched-tokens 32" in done.words
    assert "$" not in done.words, "nothing that could be taken for a command"
    strict = run("recommend", "out", "--slo", "ttft_ms=0.001")
    assert strict.code == 1
    assert strict.words.startswith("No cell meets P99 TTFT ≤ 0.001 ms: the load is too high for any.")
    assert "no SLO 'x'" in one_sentence(run("recommend", "out", "--slo", "x=1"))
    assert "no predicted cell of policy orca" in one_sentence(run("recommend", "out", "--policy", "orca"))


def test_compare_prints_errors_regret_and_their_origin(run: Run, tmp_path: Path) -> None:
    """With runs that stand in for measured ones (a prediction with noisy step times); before, with none."""
    run("sweep", "out", *GRID)
    assert "out has no measured cell: run the sweep with --measure." in one_sentence(run("compare", "out"))
    found = open_sweep(tmp_path / "out")
    for cell in found.spec.cells:
        write_measured(found, cell, 0, {})
    done = run("compare", "out")
    assert (done.code, done.err) == (0, "")
    for part in ("over 5 measured cells", "Rest", "Cost", "Schedule", "Regret in", "Rank correlation"):
        assert part in done.words


def test_runs_of_another_server_are_checked_and_laid_beside_predictions(run: Run, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(json.dumps(summary()))
    (tmp_path / "bad.json").write_text(json.dumps(summary(output_throughput=110.0)))
    checked = run("import", "good.json", "bad.json")
    assert (checked.code, checked.err) == (0, "")
    assert "#2 (bad.json) cannot be true: output_throughput is 110.00" in checked.words
    assert "1 of 2 runs can be true." in checked.words
    assert "Checked only: give -o FOLDER -p PROFILE" in checked.words
    done = run("import", "good.json", "-o", "out", "-p", "profile.json", "-j", "1")
    assert done.code == 0
    assert "Wrote out: see batchtwin compare out" in done.words
    compared = run("compare", "out")
    assert (compared.code, compared.err) == (0, "")
    assert "over 1 measured cell (%)" in compared.words
    assert "Imported runs have no records" in compared.words
    assert run("recommend", "out").code == 0
    assert run("report", "out").code == 0
    assert "give the profile with -p" in one_sentence(run("import", "good.json", "-o", "other"))
    assert "--input-len is 0, but it must be at least 1" in one_sentence(run("import", "good.json", "--input-len", "0"))
    assert "no result is in there" in one_sentence(run("import", "rows.csv"))


def test_no_figure_is_cut_at_80_columns(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "good.json").write_text(json.dumps(summary()))
    words = ("--slo", "ttft_ms=15", "--tolerance", "0.2", "--seqs", "2,99", "--tokens", "64", "-j", "1")
    for done in (run("import", "good.json"), run("capacity", *SMALL, "-p", "profile.json", *words), run("validate")):
        assert (done.code, done.err) == (0, "")
        assert not [line for line in done.out.splitlines() if "…" in line and not line.startswith("  •")]
        assert max(map(len, done.out.splitlines())) <= 80


def test_predictions_are_exported_and_checked_like_anybodys(run: Run, tmp_path: Path) -> None:
    run("sweep", "out", *GRID)
    done = run("export", "out", "-o", "ex")
    assert (done.code, done.out) == (0, "Wrote 5 predicted cells to ex: vllm bench sweep plot ex opens them\n")
    assert "5 of 5 runs can be true." in run("import", "ex").words
    assert run("export", "out", "-f", "serve").out.count("# vLLM cannot serve this") == 5
    assert "no format 'xml'" in one_sentence(run("export", "out", "-f", "xml"))


def test_a_servers_log_becomes_a_profile(run: Run, tmp_path: Path) -> None:
    server = golden_server("stream_plain")
    (tmp_path / "server.log").write_text("\n".join(server.lines))
    write_vidur_csv(server.trace, tmp_path / "requests.csv")
    on = ("--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100")
    seqs, tokens = str(server.config.max_num_seqs), str(server.config.max_num_batched_tokens)
    knobs = ("--max-num-seqs", seqs, "--max-num-batched-tokens", tokens, "--max-model-len", "4096")
    done = run("calibrate-from", "server.log", *on, "-t", "requests.csv", "-o", "p.json", *knobs)
    assert (done.code, done.err) == (0, "")
    assert "338 of 338 iterations replayed alike with 500 requests." in done.words
    assert "fitted law" in done.words
    assert run("replay", *SMALL, "-p", "p.json").code == 0
    assert "holds no line of an iteration" in one_sentence(run("calibrate-from", "rows.csv", *on))
    assert "no device 'H9000'" in one_sentence(run("calibrate-from", "server.log", *on[:2], "--gpu", "H9000"))


def test_words_that_cannot_be_read_are_one_sentence(run: Run) -> None:
    for words, sentence in (
        (("replay", "--max-num-seqs", "1e3"), "Invalid value for '--max-num-seqs': it must be a whole number"),
        (("replay", "--nope"), "No such option: --nope"),
        (("sweep",), "Missing argument"),
    ):
        done = run(*words)
        assert done.code == 2
        assert sentence in done.err
        assert done.err.count("\n") == 1


def test_what_cannot_be_measured_here_is_said_before_pytorch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    for words, sentence in (
        (("calibrate", "--model", "./nowhere"), "There is no folder ./nowhere"),
        (("replay", *SMALL, "--measured", "--model", "/nowhere"), "There is no folder /nowhere"),
        (("dashboard", "nowhere"), "There is no folder nowhere: give one that holds sweeps"),
    ):
        done = _in_a_process(tmp_path, *words)
        assert done.returncode == 1
        first, loaded = done.stderr.splitlines()
        assert sentence in first
        assert "torch" not in loaded


def test_a_model_that_nobody_has_is_refused_within_seconds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("HF_HUB_CACHE", "empty")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    message = one_sentence(run("replay", *SMALL, "--measured", "--model", "some/model"))
    assert "'some/model' is not in the local cache, and the hub cannot be reached" in message


def test_policies_lists_every_policy(run: Run) -> None:
    done = run("policies")
    assert done.code == 0
    for name in ("vllm_v1", "prefill_first", "static_batch"):
        assert name in done.out


def test_trace_describe_prints_what_a_trace_is_like(run: Run) -> None:
    done = run("trace", "describe", "rows.csv")
    assert (done.code, done.err) == (0, "")
    assert "requests 4" in done.words
    assert "mean 25.5" in done.words, "prompts 20, 30, 12 and 40"
    assert run("trace", "describe", "azure-conv-like:50").code == 0


def _verbs() -> list[tuple[str, ...]]:
    names = [command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback]
    inner = [
        command.name or command.callback.__name__ for command in cli.trace_app.registered_commands if command.callback
    ]
    return [(), ("trace",), *((name,) for name in names), *(("trace", name) for name in inner)]


LLAMA_ON_H100 = ("--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100")


def test_a_plan_says_where_the_memory_goes_and_what_it_holds(run: Run) -> None:
    done = run("plan", *LLAMA_ON_H100, "--max-model-len", "8192", "--prompt-tokens", "1000", "--output-tokens", "200")
    assert done.code == 0
    assert "Weights 14.99" in done.words
    assert "1,024 sequences × 128,256 logits; counts" in done.words
    assert "Maximum concurrency for 8,192 tokens per request: 55.00x" in done.words
    assert "Requests of 1,000 + 200 tokens: 375 resident" in done.words
    assert "vLLM's default here (API server): max_num_seqs 1,024, max_num_batched_tokens 8,192" in done.words
    assert done.words.endswith("It fits.")


def test_a_plan_that_does_not_fit_exits_1_and_says_what_to_change(run: Run) -> None:
    done = run("plan", "--model", "meta-llama/Llama-3.1-70B", "--gpu", "H100", "--max-model-len", "8192")
    assert done.code == 1
    assert "It does not work. Nothing is left for KV blocks" in done.words
    assert "raise tensor_parallel_size to 2" in done.words


def test_a_plan_is_json_where_asked(run: Run) -> None:
    done = run("plan", *LLAMA_ON_H100, "--max-num-seqs", "256", "--max-num-batched-tokens", "2048", "--json")
    said = json.loads(done.out)
    assert (said["weight_bytes"], said["kv_bytes_per_token"]) == (2 * (8_030_261_248 + 131_072 * 128), 131_072)
    assert said["num_gpu_blocks"] == said["kv_bytes"] // (16 * 131_072)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--model", "foo", "--gpu", "H100"), "'foo' is no file, not in the built-in table"),
        (("--model", "Llama-3.1-8B", "--gpu", "H1000"), "did you mean"),
        ((*LLAMA_ON_H100, "--tp", "7"), "32 attention heads, which 7 GPUs cannot share evenly"),
        ((*LLAMA_ON_H100, "--entry", "door"), "--entry door: give server or llm_class"),
        (("--model", "rows.csv", "--gpu", "H100"), "is not JSON"),
    ],
)
def test_a_plan_that_cannot_be_is_one_sentence(run: Run, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in one_sentence(run("plan", *words))


def test_a_replay_without_a_profile_is_a_roofline_and_says_so(run: Run, tmp_path: Path) -> None:
    done = run("replay", "--trace", "rows.csv", *LLAMA_ON_H100, "-o", "run")
    assert done.code == 0
    assert done.words.startswith("Predicted (roofline, never validated): meta-llama/Llama-3.1-8B")
    assert "Real servers are slower" in done.words
    head = json.loads((tmp_path / "run" / "run.json").read_text())
    assert head["provenance"]["cost_model"] == "roofline, never validated"
    assert head["num_gpu_blocks"] > 25_000
    assert head["metrics"]["mean_tpot_ms"] == pytest.approx(16.1e9 / 3.35e12 * 1e3, rel=0.02)
    scenario = json.loads((tmp_path / "run" / "scenario.json").read_text())
    assert (scenario["device"], scenario["dtype"], scenario["gpu"]) == ("cuda", "bfloat16", "H100")


def test_a_gpu_whose_model_is_not_known_is_one_sentence_before_any_cell(run: Run) -> None:
    assert "'tiny-llama' is no file" in one_sentence(run("sweep", "s", *GRID, "--gpu", "H100"))


def test_a_gpu_without_a_model_or_a_profile_is_one_sentence(run: Run) -> None:
    assert "--gpu without a profile needs a model" in one_sentence(
        run("replay", "--trace", "rows.csv", "--gpu", "H100")
    )


@pytest.mark.parametrize("words", _verbs(), ids=lambda words: " ".join(words) or "batchtwin")
def test_every_verb_explains_itself(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words, "--help")
    assert (done.code, done.err) == (0, "")
    assert "Usage: " in done.out
    assert " ".join((*words, "[OPTIONS]")) in done.out
    assert run(*words, "-h").out == done.out


def test_the_verbs_are_there() -> None:
    names = {" ".join(words) for words in _verbs()}
    assert {
        "calibrate",
        "replay",
        "sweep",
        "capacity",
        "plan",
        "compare",
        "recommend",
        "policies",
        "report",
        "dashboard",
        "demo",
        "calibrate-from",
        "import",
        "export",
    } <= names
    assert "trace describe" in names


HEAVY = "torch pandas scipy pyarrow streamlit plotly numba transformers"
SCRIPT = f"""
import sys
from batchtwin.cli import main
try:
    main()
except SystemExit as ended:
    code = ended.code or 0
else:
    code = 0
print("loaded:", *sorted(set("{HEAVY}".split()) & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def _in_a_process(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, cwd=folder, check=False
    )


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    done = _in_a_process(tmp_path, "--help")
    assert (done.returncode, done.stderr) == (0, "loaded:\n")
    assert "Usage" in done.stdout


def test_a_predicted_replay_loads_nothing_heavy_and_saving_it_pyarrow_only(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    toy_profile().save(tmp_path / "profile.json")
    done = _in_a_process(tmp_path, "replay", *SMALL, "-p", "profile.json")
    assert (done.returncode, done.stderr) == (0, "loaded:\n")
    saved = _in_a_process(tmp_path, "replay", *SMALL, "-p", "profile.json", "-o", "run")
    assert (saved.returncode, saved.stderr) == (0, "loaded: pyarrow\n")


def test_the_module_runs_as_the_program_does() -> None:
    words = [sys.executable, "-m", "batchtwin.cli", "trace", "describe", "absent"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("batchtwin: 'absent' is neither a file")


def test_a_process_that_fails_exits_with_one_sentence(tmp_path: Path) -> None:
    done = _in_a_process(tmp_path, "replay", "-p", "absent.json")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith("batchtwin: The profile absent.json cannot be read")
    assert done.stderr.splitlines()[1:] == ["loaded:"]


def test_export_trace_writes_what_perfetto_opens(run: Run, tmp_path: Path) -> None:
    run("replay", *SMALL, "-p", "profile.json", "-o", "first")
    done = run("export-trace", "first", "-o", "trace.json")
    assert done.code == 0
    assert "perfetto" in done.out
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert f"{len(events):,} events" in done.out


def test_export_trace_of_a_sweeps_cell_is_its_prediction(run: Run, tmp_path: Path) -> None:
    run("sweep", "s", *SMALL, "-p", "profile.json", "--seqs", "4", "--tokens", "64")
    done = run("export-trace", "s/cells/vllm_v1-seqs4-tokens64", "-o", "trace.json")
    assert done.code == 0, done.err
    document = json.loads((tmp_path / "trace.json").read_text())
    stored = json.loads((tmp_path / "s/cells/vllm_v1-seqs4-tokens64/predicted.json").read_text())
    assert document["otherData"]["kind"] == "predicted"
    assert stored["status"] == "ok", stored["reason"]
    iterations = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(iterations) == stored["metrics"]["num_iterations"]


def test_export_trace_of_no_run_is_one_sentence(run: Run) -> None:
    done = run("export-trace", "nowhere")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "holds no run.json" in done.err

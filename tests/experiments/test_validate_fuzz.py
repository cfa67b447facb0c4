"""Mutated tables, runs and points give a result or one sentence, never anything else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tables import write_layers, write_run

from batchtwin.experiments.points import read_points
from batchtwin.experiments.recorded import read_recorded_run
from batchtwin.experiments.validate import validate
from batchtwin.experiments.validate_points import validate_points
from batchtwin.scheduler.errors import BatchTwinError
from batchtwin.sim.cost.tables.all_reduce import read_all_reduce
from batchtwin.sim.cost.tables.open import open_tables
from batchtwin.sim.cost.tables.pieces import Wanted
from batchtwin.traces.errors import TraceError

SPLICES = [
    b"",
    b"\0",
    b"\n",
    b'"',
    b",",
    b"-",
    b"e9",
    b"\xff",
    b"{",
    b"}",
    b"[" * 9,
    b"NaN",
    b"null",
    b"1e400",
    b"0",
    b"9" * 25,
]
edits = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 9), st.one_of(st.sampled_from(SPLICES), st.binary(max_size=4))),
    min_size=1,
    max_size=3,
)
quiet = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
VIDUR_MLP = (
    "time_stats.emb.median,time_stats.mlp_up_proj.median,n_head,n_kv_head,n_embd,n_expanded_embd,use_gated_mlp,"
    "num_tokens,num_tensor_parallel_workers\n0.1,0.2,4,2,64,128,True,1,1\n0.2,0.3,4,2,64,128,True,128,1\n"
)
VIDUR_ATTENTION = (
    "time_stats.attn_prefill.median,time_stats.attn_decode.median,n_embd,n_q_head,n_kv_head,"
    "num_tensor_parallel_workers,batch_size,prefill_chunk_size,kv_cache_size,is_prefill\n"
    "0.1,,64,4,2,1,1,64,0,True\n,0.1,64,4,2,1,4,0,64,False\n"
)
GEMM = "gemm_dtype,m,n,k,latency\n" + "".join(
    f"bfloat16,{m},{n},{k},0.1\n" for m in (1, 64) for n in (32, 256) for k in (32, 256)
)
CONTEXT = "batch_size,isl,num_heads,num_key_value_heads,head_dim,latency\n1,16,4,2,16,0.1\n1,64,4,2,16,0.2\n"
GENERATION = "batch_size,step,num_heads,num_key_value_heads,head_dim,latency\n1,16,4,2,16,0.1\n8,64,4,2,16,0.2\n"
POINTS = (
    "source,model,gpu,vllm_version,max_num_seqs,max_num_batched_tokens,num_gpu_blocks,input_len,output_len,num_prompts,"
    "request_rate,output_tok_s\na,facebook/opt-125m,A100-80GB,0.9.1,4,2048,200,20,5,6,inf,100\n"
    "b,facebook/opt-125m,A100-80GB,0.9.1,8,2048,200,20,5,6,2,200\n"
)


def mutate(path: Path, changes: list[tuple[float, int, bytes]]) -> None:
    text = path.read_bytes()
    for where, cut, splice in changes:
        at = int(where * len(text))
        text = text[:at] + splice + text[at + cut :]
    path.write_bytes(text)


def run_or_say(action: object, *arguments: object) -> None:
    try:
        action(*arguments)  # type: ignore[operator]
    except (BatchTwinError, TraceError) as error:
        message = str(error)
        assert message
        assert "Traceback" not in message


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("originals")
    layers = write_layers(base / "layers", skew=True)
    write_run(base / "run")
    for name, files in (
        ("vidur", {"mlp.csv": VIDUR_MLP, "attention.csv": VIDUR_ATTENTION}),
        ("kernels", {"gemm.csv": GEMM, "context_attention.csv": CONTEXT, "generation_attention.csv": GENERATION}),
    ):
        (base / name).mkdir()
        for file, text in files.items():
            (base / name / file).write_text(text)
        shutil.copy(layers / "config.json", base / name)
    (base / "all_reduce.csv").write_text("num_gpus,message_size,latency\n2,64,0.01\n2,4096,0.02\n")
    (base / "points.csv").write_text(POINTS)
    return base


def test_the_originals_can_be_read(originals: Path) -> None:
    wanted = Wanted(model=str(originals / "layers"))
    for name in ("layers", "vidur", "kernels"):
        assert open_tables(originals / name, wanted).cost_model.dense(1) > 0
    assert validate(originals / "layers", originals / "run").rows
    assert all(p.metrics for p in validate_points(originals / "points.csv").predicted)


@pytest.mark.parametrize(
    "file",
    [
        "layers/tp1/dense.csv",
        "layers/tp1/attention.csv",
        "layers/tp1/per_sequence.csv",
        "layers/tp1/skew.csv",
        "layers/meta.yaml",
        "layers/config.json",
        "vidur/mlp.csv",
        "vidur/attention.csv",
        "kernels/gemm.csv",
        "kernels/context_attention.csv",
        "kernels/generation_attention.csv",
    ],
)
def test_mutated_tables(originals: Path, tmp_path_factory: pytest.TempPathFactory, file: str) -> None:
    folder = file.split("/", maxsplit=1)[0]
    place = tmp_path_factory.mktemp("mutated")

    @quiet
    @given(edits)
    def check(changes: list[tuple[float, int, bytes]]) -> None:
        shutil.copytree(originals / folder, place / folder, dirs_exist_ok=True)
        mutate(place / file, changes)
        run_or_say(open_tables, place / folder, Wanted(model=str(place / folder)))

    check()


@pytest.mark.parametrize("file", ["requests.jsonl", "meta.json", "timeseries.csv"])
def test_mutated_runs(originals: Path, tmp_path_factory: pytest.TempPathFactory, file: str) -> None:
    place = tmp_path_factory.mktemp("mutated")

    @quiet
    @given(edits)
    def check(changes: list[tuple[float, int, bytes]]) -> None:
        shutil.copytree(originals / "run", place / "run", dirs_exist_ok=True)
        mutate(place / "run" / file, changes)
        run_or_say(read_recorded_run, place / "run")

    check()


@quiet
@given(edits)
def test_mutated_points(
    originals: Path, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[float, int, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("points") / "points.csv"
    shutil.copy(originals / "points.csv", path)
    mutate(path, changes)
    run_or_say(read_points, path)


@quiet
@given(edits)
def test_mutated_all_reduces(
    originals: Path, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[float, int, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("all_reduce") / "all_reduce.csv"
    shutil.copy(originals / "all_reduce.csv", path)
    mutate(path, changes)
    run_or_say(read_all_reduce, path, 2, 64)

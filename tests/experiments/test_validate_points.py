"""Published points: names of columns, what was assumed, errors, shapes, and figures that cannot be true."""

from __future__ import annotations

from pathlib import Path

import pytest
from tables import write_layers
from typer.testing import CliRunner

from batchtwin.cli import app
from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.point_checks import implausible, shapes
from batchtwin.experiments.points import ALIASES, Point, read_points
from batchtwin.experiments.validate_any import PUBLISHED
from batchtwin.experiments.validate_points import validate_points

HEAD = "model,gpu,vllm_version,max_num_seqs,max_num_batched_tokens,num_gpu_blocks,input_len,output_len,num_prompts"
BASE = "meta-llama/Llama-2-7b-hf,A100-80GB,0.6.0"


def write(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_columns_are_found_under_their_other_names(tmp_path: Path) -> None:
    header = "Model ID,GPU Name,Seqs,Token Budget,ISL,OSL,Output Throughput,TTFT_s,colour"
    points = read_points(write(tmp_path / "p.csv", header, 'm,g,8,512,100,10,"1,234.5",0.25,red'))
    (point,) = points.points
    assert (point.model, point.gpu, point.max_num_seqs, point.max_num_batched_tokens) == ("m", "g", 8, 512)
    assert (point.input_tokens, point.output_tokens, point.output_tok_s, point.mean_ttft_ms) == (100, 10, 1234.5, 250)
    assert points.columns["colour"] == "not read"
    assert points.columns["TTFT_s"] == "mean_ttft_ms (× 1000)"


def test_no_alias_stands_for_two_fields() -> None:
    names = [*ALIASES, *(alias for aliases in ALIASES.values() for alias in aliases)]
    assert len(names) == len(set(names))


def test_a_row_that_cannot_be_read_is_dropped_with_the_reason(tmp_path: Path) -> None:
    points = read_points(write(tmp_path / "p.csv", "model,seqs", "a,8", "b,eight", "c,-", "d,2.5"))
    assert [p.model for p in points.points] == ["a", "c"]
    assert [reason.split(":")[0] for reason in points.dropped] == ["line 3", "line 5"]


@pytest.mark.parametrize("text", ["", "colour\nred\n", "model\n", "a,b\n1\n", "\xff\xfe\x00"])
def test_no_file_of_points_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ExperimentError):
        read_points(path)


def test_throughput_saturates_and_the_cap_stops_mattering_once_blocks_run_out(tmp_path: Path) -> None:
    """A pool for about 40 requests of 640 tokens: beyond that the cap changes nothing, and requests are preempted."""
    rows = [
        f"{BASE},{seqs},4096,1600,512,128,150,{out}"
        for seqs, out in ((8, 500), (32, 1200), (64, 1400), (128, 1400), (256, 1400))
    ]
    done = validate_points(write(tmp_path / "p.csv", HEAD + ",output_tok_s", *rows))
    throughputs = [p.metrics["output_throughput"] for p in done.predicted if p.metrics]
    assert throughputs[0] < throughputs[1] < 1.05 * throughputs[2]
    checks = {shape.check.split(",")[0].split(" from")[0]: shape for shape in shapes(done.predicted)}
    assert checks["throughput within 5 % of its best"].agrees
    assert checks["preemption"].predicted in ("64", "128")
    assert checks["spread of throughput"].agrees


def test_a_point_that_cannot_be_predicted_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.csv", HEAD, "no/such,A100-80GB,,8,512,,10,10,5", f"{BASE},8,4096,900,10,10,5", ",,,8,,,,,"
    )
    first, second, third = validate_points(path).predicted
    assert "no/such" in first.failed
    assert second.metrics is not None
    assert "which model" in third.failed


def test_a_rows_own_tables_are_used(tmp_path: Path) -> None:
    write_layers(tmp_path / "toy")
    header = "profile,max_num_seqs,max_num_batched_tokens,num_gpu_blocks,input_len,output_len,num_prompts,model"
    path = write(tmp_path / "p.csv", header, f"toy,4,64,200,20,10,8,{tmp_path / 'toy'}", "missing,4,64,200,20,10,8,x")
    ours, missing = validate_points(path).predicted
    assert ours.metrics is not None
    assert ours.metrics["completed"] == 8
    assert "not a folder" in missing.failed


def test_points_without_chunked_prefill_are_of_an_engine_that_puts_prompts_first(tmp_path: Path) -> None:
    row = "meta-llama/Llama-2-7b-hf,A100-80GB,,16,4096,1600,300,20,40"
    path = write(tmp_path / "p.csv", HEAD + ",chunked", row + ",no", row + ",yes")
    without, chunked = validate_points(path).predicted
    for point in (without, chunked):  # one source is one engine
        assert any("vLLM before V1" in word for word in point.assumed)
        assert any("2024 engine" in word for word in point.assumed)


def test_littles_law_flags_a_throughput_of_all_tokens() -> None:
    """S53: 11,198 tok/s of 512 output tokens at 100 in flight needs a mean latency of at most 4.57 s beside 15.4."""
    flagged = implausible(Point(1, output_tok_s=11198, output_tokens=512, concurrency=100, p99_e2el_ms=15400))
    assert flagged is not None
    assert "4.57 s" in flagged
    assert implausible(Point(1, output_tok_s=1000, output_tokens=500, concurrency=100, mean_e2el_ms=40000)) is None
    assert implausible(Point(1, output_tok_s=1000, output_tokens=500, concurrency=10, mean_e2el_ms=40000)) is not None


def test_the_projects_own_points_all_carry_their_source() -> None:
    points = read_points(PUBLISHED)
    assert not points.dropped
    assert all(point.source for point in points.points)
    assert "not read" not in points.columns.values()


def test_the_command_prints_errors_and_shapes(tmp_path: Path) -> None:
    rows = [f"{BASE},{seqs},4096,900,64,16,20,{100 * seqs}" for seqs in (2, 4, 8)]
    path = write(tmp_path / "p.csv", HEAD + ",output_tok_s", *rows)
    result = CliRunner().invoke(app, ["validate", "--run", str(path), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "median error" in result.output
    assert "Shapes" in result.output
    assert (tmp_path / "out" / "points.json").is_file()

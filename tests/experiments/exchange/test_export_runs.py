"""What we write, read back, and the commands that set a server up."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from profiles import toy_profile
from sweeps import measured_stand_in, tiny_scenario

from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.exchange.bench_serve import PLAIN_METRICS, SUMMARY_METRIC
from batchtwin.experiments.exchange.export_runs import export
from batchtwin.experiments.exchange.import_runs import check_runs, import_runs
from batchtwin.experiments.exchange.serve_command import serve_command
from batchtwin.experiments.grid import Cell, CellResult
from batchtwin.experiments.replay import predict
from batchtwin.experiments.sweep import Sweep, sweep
from batchtwin.sim.cost.forward_tables import read_fpm
from batchtwin.traces import read_trace


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("sweep") / "s"
    scenario = tiny_scenario(trace={"offline": True})
    return sweep(folder, scenario, toy_profile(), max_num_seqs=[2, 4], max_num_batched_tokens=[64])


def test_a_sweep_written_for_vllm_reads_back_as_the_same_numbers(done: Sweep, tmp_path: Path) -> None:
    said = list(export(done.folder, tmp_path / "ex", "bench"))
    assert said == [f"Wrote 3 predicted cells to {tmp_path / 'ex'}: vllm bench sweep plot {tmp_path / 'ex'} opens them"]
    back = {
        (item.row.max_num_seqs, item.row.max_num_batched_tokens): item for item in check_runs([tmp_path / "ex"]).rows
    }
    for result in done.feasible():
        item = back[result.cell.max_num_seqs, result.cell.max_num_batched_tokens]
        assert item.flags == ()
        shared = [name for name in result.metrics if name in PLAIN_METRICS or SUMMARY_METRIC.fullmatch(name)]
        assert len(shared) > 25
        assert {name: item.row.metrics[name] for name in shared} == {name: result.metrics[name] for name in shared}


def test_vllms_own_plot_finds_what_it_looks_for(done: Sweep, tmp_path: Path) -> None:
    """It reads every ``summary.json`` below the folder as a list of flat records, and plots one metric over another."""
    list(export(done.folder, tmp_path / "ex", "bench"))
    records = [record for path in (tmp_path / "ex").rglob("**/summary.json") for record in json.loads(path.read_text())]
    assert len(records) == 3
    for record in records:
        assert {"max_num_seqs", "max_num_batched_tokens", "request_throughput", "p99_e2el_ms", "run_number"} <= set(
            record
        )
        assert record["backend"] == "batchtwin-predicted", "nobody may take it for a measurement"
        assert not any(isinstance(value, list | dict) for value in record.values())
    with (tmp_path / "ex" / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sorted(float(row["output_throughput"]) for row in rows) == sorted(r["output_throughput"] for r in records)


def test_the_summary_csv_alone_is_read_too(done: Sweep, tmp_path: Path) -> None:
    list(export(done.folder, tmp_path / "ex", "bench"))
    assert len(check_runs([tmp_path / "ex" / "summary.csv"]).rows) == 3


def test_a_run_written_with_details_is_predicted_alike_when_it_comes_back(done: Sweep, tmp_path: Path) -> None:
    """Export → import: the same requests at the same times, so the same prediction, to the last bit but rounding."""
    scenario = tiny_scenario(max_num_batched_tokens=64, num_gpu_blocks=200)
    run = predict(scenario, toy_profile())
    run.save(tmp_path / "run")
    list(export(tmp_path / "run", tmp_path / "run.json", "bench"))
    (made,) = import_runs([tmp_path / "run.json"], tmp_path / "out", toy_profile()).sweeps
    (cell,) = made.measured_cells()
    again = next(result for result in made.feasible() if result.cell == cell)
    for name in ("output_throughput", "mean_ttft_ms", "p99_itl_ms", "mean_e2el_ms", "num_iterations"):
        assert again.metrics[name] == pytest.approx(run.metrics[name], rel=1e-9)
        if name != "num_iterations":
            assert made.measured_metrics(cell)[0][name] == pytest.approx(run.metrics[name], rel=1e-9)


def test_the_trace_goes_to_vidur(done: Sweep, tmp_path: Path) -> None:
    list(export(done.folder, tmp_path / "t.csv", "vidur"))
    assert read_trace(tmp_path / "t.csv") == done.spec.scenario.trace.load()


def test_iterations_of_a_run_come_back_from_an_fpm_table(tmp_path: Path) -> None:
    run = measured_stand_in(tiny_scenario(max_num_batched_tokens=64), toy_profile())
    run.save(tmp_path / "run")
    (said,) = export(tmp_path / "run", tmp_path / "fpm.csv", "fpm")
    found = read_fpm(tmp_path / "fpm.csv")
    its = run.records.iterations
    alone = (its["num_decodes"] > 0) ^ (its["num_prefills"] > 0)
    assert said == f"Wrote {alone.sum()} rows to {tmp_path / 'fpm.csv'}"
    np.testing.assert_allclose(found.seconds, its["device_s"][alone])
    np.testing.assert_array_equal(found.features.num_decode_kv_tokens, its["num_decode_kv_tokens"][alone])
    work = its["prefill_attention_work"][alone]
    np.testing.assert_allclose(found.features.prefill_attention_work, work, rtol=0.02, atol=its["num_tokens"].max())


def test_a_command_has_every_knob_and_the_switches_that_vllm_sets_otherwise() -> None:
    scenario = tiny_scenario(model="meta-llama/Llama-3.1-8B", dtype="bfloat16", async_scheduling=True, watermark=0.01)
    result = CellResult(Cell("vllm_v1", 32, 512), "ok", "", 1000, {}, {})
    assert serve_command(scenario, result) == (
        "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 32 --max-num-batched-tokens 512 --max-model-len 256 "
        "--dtype bfloat16 --block-size 16 --num-gpu-blocks-override 1000 --no-enable-prefix-caching --watermark 0.01"
    )
    urgent = serve_command(scenario, result._replace(cell=Cell("priority", 32, 512)))
    assert urgent.endswith("--scheduling-policy priority")
    spread = scenario.with_(tensor_parallel_size=4, enforce_eager=True, kv_cache_dtype="fp8", quantization="awq")
    shared = "--enforce-eager --tensor-parallel-size 4 --kv-cache-dtype fp8 --quantization awq"
    assert shared in serve_command(spread, result)


def test_what_vllm_cannot_serve_is_a_comment_and_no_command(done: Sweep) -> None:
    result = CellResult(Cell("orca", 4, 512), "ok", "", 1000, {}, {})
    assert serve_command(tiny_scenario(), result).startswith(
        "# vLLM cannot serve this: tiny-llama is a preset of random weights; it has no policy orca. The flags"
    )
    for line in export(done.folder, None, "serve"):
        assert line.startswith("# vLLM cannot serve this: tiny-llama")


def test_a_packaged_checkpoint_is_served_from_the_hub_and_a_shape_alone_from_nowhere() -> None:
    result = CellResult(Cell("vllm_v1", 4, 64), "ok", "", 200, {}, {})
    said = serve_command(tiny_scenario(model="smollm2"), result)
    assert said.startswith("vllm serve HuggingFaceTB/SmolLM2-135M-Instruct --max-num-seqs 4 ")
    shaped = serve_command(tiny_scenario(model="llama-3.1-8b-shaped"), result)
    assert shaped.startswith("# vLLM cannot serve this: llama-3.1-8b-shaped is a preset of random weights")


def test_what_cannot_be_exported_is_one_sentence(done: Sweep, tmp_path: Path) -> None:
    for form, place, sentence in (
        ("xml", None, "There is no format 'xml'; known are bench, vidur, fpm, serve"),
        ("bench", None, "--format bench needs a place"),
        ("fpm", tmp_path / "x", "is a sweep, but an FPM table is of one run"),
    ):
        with pytest.raises(ExperimentError, match=sentence):
            list(export(done.folder, place, form))
    for form in ("bench", "vidur", "fpm"):
        with pytest.raises(ExperimentError, match=r"holds neither|holds no run\.json"):
            list(export(tmp_path, tmp_path / "x", form))
    with pytest.raises(ExperimentError, match="needs a sweep's folder"):
        list(export(tmp_path, None, "serve"))

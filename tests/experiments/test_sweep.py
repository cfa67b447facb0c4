"""Sweeps: infeasible cells, rule 7 over workers, interruption, a full disk, resumption, and what is refused."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from profiles import toy_profile
from sweeps import biased, bytes_of, measured_stand_in, tiny_scenario

from batchtwin.experiments import cells as cells_module
from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.recommend import recommend
from batchtwin.experiments.replay import predict
from batchtwin.experiments.scenario import Scenario
from batchtwin.experiments.sweep import Sweep, open_sweep, sweep
from batchtwin.scheduler import UnknownPolicy
from batchtwin.sim.cost.profile import ProfileError
from batchtwin.traces import TraceError

PROFILE = toy_profile()
SEQS, TOKENS = (2, 4), (32, 64)
DEFAULT = Cell("vllm_v1", 128, 2048)
KEYS = {"vllm_v1-seqs2-tokens32", "vllm_v1-seqs2-tokens64", "vllm_v1-seqs4-tokens32", "vllm_v1-seqs4-tokens64"} | {
    DEFAULT.key
}


def run(folder: Path, scenario: Scenario | None = None, **options: Any) -> Sweep:
    given = {"max_num_seqs": SEQS, "max_num_batched_tokens": TOKENS, **options}
    return sweep(folder, scenario or tiny_scenario(), given.pop("profile", PROFILE), **given)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("reference") / "sweep"
    run(folder)
    return bytes_of(folder)


@pytest.fixture
def predictions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, str]]:
    """Grows by (seqs, tokens, cost model) with every prediction that a sweep makes."""
    made: list[tuple[int, int, str]] = []

    def counted(scenario: Scenario, profile: Any, cost_model: Any = None) -> Any:
        name = cost_model.name if cost_model is not None else "fitted"
        made.append((scenario.max_num_seqs, scenario.max_num_batched_tokens, name))
        return predict(scenario, profile, cost_model)

    monkeypatch.setattr(cells_module, "predict", counted)
    return made


def test_a_sweep_leaves_its_question_its_profile_and_a_file_for_every_cell(reference: dict[str, bytes]) -> None:
    cells = {f"cells/{key}/predicted.json" for key in KEYS}
    assert set(reference) == {"sweep.json", "profile.json"} | cells


def test_a_cell_holds_what_a_replay_of_it_predicts(tmp_path: Path) -> None:
    results = {result.cell: result for result in run(tmp_path / "sweep").predicted()}
    assert list(results) == [Cell("vllm_v1", s, t) for s in SEQS for t in TOKENS] + [DEFAULT]
    for cell, result in results.items():
        scenario = cell.of(tiny_scenario())
        assert result.status == "ok"
        replayed = predict(scenario, PROFILE).metrics
        assert {name: result.metrics[name] for name in replayed} == pytest.approx(replayed, nan_ok=True)
        assert set(result.metrics) - set(replayed) == {"capacity_request_throughput", "offered_rho"}
        assert set(result.nulls) == {"constant", "roofline_affine"}
        constant = predict(scenario, PROFILE, PROFILE.null("constant")).metrics
        assert result.nulls["constant"] == pytest.approx(constant, nan_ok=True)


def test_rule_7_two_workers_write_the_same_bytes_as_one(reference: dict[str, bytes], tmp_path: Path) -> None:
    run(tmp_path / "sweep", workers=2)
    assert bytes_of(tmp_path / "sweep") == reference


def test_the_order_of_the_values_does_not_matter(reference: dict[str, bytes], tmp_path: Path) -> None:
    run(tmp_path / "sweep", max_num_seqs=(4, 2, 4), max_num_batched_tokens=[64, 32], policies=["vllm_v1", "vllm_v1"])
    assert bytes_of(tmp_path / "sweep") == reference


def test_an_infeasible_cell_is_marked_with_its_reason_and_the_sweep_goes_on(tmp_path: Path) -> None:
    """More sequences than tokens a step contradict each other; static batches of prompts of up to 82 tokens (of 256
    with padding) do not fit 32 slots."""
    done = run(tmp_path / "s", max_num_seqs=(2, 64), policies=["vllm_v1", "static_batch"])
    reasons = {result.cell: result.reason for result in done.predicted() if result.status == "infeasible"}
    assert "less than max_num_seqs (64)" in reasons[Cell("vllm_v1", 64, 32)]
    assert "slots, more than max_num_batched_tokens (32)" in reasons[Cell("static_batch", 2, 32)]
    feasible = {result.cell for result in done.feasible()}
    assert {Cell("vllm_v1", 2, 32), Cell("vllm_v1", 64, 64), DEFAULT} <= feasible
    assert feasible.isdisjoint(reasons)
    assert len(feasible) + len(reasons) == len(done.spec.cells)
    assert all("\n" not in reason for reason in reasons.values())


def test_a_memory_budget_makes_small_pools_infeasible_cell_by_cell(tmp_path: Path) -> None:
    """17 MiB: 2,048 tokens of activations take 16 MiB and 128 samplers 4 MiB, so vLLM's default has nothing left."""
    scenario = tiny_scenario(num_gpu_blocks=None, kv_memory_bytes=17 * 2**20)
    done = run(tmp_path / "s", scenario)
    results = {result.cell: result for result in done.predicted()}
    assert "leaves no KV block" in results[DEFAULT].reason
    assert results[Cell("vllm_v1", 2, 32)].num_gpu_blocks == (17 * 2**20 - 32 * 8192 - 2 * 32768) // 65536


def test_the_best_cell_is_best_in_the_objective_and_ties_go_to_the_smaller_knobs(tmp_path: Path) -> None:
    done = run(tmp_path / "s", tiny_scenario(trace={"num_requests": 1}))
    values = {
        result.metrics["output_throughput"] for result in done.feasible() if result.cell.max_num_batched_tokens > 32
    }
    assert len(values) == 1, "one request is served alike whatever the knobs"
    assert done.best("vllm_v1").cell == Cell("vllm_v1", 2, 32)
    assert done.best("static_batch") is None


def test_only_what_is_missing_is_computed_again_and_gives_the_same_bytes(
    reference: dict[str, bytes], tmp_path: Path, predictions: list[tuple[int, int, str]]
) -> None:
    folder = tmp_path / "sweep"
    run(folder)
    assert len(predictions) == 5 * 3
    predictions.clear()
    run(folder)
    assert predictions == []
    (folder / "cells" / "vllm_v1-seqs4-tokens32" / "predicted.json").unlink()
    run(folder)
    assert predictions == [(4, 32, "fitted"), (4, 32, "constant"), (4, 32, "roofline_affine")]
    assert bytes_of(folder) == reference


def stop_after(num_cells: int) -> Callable[[str, int, int], None]:
    """A progress callback that interrupts as Ctrl-C would."""

    def progress(what: str, done: int, total: int) -> None:
        assert (what, total) == ("predicting", 5)
        if done == num_cells:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_sweep_keeps_finished_cells_and_resumes_to_the_same_bytes(
    reference: dict[str, bytes], tmp_path: Path, predictions: list[tuple[int, int, str]], workers: int
) -> None:
    folder = tmp_path / "sweep"
    with pytest.raises(KeyboardInterrupt):
        run(folder, progress=stop_after(2), workers=workers)
    kept = {name: content for name, content in bytes_of(folder).items() if name.endswith("predicted.json")}
    assert len(kept) == 2
    assert kept.items() <= reference.items()
    assert len(open_sweep(folder).predicted()) == 2
    predictions.clear()
    run(folder)
    assert len(predictions) == 3 * 3
    assert bytes_of(folder) == reference


def test_a_disk_that_fills_is_one_sentence_and_keeps_finished_cells(
    reference: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sweep"
    real, written = Path.write_text, []

    def fills(path: Path, *args: Any, **kwargs: Any) -> int:
        if path.name.startswith("predicted"):
            written.append(path)
            if len(written) == 3:
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", fills)
        with pytest.raises(ExperimentError, match=r"cannot be written \(No space left on device\)") as caught:
            run(folder)
    assert "everything finished before is kept" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(open_sweep(folder).predicted()) == 2
    run(folder)
    assert bytes_of(folder) == reference


@pytest.mark.parametrize("name", ["sweep.json", "profile.json"])
def test_a_disk_that_is_full_from_the_start_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = Path.write_text

    def full(path: Path, *args: Any, **kwargs: Any) -> int:
        if path.name == f"{name}.part":
            real(path, "")  # what a full disk leaves
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises((ExperimentError, ProfileError), match=r"cannot be written \(No space left on device\)"):
            run(tmp_path / "sweep")
    assert len(run(tmp_path / "sweep").predicted()) == 5


OTHER_SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "scenario": ({"scenario": tiny_scenario(seed=5)}, "scenario.seed"),
    "trace": ({"scenario": tiny_scenario(trace={"rate_scale": 3.0})}, "scenario.trace.rate_scale"),
    "seqs": ({"max_num_seqs": (2, 8)}, "max_num_seqs"),
    "tokens": ({"max_num_batched_tokens": (32,)}, "max_num_batched_tokens"),
    "policies": ({"policies": ["prefill_first"]}, "policies"),
    "objective": ({"objective": "request_throughput"}, "objective"),
    "profile": ({"profile": biased(PROFILE, 2.0)}, "profile_hash"),
}


@pytest.mark.parametrize(("options", "field"), OTHER_SPECS.values(), ids=OTHER_SPECS.keys())
def test_another_sweep_into_the_same_folder_is_refused_and_the_field_named(
    reference: dict[str, bytes], tmp_path: Path, options: dict[str, Any], field: str
) -> None:
    folder = tmp_path / "sweep"
    run(folder)
    with pytest.raises(ExperimentError, match=rf"holds another sweep \({field} differs\): choose another folder"):
        run(folder, **options)
    assert bytes_of(folder) == reference


def test_a_trace_file_that_changed_is_another_sweep(tmp_path: Path) -> None:
    rows = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,20,5\n0.1,30,4\n"
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text(rows)
    new.write_text(rows + "0.2,9,9\n")
    run(tmp_path / "s", tiny_scenario(trace={"source": str(old)}))
    raw = json.loads((tmp_path / "s" / "sweep.json").read_text())
    raw["scenario"]["trace"]["source"] = str(new)  # as if the old file now held the new rows
    (tmp_path / "s" / "sweep.json").write_text(json.dumps(raw))
    with pytest.raises(ExperimentError, match=r"\(trace_digest differs\)"):
        run(tmp_path / "s", tiny_scenario(trace={"source": str(new)}))


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an unknown policy": (
        {"policies": ["vllm_v1", "fastest"]},
        UnknownPolicy,
        "no policy 'fastest'; known are .*vllm_v1",
    ),
    "an unknown objective": ({"objective": "speed"}, ExperimentError, "no objective 'speed'; known are output_through"),
    "a latency to maximise": ({"objective": "mean_ttft_ms"}, ExperimentError, "no objective 'mean_ttft_ms'"),
    "goodput without SLOs": ({"objective": "request_goodput"}, ExperimentError, "request_goodput needs an SLO"),
    "no workers": ({"workers": 0}, ExperimentError, "workers is 0, but it must be at least 1"),
    "no repeats": ({"repeats": 0}, ExperimentError, "repeats is 0"),
    "nothing to measure": ({"measure": 0}, ExperimentError, "measure is 0"),
    "a profile of another model": ({"scenario": tiny_scenario(model="other")}, ProfileError, "'tiny-llama'.*'other'"),
    "a missing profile": ({"profile": "absent.json"}, ProfileError, "absent.json cannot be read"),
    "a trace that is none": ({"scenario": tiny_scenario(trace={"source": "absent.csv"})}, TraceError, "neither a file"),
}


@pytest.mark.parametrize(("options", "error", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_a_sweep_that_makes_no_sense_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        run(tmp_path / "sweep", **options)
    assert not (tmp_path / "sweep").exists()


def test_with_slos_goodput_is_the_objective(tmp_path: Path) -> None:
    done = run(tmp_path / "s", tiny_scenario(slo={"ttft_ms": 30.0}), max_num_seqs=(2,), max_num_batched_tokens=(64,))
    assert done.spec.objective == "request_goodput"
    assert all("request_goodput" in result.metrics for result in done.feasible())


BROKEN: dict[str, tuple[str, bytes | None, str]] = {
    "no sweep": ("sweep.json", None, "holds no sweep.json: it is not a folder of results"),
    "a sweep cut short": ("sweep.json", b'{"format": 1, "scen', "cannot be read"),
    "a sweep that lacks a field": ("sweep.json", b'{"format": 1}', "is broken: field required"),
    "an older version": ("sweep.json", b'{"format": 0}', "results format 0, this version reads format 1"),
    "a newer version": ("sweep.json", b'{"format": 2}', "results format 2, this version reads format 1"),
    "no profile": ("profile.json", None, "profile.json cannot be read"),
    "a broken profile": ("profile.json", b"{}", "is not a profile of this version"),
    "a cell cut short": (f"cells/{DEFAULT.key}/predicted.json", b'{"format": 1, "me', "cannot be read"),
    "an empty cell": (f"cells/{DEFAULT.key}/predicted.json", b'{"format": 1}', "lacks cell"),
    "a cell of another version": (f"cells/{DEFAULT.key}/predicted.json", b'{"format": 7}', "results format 7"),
}


@pytest.mark.parametrize(("name", "content", "sentence"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_folder_is_one_sentence(tmp_path: Path, name: str, content: bytes | None, sentence: str) -> None:
    folder = tmp_path / "sweep"
    run(folder)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises((ExperimentError, ProfileError), match=sentence) as caught:
        open_sweep(folder).predicted()
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_measured_runs_are_read_in_order_of_repeat_and_unfinished_ones_are_not(tmp_path: Path) -> None:
    """Runs that stand in for measured ones; ``.part`` is what an interruption leaves."""
    done = run(tmp_path / "sweep")
    cell = Cell("vllm_v1", 2, 32)
    folder = tmp_path / "sweep" / "cells" / cell.key
    for repeat in (10, 0, 2):
        measured_stand_in(cell.of(tiny_scenario()), PROFILE, seed=repeat).save(folder / f"measured-{repeat}")
    measured_stand_in(cell.of(tiny_scenario()), PROFILE, seed=9).save(folder / "measured-1.part")
    expected = [measured_stand_in(cell.of(tiny_scenario()), PROFILE, seed=s).metrics["duration"] for s in (0, 2, 10)]
    assert [found.metrics["duration"] for found in done.measured(cell)] == expected
    assert [metrics["duration"] for metrics in done.measured_metrics(cell)] == expected
    assert done.measured_cells() == [cell]
    (folder / "measured-0" / "run.json").write_text('{"format": 1}')
    with pytest.raises(ExperimentError, match="lacks metrics"):
        done.measured_metrics(cell)


def test_which_cells_would_be_measured(tmp_path: Path) -> None:
    """Corners of the grid, vLLM's default, the predicted best and the cell that would be recommended."""
    done = run(tmp_path / "sweep", max_num_seqs=(2, 3, 4), max_num_batched_tokens=(32, 48, 64))
    corners = {Cell("vllm_v1", s, t) for s in (2, 4) for t in (32, 64)}
    assert set(done.to_measure(1)) == corners | {DEFAULT, done.best("vllm_v1").cell, recommend(done).cell}
    assert len(done.to_measure(8)) == 8
    assert done.to_measure(None) == [result.cell for result in done.feasible()]

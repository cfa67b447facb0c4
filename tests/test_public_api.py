"""The public names, and the few lines with which they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from profiles import toy_profile

import batchtwin


@pytest.mark.parametrize("name", [name for name in batchtwin.__all__ if name != "calibrate"])
def test_a_public_name_is_there(name: str) -> None:
    found = getattr(batchtwin, name)
    assert found.__name__ == name
    assert found.__module__.startswith("batchtwin.")
    assert found.__doc__


def test_calibrate_is_where_it_is_looked_for() -> None:
    """Read, not imported: that would load PyTorch."""
    path = Path(batchtwin.__file__).parent / "experiments" / "calibrate.py"
    functions = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    assert "calibrate" in functions
    assert "calibrate" in batchtwin.__all__


@pytest.mark.full
def test_calibrate_is_there_where_the_executor_is() -> None:
    """In a process of its own: it loads PyTorch."""
    pytest.importorskip("torch", reason="the executor extra is not installed")
    script = "import batchtwin; print(batchtwin.calibrate.__module__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "batchtwin.experiments.calibrate"


def test_names_are_sorted_and_unique() -> None:
    assert sorted(set(batchtwin.__all__)) == batchtwin.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'batchtwin' has no attribute 'forecast'"):
        _ = batchtwin.forecast
    with pytest.raises(ImportError, match="forecast"):
        exec("from batchtwin import forecast")


def test_importing_batchtwin_loads_nothing_but_itself() -> None:
    script = (
        "import sys, batchtwin; print(*sorted({'numpy', 'simpy', 'pandas', 'torch', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_replay_is_one_line() -> None:
    from batchtwin import TraceSpec, replay

    run = replay(trace=TraceSpec(source="azure-conv-like:20", prompt_scale=0.1), profile=toy_profile(), max_num_seqs=8)
    assert run.metrics["completed"] == 20
    assert run.metrics["mean_ttft_ms"] > 0


def test_a_sweep_its_recommendation_and_its_way_back_from_disk_are_three(tmp_path: Path) -> None:
    from batchtwin import Scenario, TraceSpec, open_sweep, recommend, sweep

    scenario = Scenario(trace=TraceSpec(source="azure-conv-like:20", prompt_scale=0.1, output_scale=0.1))
    done = sweep(tmp_path / "s", scenario, toy_profile(), max_num_seqs=[4, 8], max_num_batched_tokens=[64])
    assert recommend(done).sentence.startswith("Choose max_num_seqs=")
    assert open_sweep(tmp_path / "s").predicted() == done.predicted()


def test_a_plan_is_one_line() -> None:
    from batchtwin import plan

    assert plan("meta-llama/Llama-3.1-8B", "H100", max_num_seqs=64, max_model_len=8192).max_concurrency > 50


def test_compare_says_what_is_missing_before_anything_is_measured(tmp_path: Path) -> None:
    from batchtwin import Scenario, TraceSpec, compare, sweep
    from batchtwin.scheduler import BatchTwinError

    scenario = Scenario(trace=TraceSpec(source="azure-conv-like:5", prompt_scale=0.1))
    done = sweep(tmp_path / "s", scenario, toy_profile(), max_num_seqs=[4], max_num_batched_tokens=[64])
    with pytest.raises(BatchTwinError, match="run the sweep with --measure"):
        compare(done)


def test_a_run_is_saved_and_loaded_in_two(tmp_path: Path) -> None:
    from batchtwin import load_run, replay

    run = replay(trace={"source": "azure-conv-like:5", "prompt_scale": 0.1}, profile=toy_profile())
    run.save(tmp_path / "run")
    assert load_run(tmp_path / "run").metrics == pytest.approx(run.metrics, nan_ok=True)


def test_a_trace_is_loaded_by_name_and_handed_to_a_scheduler_of_ones_own() -> None:
    from batchtwin import Scheduler, SchedulerConfig, load_trace

    scheduler = Scheduler(SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256, max_model_len=8192))
    for request in load_trace("azure-conv-like:3").requests():
        scheduler.add(request)
    assert scheduler.schedule().num_tokens == 256

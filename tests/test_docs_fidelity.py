"""docs/fidelity.md says what the committed results say, and what a newer result would say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_fidelity", ROOT / "benchmarks" / "write_fidelity.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def result() -> dict[str, Any]:
    return dict(json.loads((ROOT / "benchmarks" / "results" / "fidelity_cpu.json").read_text()))


def test_the_committed_document_is_what_the_committed_results_give(writer: ModuleType) -> None:
    found = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    assert found == writer.document(), "run python benchmarks/write_fidelity.py"


def test_the_readmes_figures_are_those_of_the_results(result: dict[str, Any]) -> None:
    throughput = result["summary"]["output_throughput"]
    said = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"within {throughput['median_error_percent']:.1f} % (median)" in said
    assert f"{throughput['worst_error_percent']:.1f} % (worst)" in said


def test_a_missed_target_is_said_with_by_how_much(writer: ModuleType, result: dict[str, Any], tmp_path: Path) -> None:
    result["summary"]["mean_tpot_ms"]["median_error_percent"] = 11.5
    (tmp_path / "fidelity_x.json").write_text(json.dumps(result))
    assert "| TPOT mean, median | 8.0 % | 11.5 % | missed by 3.5 points |" in writer.document(tmp_path)


def test_coverage_split_and_cancelling_errors_are_shown_where_a_result_has_them(
    writer: ModuleType, result: dict[str, Any], tmp_path: Path
) -> None:
    """Two cells: rest +1 and +3 of 100 make +2.0 %; TTFT and TPOT cancel in the second only."""
    names = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "p99_itl_ms", "mean_e2el_ms")
    parts = [{"rest": 1, "cost": -4, "schedule": 0, "hidden": 1}, {"rest": 3, "cost": -4, "schedule": 0, "hidden": 3}]
    knobs = {"max_num_seqs": 4, "max_num_batched_tokens": 512}
    errors = {"ttft_error_percent": 10.0, "tpot_error_percent": -8.0, "e2el_error_percent": 0.2, "hidden_percent": 4.0}
    series = {f"{name}_{what}": 0.5 for name in ("running", "waiting", "kv_usage") for what in ("mean", "distance")}
    (tmp_path / "fidelity_x.json").write_text(
        json.dumps(
            {
                **result,
                "interval": {"level": 0.9, "inside": 120, "of": 143, "spread": None},
                "split": [{"metric": name, "measured": 100, **part} for name in names for part in parts],
                "latency": [{**errors, **knobs, "cancels": False}, {**errors, **knobs, "cancels": True}],
                "over_time": [series, {**series, "kv_usage_distance": 0.1}],
            }
        )
    )
    text = writer.document(tmp_path)
    assert "Intervals at 90% hold 120 of 143 measured figures (84 %)." in text
    assert "| Output throughput | +2.0 % | −4.0 % | +0.0 % | 2.0 % |" in text
    assert "Errors that cancel in E2E, in 1 of 2 cells" in text
    assert "| 4 × 512 | +10.0 % | −8.0 % | +0.2 % | 4.0 % |" in text
    assert "| KV usage (%) | 50.0 | 30.0 | 50.0 |" in text

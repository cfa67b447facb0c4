"""The GPU run's script, rehearsed on the CPU on a bare machine; and its committed step logs as a fidelity gate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
NOT_BROUGHT = ("scipy", "pydantic", "numba", "joblib", "pyarrow")
"""What a machine with torch, triton, transformers, numpy, pandas and pytest need not have."""
COMMITTED = sorted((BENCHMARKS / "results").glob("gpu_check_*.json"))
GATE_MEDIAN_PERCENT, GATE_WORST_PERCENT = 5.0, 12.0
"""The targets of the CPU's benchmark (``benchmarks/fidelity.py``)."""


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("gpu") / "gpu_check.json"
    code = (
        f"import sys, runpy; sys.modules.update(dict.fromkeys({NOT_BROUGHT!r})); "
        f"sys.argv = ['gpu_check.py', '--dry-run', '--out', {str(path)!r}]; "
        f"runpy.run_path({str(BENCHMARKS / 'gpu_check.py')!r}, run_name='__main__')"
    )
    done = _python(code)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    document: dict[str, Any] = json.loads(path.read_text())
    return document | {"path": path}


def test_every_section_runs_on_a_bare_machine(rehearsed: dict[str, Any]) -> None:
    sections = rehearsed["sections"]
    assert list(sections) == [
        "setup", "correctness", "roof", "kernels", "engine", "calibration", "sweep", "prediction", "peers",
    ]  # fmt: skip
    assert not [name for name, done in sections.items() if "failed" in done]
    assert [name for name, done in sections.items() if "skipped" in done] == ["prediction"]  # scipy is missing
    assert rehearsed["dry_run"] is True


def test_all_kernels_are_right_before_any_is_timed(rehearsed: dict[str, Any]) -> None:
    correctness = rehearsed["sections"]["correctness"]
    assert correctness["num_wrong"] == 0
    assert correctness["draw"] == {"right": True, "rows": 64, "different": 0}
    assert {row["batch"] for row in correctness["checked"]} == {"decode", "prefill", "mixed"}
    for row in rehearsed["sections"]["kernels"]["timed"]:
        assert row["ours"]["p20_us"] <= row["ours"]["p50_us"] <= row["ours"]["p80_us"]
        assert row["percent_of_peak"] == pytest.approx(100 * row["floor_us"] / row["ours"]["p50_us"])


def test_the_engines_steps_stand_beside_the_floor_of_what_they_move(rehearsed: dict[str, Any]) -> None:
    """tiny-llama in float32, by hand: 4 layers of 256 · 32 · (8 + 4 + 4 + 8) weights of attention, 3 · 256 · 688 of the
    MLP and two norms of 256, a last norm, and the LM head of 4,096 · 256, but no embedding; 2 · 4 layers · 4 KV heads ·
    32 · 4 bytes a context token, of which there are twice 40.
    """
    sections = rehearsed["sections"]
    step = sections["engine"]["steps"][0]
    weights = 4 * (196_608 + 528_384 + 512) + 256 + 4096 * 256
    moved = 4 * weights + 2 * 40 * 4096
    assert step["floor_ms"] == pytest.approx(1e3 * moved / sections["roof"]["memory_bytes_per_s"])
    assert step["over_floor"] == pytest.approx(step["p50_ms"] / step["floor_ms"])


def test_pytorchs_own_kernels_agree_with_ours_and_are_timed_beside_them(rehearsed: dict[str, Any]) -> None:
    found = rehearsed["sections"]["peers"]
    assert found["versions"]["sdpa"].startswith("torch ")
    for row in found["timed"]:
        for name in ("sdpa", "flex_attention"):
            assert row[name]["rms_ratio"] < 4e-6
            assert row[name]["p50_us"] > 0


def test_a_decode_moves_the_bytes_of_its_context(rehearsed: dict[str, Any]) -> None:
    first = next(row for row in rehearsed["sections"]["kernels"]["timed"] if row["kind"] == "decode")
    assert first["bytes"] == 2 * 41 * 2 * 2 * 16 * 4  # sequences, tokens, K and V, KV heads, head size, float32


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_kernels
    from gpu_check import Report

    report = Report(Path("unused"), dry_run=True, minutes=1)
    wrong = {"variant": str(gpu_kernels.variants(True)[0]), "batch": "decode", "right": False, "rms_ratio": 0.5}
    report.sections["correctness"] = {"checked": [wrong]}
    assert "nothing is timed" in gpu_kernels.kernels(report)["skipped"]
    report.sections["correctness"] = {}
    assert "nothing is timed" in gpu_kernels.kernels(report)["skipped"]


def test_a_poisoned_place_or_a_wrong_scale_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_kernels

    case = gpu_kernels.make_case([(20, 1), (0, 5)], gpu_kernels.variants(True)[0], "cpu")
    assert gpu_kernels._check(case)["right"]
    call = gpu_kernels.attention_call
    monkeypatch.setattr(gpu_kernels, "attention_call", lambda case: lambda: call(case)() * 1.01)
    assert not gpu_kernels._check(case)["right"]
    monkeypatch.setattr(gpu_kernels, "attention_call", call)
    case.key_cache[int(case.block_tables[0, 0]), 3] = float("nan")
    assert not gpu_kernels._check(case)["right"]


def test_step_logs_are_predicted_without_torch_and_hold_the_same_batches(rehearsed: dict[str, Any]) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.path.insert(0, sys.argv.pop()); "
        "import gpu_predict; gpu_predict.main()"
    )
    done = _python(code, str(rehearsed["path"]), str(BENCHMARKS))
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert len(result["cells"]) == 4
    assert result["batches_equal"] is True


def test_a_section_that_breaks_leaves_the_others_and_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gpu_check import Report

    def broken(report: object) -> dict[str, Any]:
        raise ValueError("of the device")

    def row_by_row(report: Report) -> dict[str, Any]:
        report.keep("fourth", {"rows": [1, 2]})
        raise ValueError("of the third row")

    report = Report(tmp_path / "out.json", dry_run=False, minutes=1)
    report.run("first", broken, 1)
    report.run("second", lambda report: {"figure": 3}, 1)
    report.run("third", broken, 100)
    report.run("fourth", row_by_row, 1)
    sections = json.loads((tmp_path / "out.json").read_text())["sections"]
    assert sections["first"]["failed"] == "ValueError: of the device"
    assert sections["second"]["figure"] == 3
    assert "it needs about 100" in sections["third"]["skipped"]
    assert sections["fourth"]["rows"] == [1, 2]
    assert "third row" in sections["fourth"]["failed"]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_gpu_step_logs_are_predicted_within_the_targets(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is committed as long as no GPU was at hand: then this test is skipped."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gpu_predict import predicted

    document = json.loads(path.read_text())
    assert not document["dry_run"], "a rehearsal is no measurement"
    result = predicted(document["sections"])
    assert result["batches_equal"]
    assert result["median_error_percent"] <= GATE_MEDIAN_PERCENT
    assert result["worst_error_percent"] <= GATE_WORST_PERCENT

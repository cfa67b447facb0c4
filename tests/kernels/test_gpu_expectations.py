"""The expectations written down before any GPU run are what the program computes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_expectations.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_expectations", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_holds_what_the_program_writes(program: ModuleType) -> None:
    text = FILE.with_suffix(".md").read_text()
    assert program.updated(text) == text


def test_what_stands_around_the_kernels_part_stays(program: ModuleType) -> None:
    text = f"before\n{program.MARK}\nold numbers\n{program.END}\nafter\n"
    new = program.updated(text)
    assert new.startswith("before\n" + program.MARK)
    assert new.endswith(program.END + "\nafter\n")
    assert "old numbers" not in new
    assert program.updated("The engine's part.\n").startswith("The engine's part.\n\n" + program.MARK)


def test_a_published_decode_is_in_the_table_under_its_measured_time(program: ModuleType) -> None:
    """128 sequences over 4,096 tokens on an H200: 2.15 GB, FlashAttention-3 took 492.6 µs (AIConfigurator 0.12.0)."""
    row = next(line for line in program.section().splitlines() if line.startswith("| 128 × 4096 |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert float(cells[1]) == pytest.approx(2150, rel=0.01)
    assert 0.90 < float(cells[7]) / 492.6 < 0.92

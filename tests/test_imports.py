"""Imports run one way: every file is parsed and held against the design's table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("scheduler", "traces", "sim", "kernels", "executor", "experiments", "dashboard", "testing")
MAY = {
    "scheduler": set(),
    "traces": {"scheduler.request"},
    "sim": {"scheduler", "traces"},
    "kernels": set(),
    "executor": {"scheduler", "kernels", "sim.backend", "sim.records", "sim.cost.features"},
    "experiments": {"scheduler", "traces", "sim"},
    "dashboard": {"experiments", "scheduler", "traces", "sim"},
    "testing": {"scheduler", "traces", "sim"},
}
MUST_NOT = {
    "scheduler": {"simpy", "torch", "pandas"},
    "traces": {"simpy", "torch"},
    "sim": {"torch"},
    "kernels": {"transformers"},
    "executor": {"streamlit"},
    "experiments": {"streamlit", "torch"},
    "dashboard": {"torch"},
    "testing": {"torch", "pytest", "hypothesis"},
}
EXECUTOR_USERS = {"experiments/measure.py", "experiments/calibrate.py"}


def _files() -> list[Path]:
    return sorted(path for folder in OURS for path in (ROOT / folder).rglob("*.py"))


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every imported module: (dotted name, whether it is ours)."""
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, alias.name.split(".")[0] == "batchtwin"
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                yield node.module or "", (node.module or "").split(".")[0] == "batchtwin"
                continue
            base = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            for name in names:
                yield ".".join([*base, name]), True


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    relative = str(path.relative_to(ROOT))
    folder = relative.split("/", maxsplit=1)[0]
    for module, is_ours in _imports(path):
        if not is_ours:
            assert module.split(".")[0] not in MUST_NOT[folder], f"{relative} imports {module}"
            continue
        assert not module.startswith("batchtwin") or relative == "dashboard/script/app.py", (
            f"{relative}: use a relative import"
        )
        target = module.removeprefix("batchtwin.")
        if target.split(".")[0] in (folder, "batchtwin"):
            continue
        if target.split(".")[0] == "executor" and relative in EXECUTOR_USERS:
            continue
        allowed = any(target == may or target.startswith(may + ".") for may in MAY[folder])
        assert allowed, f"{relative} imports {target}"


def test_the_table_would_catch_a_wrong_import(tmp_path: Path) -> None:
    """The check itself is checked: a scheduler file that imports the simulator is seen."""
    path = ROOT / "scheduler" / "batch.py"
    assert ("scheduler.cohort", True) in set(_imports(path))

"""Functions that can be read at a glance: none over 60 lines, but for the bodies of Triton kernels."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 60
KERNEL_BODIES = {"kernels/triton_kernels.py", "kernels/triton_tiles.py"}
FOLDERS = "scheduler traces sim kernels executor experiments dashboard testing benchmarks".split()  # noqa: SIM905


def test_no_function_is_over_60_lines() -> None:
    files = [ROOT / "cli.py", ROOT / "__init__.py", *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))]
    assert len(files) > 80
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in files
        if str(path.relative_to(ROOT)) not in KERNEL_BODIES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= MAX_LINES
    ]
    assert long == []

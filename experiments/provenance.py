"""Where a result comes from."""

from __future__ import annotations

import platform
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def provenance(*packages: str) -> dict[str, str]:
    """Versions of BatchTwin, Python, the named packages, and the commit where the source is a checkout."""
    found = {"batchtwin": _version("batchtwin"), "python": platform.python_version(), "machine": platform.machine()}
    found |= {package: _version(package) for package in packages}
    return found | {"commit": _commit()}


@lru_cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@lru_cache
def _commit() -> str:
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return "unknown"
    try:
        out = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
        )
    except OSError:
        return "unknown"
    return out.stdout.strip() or "unknown"

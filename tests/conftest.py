"""Where the shared, unshipped data is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_path() -> Callable[[str], Path]:
    """``shared_path("data/…")``: skips with a reason where the data is absent, fails if it is required."""
    base = Path(os.environ.get("BATCHTWIN_SHARED", ROOT.parent / "shared"))

    def find(relative: str) -> Path:
        path = base / relative
        if not path.exists():
            reason = f"{relative} is not there: set BATCHTWIN_SHARED to the folder that holds it"
            if os.environ.get("BATCHTWIN_REQUIRE_SHARED") == "1":
                pytest.fail(reason)
            pytest.skip(reason)
        return path

    return find

"""Policies by name, by path and by entry point, and their options as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchtwin.scheduler import UnknownPolicy, load_policy
from batchtwin.scheduler.policies import policy_options

MODULE = """
from dataclasses import dataclass
from batchtwin.scheduler import Policy

@dataclass
class Mine(Policy):
    name = "mine"
    share: float = 0.5
    count: int = 3
    fast: bool = False
    label: str = "x"
    limit: int | None = None

    def schedule(self, step):
        step.advance_running()

class NeedsMore(Mine):
    def __init__(self, needed):
        pass

class Unfinished(Policy):
    name = "unfinished"
"""


@pytest.fixture(params=["", "from __future__ import annotations\n"], ids=["annotated now", "annotated later"])
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module, under a name of its own each time."""
    name = f"theirs{request.param_index}"
    (tmp_path / f"{name}.py").write_text(request.param + MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_options_are_read_as_their_types(module: str) -> None:
    made = load_policy(f"{module}:Mine:share=0.25,count=7,fast=true,label=y")
    assert vars(made) == {"share": 0.25, "count": 7, "fast": True, "label": "y", "limit": None}
    assert vars(load_policy(f"{module}:Mine"))["share"] == 0.5
    assert policy_options(type(made))["count"] == ("int", 3)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("Mine:speed=1", "has no option 'speed'; it has: share, count, fast, label, limit"),
        ("Mine:count=1.5", "Option count of policy .* is '1.5', but it must be int"),
        ("Mine:fast=yes", "must be bool"),
        ("Mine:limit=4", r"limit .* is of type int \| None, which cannot be given as text"),
        ("NeedsMore", "cannot be made .*'needed'.*: it must define schedule, and every argument .* needs a default"),
        ("Unfinished", "cannot be made"),
        ("Nobody", "cannot be loaded"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(module: str, spec: str, says: str) -> None:
    with pytest.raises(UnknownPolicy, match=says):
        load_policy(f"{module}:{spec}")


def test_an_installed_package_registers_its_policies(module: str, tmp_path: Path) -> None:
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[batchtwin.policies]\ntheir_own = {module}:Mine\n")
    assert vars(load_policy("their_own:count=9"))["count"] == 9

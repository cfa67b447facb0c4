"""The command lines that the page starts: those that a user would type, so that what runs here runs anywhere."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..experiments.errors import ExperimentError
from ..experiments.options import parse_list
from ..experiments.scenario import Scenario, TraceSpec
from ..experiments.sweep import Sweep
from .errors import DashboardError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FROM_CELL = ("policy", "max_num_seqs", "max_num_batched_tokens")
_FROM_PROFILE = ("model", "dtype", "device", "block_size")


@dataclass(frozen=True, slots=True)
class SweepOrder:
    """A new sweep, as it was asked for."""

    name: str
    profile: str
    scenario: Scenario
    max_num_seqs: str
    max_num_batched_tokens: str
    policies: tuple[str, ...]
    workers: int = 1

    def folder(self, root: Path) -> Path:
        """Where it goes. Raises ``DashboardError`` if its name is no name of a folder."""
        if not _NAME.fullmatch(self.name):
            raise DashboardError(f"{self.name!r} is no name for a folder: use letters, digits, dots and dashes.")
        return root / self.name

    def command(self, root: Path) -> list[str]:
        """``batchtwin sweep``. Raises ``BatchTwinError`` for what can be seen to be wrong before it starts."""
        if not self.profile:
            raise DashboardError("A prediction needs a profile: choose one in the bar above, or measure one.")
        if not self.policies:
            raise DashboardError("A sweep needs a policy: choose at least one.")
        return _sweep_command(
            self.folder(root),
            self.profile,
            self.scenario,
            numbers(self.max_num_seqs, "max_num_seqs"),
            numbers(self.max_num_batched_tokens, "max_num_batched_tokens"),
            self.policies,
            self.workers,
            fixed_threads=self.scenario.threads is not None,
        )


def resume_command(sweep: Sweep, *, measure: int | None = None, repeats: int = 1, workers: int = 1) -> list[str]:
    """The command that goes on with ``sweep`` where it stopped, and measures ``measure`` cells if that is given."""
    spec = sweep.spec
    command = _sweep_command(
        sweep.folder,
        str(sweep.folder / "profile.json"),
        spec.scenario,
        spec.max_num_seqs,
        spec.max_num_batched_tokens,
        spec.policies,
        workers,
        fixed_threads=True,
    )
    command += ["--objective", spec.objective]
    command += ["--search"] if spec.search else []
    return command + ([] if measure is None else ["--measure", str(measure), "--repeats", str(repeats)])


def calibrate_command(output: Path, scenario: Scenario, *, minutes: float, threads: int | None) -> list[str]:
    """``batchtwin calibrate`` of the scenario's model in its KV pool."""
    command = ["calibrate", "--output", str(output), "--model", scenario.model, "--dtype", scenario.dtype]
    command += ["--device", scenario.device, "--minutes", f"{minutes:g}", "--block-size", str(scenario.block_size)]
    command += ["--num-gpu-blocks", str(scenario.num_gpu_blocks or 4096)]
    return command + ([] if threads is None else ["--threads", str(threads)])


def executable(command: Sequence[str]) -> list[str]:
    """The command for this very environment."""
    return [sys.executable, "-c", "from batchtwin.cli import main; main()", *command]


def shown(command: Sequence[str]) -> str:
    """The command to read and to copy."""
    return shlex.join(["batchtwin", *command])


def numbers(text: str, knob: str) -> list[int]:
    """The whole numbers in ``4, 8, 16``. Raises ``DashboardError``."""
    try:
        found = parse_list(knob, ",".join(part for part in re.split(r"[\s,;]+", text) if part))
    except ExperimentError:
        found = []
    if not found or not all(0 < number < 10**7 for number in found) or not text.isascii():
        raise DashboardError(f"{knob} needs whole numbers above 0 with commas between them, not {text!r}.")
    return found


def _sweep_command(
    folder: Path,
    profile: str,
    scenario: Scenario,
    seqs: Sequence[int],
    tokens: Sequence[int],
    policies: Sequence[str],
    workers: int,
    *,
    fixed_threads: bool,
) -> list[str]:
    """``fixed_threads``: the scenario's threads even if it leaves them open, instead of the profile's."""
    command = ["sweep", str(folder), "--profile", profile]
    command += ["--seqs", ",".join(map(str, seqs)), "--tokens", ",".join(map(str, tokens))]
    command += ["--policies", ",".join(policies), "--workers", str(workers)]
    for name, value in _changes(scenario, fixed_threads).items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    return command


def _changes(scenario: Scenario, fixed_threads: bool) -> dict[str, Any]:
    """Every field that is not its default."""
    plain, trace = Scenario().model_dump(), TraceSpec().model_dump()
    asked = scenario.model_dump()
    names = [name for name in asked if name != "trace" and name not in _FROM_CELL and name not in _FROM_PROFILE]
    found = {name: asked[name] for name in names if asked[name] != plain[name]}
    if fixed_threads:
        found["threads"] = scenario.threads
    if scenario.kv_memory_bytes is not None:
        found["num_gpu_blocks"] = None
    found |= {f"trace.{name}": value for name, value in asked["trace"].items() if value != trace[name]}
    return found

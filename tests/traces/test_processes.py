"""What only a fresh process can show: the same bytes again, and nothing heavy imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import batchtwin
from batchtwin.traces import Lognormal, azure_conv_like, generate


def run(script: str, cwd: Path, hash_seed: str) -> str:
    assert batchtwin.__file__ is not None
    path = os.pathsep.join([str(Path(batchtwin.__file__).parent.parent.absolute()), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=cwd, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_another_process_generates_the_same_bytes(tmp_path: Path) -> None:
    script = (
        "from batchtwin.traces import *\n"
        "made = generate(700, 3.0, 5, burstiness=0.4, prompt=Lognormal(300, 1.0), output=Lognormal(90, 1.0))\n"
        "print(made.digest(), azure_conv_like(3000, 9).digest(), made.thin(0.3, 2).digest())"
    )
    made = generate(700, 3.0, 5, burstiness=0.4, prompt=Lognormal(300, 1.0), output=Lognormal(90, 1.0))
    here = f"{made.digest()} {azure_conv_like(3000, 9).digest()} {made.thin(0.3, 2).digest()}"
    assert run(script, tmp_path, "1") == run(script, tmp_path, "2") == here


def test_the_replay_path_imports_nothing_heavy(tmp_path: Path, valid_files: dict[str, bytes]) -> None:
    for name, content in valid_files.items():
        (tmp_path / name).write_bytes(content)
    script = (
        "import sys\n"
        "from batchtwin.traces import describe, load_trace\n"
        "for spec in ('azure', 'vidur', 'mooncake', 'azure-conv-like:100'):\n"
        "    trace = load_trace(spec)\n"
        "    trace.requests(); describe(trace)\n"
        "heavy = ('pandas', 'pyarrow', 'scipy', 'simpy', 'torch', 'rich', 'pydantic')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert run(script, tmp_path, "0") == "[]"

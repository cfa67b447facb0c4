"""Runs the scripts beside this file, each in a process of its own: one that interprets kernels cannot compile them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def output_of(script: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """The JSON object that ``script`` prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"} | environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result

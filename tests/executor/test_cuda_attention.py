from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def test_a_batch_attended_by_the_triton_kernels_gives_the_cpus_tokens() -> None:
    """Decodes, chunks and both mixed, through the very object that a CUDA device uses."""
    worker = Path(__file__).with_name("triton_worker.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(worker)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    interpreted, expected, num_replays = json.loads(done.stdout)
    assert interpreted == expected
    assert num_replays > 0, "no decode step went the way of a graph"
    assert [len(tokens) for tokens in expected.values()] == [4, 3, 5]

"""The Triton kernels without a GPU: right in the interpreter, and within a device's means when compiled for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent
ATTENTION_CASES = (
    "decode_lengths_around_a_page",
    "decode_prime_lengths_three_splits",
    "decode_more_splits_than_tiles",
    "decode_group_of_three_odd_head",
    "decode_window",
    "decode_half_precision",
    "decode_page_of_one",
    "prefill_lengths_around_a_page",
    "prefill_chunks_over_context",
    "prefill_group_of_three_odd_head",
    "prefill_one_query_head_a_kv_head",
    "prefill_window",
    "prefill_half_precision",
    "prefill_takes_decodes_too",
    "prefill_behind_two_decodes",
)
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}


def _worker(script: str, *arguments: str, **environment: str) -> dict[str, object]:
    """Output of one of the scripts beside this file, each in a process of its own (they say why)."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"} | environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def errors() -> dict[str, object]:
    return _worker("triton_worker.py")


@pytest.mark.parametrize("case", ATTENTION_CASES)
def test_attention_equals_the_reference_and_touches_no_poisoned_place(errors: dict[str, float], case: str) -> None:
    assert errors[case] < (1e-3 if "half" in case else 1e-6)


def test_every_interpreted_case_is_looked_at(errors: dict[str, float]) -> None:
    assert set(errors) == {*ATTENTION_CASES, "write_kv"}


def test_write_kv_equals_the_reference_bit_for_bit(errors: dict[str, float]) -> None:
    assert errors["write_kv"] == 0.0


@pytest.mark.parametrize("arch", sorted(SHARED_BYTES))
def test_compiled_kernels_fit_the_device_and_spill_nothing(arch: int, tmp_path: Path) -> None:
    kernels = _worker("compile_worker.py", str(arch), TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    assert len(kernels) == 12
    for name, usage in kernels.items():
        assert usage["shared_bytes"] < SHARED_BYTES[arch], name
        assert usage["spilled_bytes"] == 0, name


@pytest.mark.parametrize(
    ("num_seqs", "max_kv_tokens", "expected"),
    [
        (1, 32_768, 32),  # 132 processors, 8 KV heads: 264 programs wanted, 8 there without splitting, 33 apart
        (8, 32_768, 4),
        (64, 32_768, 1),  # 512 programs already
        (1, 300, 1),  # nobody gets fewer than 256 tokens
        (1, 1100, 4),
    ],
)
def test_splits_fill_the_processors_but_not_with_crumbs(num_seqs: int, max_kv_tokens: int, expected: int) -> None:
    from batchtwin.kernels.triton_attention import num_kv_splits

    assert num_kv_splits(132, 8, num_seqs, max_kv_tokens) == expected

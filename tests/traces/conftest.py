"""Small trace files, written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., Path]

AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 18:15:46.6805900,374,44\r\n"
    b"2023-11-16 18:15:50.9951690,396,109\r\n"
    b"2023-11-16 18:15:51.2224670,879,55\r\n"
)
VIDUR = b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n4.541877,879,55\n"
MOONCAKE = (
    b'{"timestamp": 3000, "input_length": 1100, "output_length": 52, "hash_ids": [0, 1, 2]}\n'
    b'{"timestamp": 3000, "input_length": 512, "output_length": 26, "hash_ids": [0]}\n'
    b'{"timestamp": 6500, "input_length": 900, "output_length": 7, "hash_ids": [0, 3]}\n'
)


@pytest.fixture(scope="session")
def valid_files() -> dict[str, bytes]:
    """One small file of each format."""
    return {"azure": AZURE, "vidur": VIDUR, "mooncake": MOONCAKE}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write(content)``: the path of a file that holds it, under a name that tells nothing."""

    def write_file(content: bytes | str, name: str = "trace.data") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from batchtwin.dashboard import launch as launching
from batchtwin.dashboard.errors import DashboardError
from batchtwin.dashboard.launch import free_port, start


@pytest.fixture
def taken_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("localhost", 0))
        server.listen()
        yield server.getsockname()[1]  # type: ignore[misc]


def test_taken_port_is_one_sentence(tmp_path: Path, taken_port: int) -> None:
    with pytest.raises(DashboardError, match=f"Port {taken_port} on localhost is taken"):
        start(tmp_path, taken_port)


def test_file_instead_of_a_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DashboardError, match="is a file"):
        start(tmp_path / "file", free_port())


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_number_that_is_no_port_is_one_sentence(tmp_path: Path, port: int) -> None:
    with pytest.raises(DashboardError, match="is no port"):
        start(tmp_path, port)


def test_missing_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "find_spec", lambda name: None if name == "streamlit" else object())
    with pytest.raises(DashboardError, match=r"needs streamlit: pip install 'batchtwin\[dashboard\]'"):
        start(tmp_path, free_port())


def test_first_free_port_is_taken(monkeypatch: pytest.MonkeyPatch, taken_port: int) -> None:
    monkeypatch.setattr(launching, "FIRST_PORT", taken_port)
    assert taken_port < free_port() < taken_port + 100


def test_every_port_taken_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_is_free", lambda *_: False)
    with pytest.raises(DashboardError, match="all taken"):
        free_port()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/_stcore/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _wait(port: int, *, answering: bool) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if _answers(port) is answering:
            return True
        time.sleep(0.2)
    return False


def test_terminated_launcher_takes_its_server_with_it(tmp_path: Path) -> None:
    port = free_port()
    program = (
        "from pathlib import Path; from batchtwin.dashboard.launch import launch; "
        f"launch(Path({str(tmp_path)!r}), {port}, open_browser=False)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as launcher:
        try:
            assert _wait(port, answering=True)
            launcher.send_signal(signal.SIGTERM)
            assert launcher.wait(timeout=20) == 128 + signal.SIGTERM
            assert _wait(port, answering=False)
            assert launcher.stdout is not None
            assert f"http://localhost:{port}" in launcher.stdout.read()
        finally:
            launcher.kill()

"""Starting the page: Streamlit in a process of its own, told where the results are."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

from . import theme
from .errors import DashboardError

RESULTS_VARIABLE = "BATCHTWIN_RESULTS"
"""The environment variable from which the page takes its results folder."""
FIRST_PORT = 8501
_PORTS_TRIED = 100
APP = Path(__file__).parent / "script" / "app.py"


def launch(results: Path, port: int | None = None, *, address: str = "localhost", open_browser: bool = True) -> int:
    """Serve the page until it is interrupted (or ends by itself) and return the server's exit status. Raises
    ``DashboardError`` if it cannot start.
    """
    chosen = free_port(address) if port is None else port
    server = start(results, chosen, address=address, open_browser=open_browser)
    _let_termination_unwind()
    print(f"BatchTwin shows {results} on http://{address}:{chosen} (stop with Ctrl+C).", flush=True)
    try:
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        stop(server)


def start(
    results: Path, port: int, *, address: str = "localhost", open_browser: bool = False
) -> subprocess.Popen[bytes]:
    """Start serving and return at once. Raises ``DashboardError`` if a library is missing, ``results`` is no folder
    or the port is taken.
    """
    missing = [name for name in ("streamlit", "plotly") if find_spec(name) is None]
    if missing:
        raise DashboardError(f"The dashboard needs {' and '.join(missing)}: pip install 'batchtwin[dashboard]'.")
    if results.exists() and not results.is_dir():
        raise DashboardError(f"{results} is a file: give the folder that holds the sweeps.")
    if not _is_free(address, port):
        raise DashboardError(f"Port {port} on {address} is taken: give another with --port.")
    flags = theme.options() | {
        "server.port": str(port),
        "server.address": address,
        "server.headless": str(not open_browser).lower(),
    }
    command = [sys.executable, "-m", "streamlit", "run", str(APP)]
    command += [f"--{name}={value}" for name, value in flags.items()]
    environment = {**os.environ, RESULTS_VARIABLE: str(results.resolve())}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def stop(server: subprocess.Popen[bytes]) -> None:
    """End a started server, politely first."""
    server.terminate()
    try:
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _let_termination_unwind() -> None:
    """A launcher that is terminated takes its server with it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def free_port(address: str = "localhost") -> int:
    """The first free port from 8501 on. Raises ``DashboardError`` if a hundred are taken."""
    for port in range(FIRST_PORT, FIRST_PORT + _PORTS_TRIED):
        if _is_free(address, port):
            return port
    raise DashboardError(f"Ports {FIRST_PORT} to {FIRST_PORT + _PORTS_TRIED - 1} on {address} are all taken: give one.")


def _is_free(address: str, port: int) -> bool:
    if not 0 < port < 1 << 16:
        raise DashboardError(f"{port} is no port: give one from 1 to 65535.")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except socket.gaierror as error:
            raise DashboardError(f"{address!r} is no address of this machine: try localhost.") from error
        except OSError:
            return False
    return True

"""What runs for the page: command lines in processes of their own, one a folder, watched through what they write."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .commands import executable, shown

_LOGS = ".jobs"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is; ``done`` counts what was there before it started as well."""

    done: float
    total: float
    elapsed_s: float
    eta_s: float | None
    """None while nothing is finished that was not there before."""

    @property
    def share(self) -> float:
        return min(self.done / self.total, 1.0) if self.total else 0.0


@dataclass(slots=True)
class Job:
    """A command that was started."""

    what: str
    """In a word: sweep, measure or calibrate."""
    target: Path
    command: Sequence[str]
    log: Path
    count: Callable[[], tuple[float, float]]
    """(done, total), from what is on disk."""
    process: subprocess.Popen[bytes]
    clock: Callable[[], float] = time.monotonic
    cancelled: bool = False
    _began: tuple[float, float] = field(default=(0.0, 0.0))
    """(seconds, done) at the start."""

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def progress(self) -> Progress:
        """How far it is, and how long it will take if it goes on as it did."""
        done, total = self.count()
        began_s, before = self._began
        elapsed_s = self.clock() - began_s
        return Progress(done, total, elapsed_s, eta_s(elapsed_s, done - before, total - done))

    def cancel(self) -> None:
        """End it; whatever it finished stays, and the same command goes on from there."""
        if self.is_running:
            self.cancelled = True
            os.killpg(self.process.pid, signal.SIGTERM)  # with its workers: it leads a group of its own

    def output(self, lines: int = 12) -> str:
        """The last lines that it wrote."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(text.rstrip().splitlines()[-lines:])

    @property
    def error(self) -> str | None:
        """In one sentence why it failed; None while it runs, and if it ended well or was cancelled."""
        if self.is_running or self.cancelled or self.process.returncode == 0:
            return None
        said = [line for line in self.output().splitlines() if line.startswith("batchtwin: ")]
        if said:
            return said[-1].removeprefix("batchtwin: ")
        return f"The command ended with status {self.process.returncode}; its output is in {self.log}."


def eta_s(elapsed_s: float, finished: float, left: float) -> float | None:
    """The seconds left at the pace so far; None before anything is finished, and when there is nothing left."""
    return elapsed_s * left / finished if finished > 0 and left > 0 else None


class Jobs:
    """The jobs of one server, by what they write to; the last one of each is kept until another starts."""

    def __init__(self) -> None:
        self._by_target: dict[Path, Job] = {}
        atexit.register(self.cancel_all)

    def cancel_all(self) -> None:
        """End whatever runs: a server that ends takes its jobs with it."""
        for job in self.running:
            job.cancel()

    def of(self, target: Path) -> Job | None:
        """The last job that writes to ``target``."""
        return self._by_target.get(target.resolve())

    def latest(self, what: str) -> Job | None:
        """The job of this kind that was started last."""
        return next((job for job in reversed(self._by_target.values()) if job.what == what), None)

    @property
    def running(self) -> list[Job]:
        return [job for job in self._by_target.values() if job.is_running]

    def start(
        self, what: str, root: Path, target: Path, command: Sequence[str], count: Callable[[], tuple[float, float]]
    ) -> Job:
        """Start ``command`` unless one for ``target`` is running, which is then returned."""
        found = self.of(target)
        if found is not None and found.is_running:
            return found
        log = root / _LOGS / f"{target.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            out.write(f"$ {shown(command)}\n".encode())
            out.flush()
            process = subprocess.Popen(
                executable(command), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        job = Job(what, target, command, log, count, process)
        job._began = (job.clock(), count()[0])
        self.forget(target)  # so that the latest comes last
        self._by_target[target.resolve()] = job
        return job

    def forget(self, target: Path) -> None:
        """Show it no more."""
        self._by_target.pop(target.resolve(), None)


def predicted_cells(folder: Path, total: int) -> Callable[[], tuple[float, float]]:
    """Counts the predicted cells of a sweep."""
    return lambda: (sum(1 for _ in folder.glob("cells/*/predicted.json")), total)


def measured_cells(folder: Path, total: int) -> Callable[[], tuple[float, float]]:
    """Counts the measured runs of a sweep."""
    return lambda: (sum(1 for _ in folder.glob("cells/*/measured-*/run.json")), total)


def seconds_of(minutes: float, clock: Callable[[], float] = time.monotonic) -> Callable[[], tuple[float, float]]:
    """Counts the seconds of a job that takes so many minutes."""
    began_s = clock()
    return lambda: (clock() - began_s, 60.0 * minutes)

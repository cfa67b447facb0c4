"""Where predictions run: processes of this machine, Ray or Dask."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast, get_args

from joblib import Parallel, delayed, parallel_config

from .errors import ExperimentError

Backend = Literal["loky", "ray", "dask"]
"""Processes of this machine; a Ray or Dask cluster (theirs to name: ``RAY_ADDRESS`` and
``DASK_SCHEDULER_ADDRESS``), or a local one of ``workers`` processes if none is named."""
BACKENDS: tuple[str, ...] = get_args(Backend)
_MODULES: dict[Backend, tuple[str, ...]] = {
    "loky": (),
    "ray": ("ray", "ray.util.joblib"),
    "dask": ("dask", "distributed"),
}
ROUND_PER_WORKER = 4
"""Jobs a worker that a back end without streaming (Ray's) is given at a time: finished cells are kept in between."""
T = TypeVar("T")
Job = tuple[Callable[..., T], tuple[Any, ...]]
Run = Callable[[Iterable[Job[Any]]], Iterator[Any]]


def parse_backend(name: str) -> Backend:
    """The back end of this name. Raises ``ExperimentError`` if there is none."""
    if name not in BACKENDS:
        raise ExperimentError(f"There is no back end {name!r}; known are {', '.join(BACKENDS)}.")
    return cast("Backend", name)


def check_backend(name: str) -> None:
    """Raise ``ExperimentError`` if there is no back end of this name, or it is not installed: for before anything is
    written.
    """
    for module in _MODULES[parse_backend(name)]:
        try:
            import_module(module)
        except ImportError as error:
            raise ExperimentError(
                f"The back end {name} is not installed: pip install 'batchtwin[{name}]', or use loky."
            ) from error


class Pool(Generic[T]):
    """Runs jobs ``workers`` at a time and yields what they return, in whatever order they finish."""

    def __init__(self, run: Callable[[Iterable[Job[T]]], Iterator[T]]) -> None:
        self._run = run

    def results(self, jobs: Iterable[Job[T]]) -> Generator[T, None, None]:
        """What the jobs return, as they finish; to be closed. It ends early where workers die: of the jobs that were
        taken from ``jobs`` those that returned nothing are lost. Jobs themselves should not raise.
        """
        folder = Path.cwd()
        results = self._run((_there, (folder, function, *arguments)) for function, arguments in jobs)
        try:
            while True:
                try:
                    result = next(results)
                except StopIteration:
                    return
                except Exception:  # noqa: BLE001  (each back end has exceptions of its own for a worker that died)
                    return
                yield result
        finally:
            results.close()  # type: ignore[attr-defined]


def _there(folder: Path, function: Callable[..., T], *arguments: Any) -> T:
    """What ``function`` returns in ``folder``, where the job was given: a worker may have been started in another, by
    an earlier sweep, and relative paths (a trace's) would mean other files. On another machine it may not be there.
    """
    with suppress(OSError):
        os.chdir(folder)
    return function(*arguments)


@contextmanager
def open_pool(backend: str = "loky", workers: int = 1) -> Iterator[Pool[Any]]:
    """Workers of a back end, until the block ends; one worker on ``loky`` is this very process. Raises
    ``ExperimentError`` if the back end is unknown or not installed.
    """
    openers = {"loky": _loky, "ray": _ray, "dask": _dask}
    check_backend(backend)
    with openers[backend](workers) as run:
        yield Pool(run)


@contextmanager
def _loky(workers: int) -> Iterator[Run]:
    def run(jobs: Iterable[Job[T]]) -> Iterator[T]:
        with _closing(Parallel(n_jobs=workers, return_as="generator_unordered")(_delayed(jobs))) as results:
            for result in results:  # noqa: UP028  (yield from would close them before the block does)
                yield result

    with parallel_config("loky"):
        yield run


@contextmanager
def _dask(workers: int) -> Iterator[Run]:
    """Not through joblib, whose Dask back end waits for ever for a job that lost its worker (1.6.0)."""
    import dask  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from distributed import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        Client,
        as_completed,
    )

    if dask.config.get("scheduler-address", None):
        client = Client()
    else:
        once = {"distributed.scheduler.allowed-failures": 0}  # whether to try again is decided here, not by Dask
        with dask.config.set(once):
            client = Client(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)

    def run(jobs: Iterable[Job[T]]) -> Iterator[T]:
        futures = [client.submit(function, *arguments, pure=False) for function, arguments in jobs]
        try:
            for future in as_completed(futures):
                if future.status == "finished":
                    yield future.result()
        finally:
            client.cancel(futures)

    with client:
        yield run


@contextmanager
def _ray(workers: int) -> Iterator[Run]:
    import ray  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from ray.util.joblib import register_ray  # type: ignore[import-not-found, import-untyped, unused-ignore]

    own = not ray.is_initialized()
    if own:
        local = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers, "include_dashboard": False}
        paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}  # for policies of the user's own
        ray.init(log_to_driver=False, logging_level="ERROR", runtime_env=paths if local else None, **local)
    register_ray()

    def run(jobs: Iterable[Job[T]]) -> Iterator[T]:
        calls = _delayed(jobs)
        while part := list(islice(calls, ROUND_PER_WORKER * workers)):
            yield from cast("list[T]", Parallel(n_jobs=workers)(part))

    try:
        with parallel_config("ray"):
            yield run
    finally:
        if own:
            ray.shutdown()


def _delayed(jobs: Iterable[Job[Any]]) -> Iterator[Any]:
    return (delayed(function)(*arguments) for function, arguments in jobs)


@contextmanager
def _closing(results: Generator[T, None, None]) -> Iterator[Iterator[T]]:
    """Ends the workers with the block. That an interruption cancels tasks needs no warning."""
    try:
        yield results
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            results.close()

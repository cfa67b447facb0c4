"""Where predictions run: processes of this machine, Ray or Dask, all through joblib."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, Generic, Literal, TypeVar, cast, get_args

from joblib import Parallel, delayed, parallel_config

from .errors import ExperimentError

Backend = Literal["loky", "ray", "dask"]
"""joblib's back ends: processes of this machine; a Ray or Dask cluster (theirs to name: ``RAY_ADDRESS`` and
``DASK_SCHEDULER_ADDRESS``), or a local one of ``workers`` processes if none is named."""
BACKENDS: tuple[str, ...] = get_args(Backend)
ROUND_PER_WORKER = 4
"""Jobs a worker that a back end without streaming (Ray's) is given at a time: finished cells are kept in between."""
T = TypeVar("T")
Job = tuple[Callable[..., T], tuple[Any, ...]]


def parse_backend(name: str) -> Backend:
    """The back end of this name. Raises ``ExperimentError`` if there is none."""
    if name not in BACKENDS:
        raise ExperimentError(f"There is no back end {name!r}; known are {', '.join(BACKENDS)}.")
    return cast("Backend", name)


class Pool(Generic[T]):
    """Runs jobs ``workers`` at a time and yields what they return, in whatever order they finish.

    One worker on ``loky`` is this very process. Whatever else an iteration raises comes from the workers: a job that
    raised, a worker that died, a connection lost.
    """

    def __init__(self, backend: str, workers: int, *, streams: bool) -> None:
        self.backend = backend
        self.workers = workers
        self._streams = streams

    def results(self, jobs: Iterable[Job[T]]) -> Generator[T, None, None]:
        """What the jobs return, as they finish; to be closed."""
        calls = (delayed(function)(*arguments) for function, arguments in jobs)
        if self._streams:
            with _closing(Parallel(n_jobs=self.workers, return_as="generator_unordered")(calls)) as results:
                for result in results:  # noqa: UP028  (yield from would close them before the block does)
                    yield result
            return
        while part := list(islice(calls, ROUND_PER_WORKER * self.workers)):
            yield from cast("list[T]", Parallel(n_jobs=self.workers)(part))


@contextmanager
def open_pool(backend: str = "loky", workers: int = 1) -> Iterator[Pool[Any]]:
    """Workers of a back end, until the block ends. Raises ``ExperimentError`` if it is unknown or not installed."""
    parse_backend(backend)
    with ExitStack() as stack:
        if backend == "dask":
            stack.enter_context(_dask(workers))
        elif backend == "ray":
            stack.enter_context(_ray(workers))
        stack.enter_context(parallel_config(backend))
        yield Pool(backend, workers, streams=backend != "ray")


@contextmanager
def _dask(workers: int) -> Iterator[None]:
    try:
        import dask  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from distributed import Client  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise _not_installed("dask") from error
    if dask.config.get("scheduler-address", None):
        client = Client()
    else:
        client = Client(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)
    with client:
        yield


@contextmanager
def _ray(workers: int) -> Iterator[None]:
    try:
        import ray  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from ray.util.joblib import register_ray  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise _not_installed("ray") from error
    own = not ray.is_initialized()
    if own:
        local = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers, "include_dashboard": False}
        paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}  # for policies of the user's own
        ray.init(log_to_driver=False, logging_level="ERROR", runtime_env=paths if local else None, **local)
    register_ray()
    try:
        yield
    finally:
        if own:
            ray.shutdown()


def _not_installed(extra: str) -> ExperimentError:
    return ExperimentError(f"The back end {extra} is not installed: pip install 'batchtwin[{extra}]', or use loky.")


@contextmanager
def _closing(results: Generator[T, None, None]) -> Iterator[Iterator[T]]:
    """Ends the workers with the block. That an interruption cancels tasks needs no warning."""
    try:
        yield results
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            results.close()

"""A profile from what somebody else measured: a server's iteration log, ``vllm bench forward``, an FPM table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..sim.cost.features import Features, FloatArray
from ..sim.cost.fit import fit, fit_constant, fit_roofline, summarize
from ..sim.cost.forward_tables import read_bench_forward, read_fpm
from ..sim.cost.iteration_log import IterationLog, read_iteration_log
from ..sim.cost.log_replay import from_usage, replay_log
from ..sim.cost.models import CostModel
from ..sim.cost.profile import DeviceFacts, ErrorFacts, FitFacts, Law, ModelFacts, Profile, roofline_of
from ..sim.cost.timings import Timings, TimingsError, told
from ..traces import Trace, load_trace
from .errors import ExperimentError
from .exchange.sources import read_sources
from .exchange.workloads import trace_of
from .provenance import provenance
from .scenario import make_scenario

NUM_FOLDS = 5
LOG_BLOCK = 50
"""Successive iterations of a log that are held out together: neighbours are too alike to test each other."""
MOST_ITERATIONS = 20_000
NO_HOST = "what the host does between iterations is not in a log's times, so predictions are that much too fast"
KINDS = ("log", "forward", "fpm")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a profile needs to know besides the times."""

    model: ModelFacts
    device: DeviceFacts
    block_size: int = 16


@dataclass(frozen=True, slots=True)
class CalibratedFrom:
    """The profile, and what became of the source."""

    profile: Profile
    kind: str
    left_out: Mapping[str, int]
    notes: tuple[str, ...]


def calibrate_from(
    source: str | Path,
    about: Measured,
    *,
    kind: str | None = None,
    trace: str | Path | None = None,
    fields: Mapping[str, Any] | None = None,
    cell: str | None = None,
) -> CalibratedFrom:
    """Fit the physical law to ``source`` (``kind``: log, forward or fpm; told from its content if not given).

    A log needs the requests (``trace``: a trace file, or the detailed JSON of ``vllm bench serve``) and the knobs
    (``fields`` of a scenario), from which the context lengths are recovered; without a trace they are estimated from
    the KV usage. Raises ``BatchTwinError`` or ``TraceError`` with one sentence.
    """
    path = Path(source)
    chosen = kind or sniff_kind(path)
    if chosen == "log":
        timings, block = _from_log(path, about, trace, fields or {}), LOG_BLOCK
    elif chosen == "forward":
        timings, block = read_bench_forward(path), 1
    elif chosen == "fpm":
        timings, block = read_fpm(path, cell), 1
    else:
        raise ExperimentError(f"There is no kind {chosen!r}; known are {', '.join(KINDS)}.")
    thinned = _thinned(timings, block)
    return CalibratedFrom(_profile(thinned, about, block, path.name, chosen), chosen, timings.left_out, thinned.notes)


def sniff_kind(path: Path) -> str:
    """``forward`` for JSON, ``fpm`` for a table with its columns, else ``log``. Raises ``TimingsError``."""
    from stat import S_ISREG

    try:
        if not S_ISREG(path.stat().st_mode):
            raise TimingsError(f"{path} is no regular file: give a log or a table.")
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise TimingsError(f"{path} cannot be read ({error.strerror or error}).") from error
    if head.startswith(b"PAR1") or b"total_kv_read_tokens" in head.partition(b"\n")[0]:
        return "fpm"
    return "forward" if head.lstrip()[:1] == b"[" and b"query_len" in head else "log"


def load_requests(source: str | Path) -> Trace:
    """A trace file or generator, or the requests that a ``vllm bench serve`` result lists."""
    path = Path(source)
    if path.suffix != ".json":
        return load_trace(str(source))
    rows = [row for row in read_sources([path]).rows if row.workload.requests]
    if not rows:
        raise ExperimentError(f"{path} does not list its requests: run vllm bench serve with --save-detailed.")
    return trace_of(replace(rows[0].workload, max_concurrency=None))[0]


def _from_log(path: Path, about: Measured, trace: str | Path | None, fields: Mapping[str, Any]) -> Timings:
    log = read_iteration_log(path)
    if log.waits_are_too_short:
        raise TimingsError(
            f"{path} was written with asynchronous scheduling: its times tell how long the engine waited, and many are "
            f"next to nothing. Start vLLM with --no-async-scheduling to record a log."
        )
    blocks = fields.get("num_gpu_blocks") or (log.kv_cache_tokens and log.kv_cache_tokens // about.block_size)
    if trace is None:
        if not blocks:
            raise ExperimentError(
                f"The context lengths of {path} are not known: give its requests with --trace (with the server's "
                f"knobs), or at least --num-gpu-blocks, to estimate them from the KV usage."
            )
        timings = from_usage(log, int(blocks), about.block_size)
    else:
        timings = _replayed(log, load_requests(trace), about, fields, blocks)
    return replace(timings, notes=(*timings.notes, NO_HOST, *_versions(log)))


def _replayed(
    log: IterationLog, requests: Trace, about: Measured, fields: Mapping[str, Any], blocks: int | None
) -> Timings:
    lengths = requests.num_prompt_tokens + requests.output_len
    ample = int((-(-lengths // about.block_size)).sum()) + 1
    scenario = make_scenario(
        **{"max_model_len": about.model.max_model_len, "block_size": about.block_size}
        | dict(fields)
        | {"num_gpu_blocks": int(blocks or ample)}
    )
    timings = replay_log(log, requests, scenario.config(int(blocks or ample)))
    return timings if blocks else replace(timings, notes=(*timings.notes, "KV blocks not known: taken as ample"))


def _versions(log: IterationLog) -> tuple[str, ...]:
    if len(log.versions) > 1:
        return (f"the log names several versions of vLLM ({', '.join(log.versions)}); used up to the first restart",)
    return tuple(f"vLLM {version}" for version in log.versions)


def _thinned(timings: Timings, block: int) -> Timings:
    """At most ``MOST_ITERATIONS`` of them, whole blocks evenly spread."""
    count = len(timings.seconds)
    if count <= MOST_ITERATIONS:
        return timings
    every = -(-count // MOST_ITERATIONS)
    rows = np.arange(count) // block % every == 0
    features = Features(*(np.asarray(column)[rows] for column in timings.features))
    note = f"fitted to {int(rows.sum()):,} of {count:,} iterations, evenly spread"
    return replace(timings, features=features, seconds=timings.seconds[rows], notes=(*timings.notes, note))


def _profile(timings: Timings, about: Measured, block: int, name: str, kind: str) -> Profile:
    features, seconds = timings.features, timings.seconds
    bare = roofline_of(about.model, about.device)
    affine = fit_roofline(bare, features, seconds)
    fitters: dict[str, Callable[[Features, FloatArray], CostModel]] = {
        "fitted": fit,
        "constant": fit_constant,
        "roofline": lambda *_: bare,
        "roofline_affine": lambda train, train_s: fit_roofline(bare, train, train_s),
    }
    errors = {
        fitter: ErrorFacts(**asdict(summarize(_held_out(features, seconds, block, how), seconds)))
        for fitter, how in fitters.items()
    }
    law = fit(features, seconds)
    return Profile(
        model=about.model,
        device=about.device,
        block_size=about.block_size,
        attention_backend="vllm",
        law=Law(**{field: getattr(law, field) for field in Law.model_fields}),
        host_fixed_s=0.0,
        host_per_seq_s=0.0,
        constant_s=fit_constant(features, seconds).seconds,
        roofline_alpha=affine.alpha,
        roofline_beta_s=affine.launch_s,
        fit=FitFacts(
            num_batches=len(seconds),
            num_rounds=1,
            seconds_measured=round(float(seconds.sum()), 3),
            held_out=errors.pop("fitted"),
            nulls=errors,
            repeat_noise_percent=timings.repeat_noise_percent,
        ),
        provenance=provenance()
        | {"source": name, "kind": kind, "left_out": told(timings.left_out).strip(" ()") or "nothing"}
        | {"notes": "; ".join(timings.notes)},
    )


def _held_out(
    features: Features, seconds: FloatArray, block: int, fitter: Callable[[Features, FloatArray], CostModel]
) -> FloatArray:
    """[N] What each iteration is predicted to take by a fit that saw neither it nor its ``block``."""
    folds = np.arange(len(seconds)) // min(block, max(1, len(seconds) // (2 * NUM_FOLDS))) % NUM_FOLDS
    predicted = np.empty(len(seconds))
    for fold in range(NUM_FOLDS):
        out = folds == fold
        train = Features(*(np.asarray(column)[~out] for column in features))
        test = Features(*(np.asarray(column)[out] for column in features))
        predicted[out] = fitter(train, seconds[~out]).durations_s(test)
    return predicted

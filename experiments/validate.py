"""A recorded real run predicted from a GPU's operator tables alone, and how wrong that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sim.cost.features import features_of_columns
from ..sim.cost.models import CostModel, HostTerm
from ..sim.cost.tables.composed import TableProfile, extrapolated
from ..sim.cost.tables.open import open_tables
from ..sim.cost.tables.pieces import Wanted
from ..sim.cost_backend import CostModelBackend
from ..sim.records import Records
from ..sim.world import simulate
from ..traces.trace import Trace
from .engine_args import ALIASES, HOST_KEYS, KV_TOKENS, TABLE_KEYS, Known, engine_args
from .errors import ExperimentError
from .recorded import RecordedRun, engine_argument, read_recorded_run
from .scenario import Scenario

FloatArray = NDArray[np.float64]
UNQUEUED_S = 1e-3
"""A request that was scheduled sooner than this after the engine saw it did not queue."""
START_UP_S = 1.0
"""Requests sent within this time of the first meet a server that is still warming up."""
FULL = 0.9
"""KV usage above which a pool may have held requests back."""
POOL_NAMES = (*ALIASES["num_gpu_blocks"], *KV_TOKENS)
NULLS = ("constant", "roofline", "roofline_affine")


@dataclass(frozen=True, slots=True)
class Served:
    """What happened to each request, [N], in order of arrival; seconds from the first request sent."""

    queued_s: FloatArray
    """When the engine's loop saw it."""
    first_token_s: FloatArray
    last_token_s: FloatArray
    output_tokens: NDArray[np.int64]

    @property
    def ttft_ms(self) -> FloatArray:
        """From the loop's seeing the request to its first token."""
        return 1e3 * (self.first_token_s - self.queued_s)

    @property
    def e2el_ms(self) -> FloatArray:
        """From the same to its last token."""
        return 1e3 * (self.last_token_s - self.queued_s)

    @property
    def tpot_ms(self) -> FloatArray:
        """Of those with two tokens or more."""
        several = self.output_tokens > 1
        span_ms = 1e3 * (self.last_token_s - self.first_token_s)[several]
        return np.asarray(span_ms / (self.output_tokens[several] - 1))

    @property
    def output_throughput(self) -> float:
        """Tokens a second over (last token − first request seen)."""
        return float(self.output_tokens.sum() / (self.last_token_s.max() - self.queued_s.min()))


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of both."""

    metric: str
    unit: str
    predicted: float
    recorded: float

    @property
    def error_percent(self) -> float:
        """Predicted against recorded."""
        return 100.0 * (self.predicted / self.recorded - 1.0) if self.recorded else float("nan")


@dataclass(frozen=True, slots=True)
class Timeline:
    """The recorded series and the prediction at the same times, [T] each."""

    t_s: FloatArray
    predicted_running: FloatArray
    recorded_running: FloatArray
    predicted_waiting: FloatArray
    recorded_waiting: FloatArray


@dataclass(frozen=True, slots=True)
class Validation:
    """A recorded run beside its prediction."""

    run: RecordedRun
    profile: TableProfile
    scenario: Scenario
    known: list[Known]
    """How each field of the scenario was known."""
    predicted: Served
    recorded: Served
    rows: list[Row]
    nulls: dict[str, list[Row]]
    timeline: Timeline | None
    peak_blocks: int
    num_preemptions: int
    p99_itl_ms: float
    """Predicted only: a run of this layout has no token times."""
    extrapolated: str
    notes: list[str]


def validate(profile: str | Path, run: str | Path, sets: Mapping[str, Any] | None = None) -> Validation:
    """Predict the recorded run in the folder ``run`` from the operator tables in ``profile``. Nothing is fitted to the
    run; ``sets`` states what it does not say. Raises ``BatchTwinError`` with what is wrong or missing.
    """
    sets = dict(sets or {})
    recorded = read_recorded_run(Path(run))
    tables = open_tables(profile, _wanted(recorded, sets))
    notes = [*recorded.notes, *_mismatches(recorded, tables, sets)]
    scenario, known = engine_args(recorded, tables, sets)
    host = HostTerm(*(_milliseconds(sets, name) for name in HOST_KEYS))
    known.append(_host_origin(scenario, sets))
    model = tables.cost_model_for(scenario.max_num_seqs, scenario.max_num_batched_tokens)
    records = _predict(recorded, scenario, model, host)
    predicted, real = _served(records), _recorded(recorded)
    nulls = {}
    for name in NULLS:
        null = _served(_predict(recorded, scenario, tables.null(name), HostTerm()))
        nulls[name] = _rows(null, real, recorded)
    blocks = scenario.num_gpu_blocks or 0
    rows = _rows(predicted, real, recorded)
    peak = blocks - 1 - int(records.iterations["num_free_blocks"].min(initial=blocks - 1))
    if recorded.series is not None and recorded.series.kv_usage is not None:
        rows.append(
            Row("KV usage, highest", "%", 100 * peak / (blocks - 1), 100 * float(recorded.series.kv_usage.max()))
        )
    return Validation(
        run=recorded,
        profile=tables,
        scenario=scenario,
        known=known,
        predicted=predicted,
        recorded=real,
        rows=rows,
        nulls=nulls,
        timeline=_timeline(records, recorded),
        peak_blocks=peak,
        num_preemptions=int(records.iterations["num_preempted"].sum()),
        p99_itl_ms=_p99_itl_ms(records),
        extrapolated=extrapolated(tables, model, features_of_columns(records.iterations)),
        notes=notes,
    )


def _wanted(run: RecordedRun, sets: Mapping[str, Any]) -> Wanted:
    degree = sets.get("tensor_parallel_size", engine_argument(run.meta, "tensor_parallel_size", "tp_size", "tp"))
    eager = sets.get("enforce_eager", engine_argument(run.meta, "enforce_eager"))
    layers = sets.get("num_hidden_layers")
    for name, value in (("tensor_parallel_size", degree), ("num_hidden_layers", layers)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ExperimentError(f"{name} is {value!r}, but it must be a whole number of at least 1.")
    served = engine_argument(run.meta, "model")
    return Wanted(
        model_hint=served if isinstance(served, str) else None,
        model=None if sets.get("model") is None else str(sets["model"]),
        tensor_parallel=degree,
        num_layers=layers,
        all_reduce=Path(str(sets["all_reduce"])) if sets.get("all_reduce") else None,
        enforce_eager=eager is True,
    )


def _mismatches(run: RecordedRun, tables: TableProfile, sets: Mapping[str, Any]) -> list[str]:
    """Raises ``ExperimentError`` if run and tables are of different models, unless ``--set model`` says that it is
    meant; notes what else does not agree.
    """
    from ..sim.facts.errors import FactsError
    from ..sim.facts.library import load_model_config

    notes = []
    said = tables.provenance.get("model")
    if said and said != tables.model.name:
        notes.append(f"the tables say that they are of {said}; they are composed as {tables.model.name}, as --set asks")
    usage = None if run.series is None else run.series.kv_usage
    if (
        usage is not None
        and usage.max() > FULL
        and "num_gpu_blocks" not in sets
        and engine_argument(run.meta, *POOL_NAMES) is None
    ):
        notes.append(
            f"the server's KV cache was {100 * usage.max():.0f} % full, but the run does not state its blocks: without "
            f"--set num_gpu_blocks=N (vLLM logs it at start-up) what follows is of a larger pool"
        )
    model = engine_argument(run.meta, "model")
    if isinstance(model, str) and "model" not in sets and model != tables.model.name:
        try:
            same = load_model_config(model).num_parameters == tables.model.num_parameters
        except FactsError:
            same = model.rsplit("/", 1)[-1].lower() == tables.model.name.rsplit("/", 1)[-1].lower()
        if not same:
            raise ExperimentError(
                f"The run served {model}, the tables are of {tables.model.name}: take the tables of that model, or say "
                f"--set model={tables.model.name} if you mean it."
            )
        notes.append(f"the run served {model}, which has the shape of {tables.model.name}")
    dtype = engine_argument(run.meta, "dtype")
    if isinstance(dtype, str) and dtype not in ("auto", tables.model.dtype):
        notes.append(f"the run's dtype is {dtype}, the tables' {tables.model.dtype}")
    ours, theirs = engine_argument(run.meta, "vllm_version"), tables.provenance.get("vllm_version")
    if ours and theirs and ours != theirs:
        notes.append(f"the run is of vLLM {ours}, the tables of {theirs}")
    return notes


def _milliseconds(sets: Mapping[str, Any], name: str) -> float:
    value = sets.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        raise ExperimentError(f"{name} is {value!r}, but milliseconds of at least 0 are needed.")
    return float(value) * 1e-3


def _host_origin(scenario: Scenario, sets: Mapping[str, Any]) -> Known:
    if any(name in sets for name in HOST_KEYS):
        given = ", ".join(f"{name}={sets[name]:g}" for name in HOST_KEYS if name in sets)
        return Known("host", given, "--set")
    if scenario.async_scheduling:
        return Known("host", "0 ms", "hidden behind the device: the next step is scheduled while this one runs")
    return Known("host", "0 ms", "not in the tables; without asynchronous scheduling every step is predicted too short")


def _predict(run: RecordedRun, scenario: Scenario, model: CostModel, host: HostTerm) -> Records:
    trace = Trace(run.folder.name, run.sent_s, run.prompt_tokens, run.output_tokens)
    config = scenario.config(scenario.num_gpu_blocks or 2)
    return simulate(trace, config, scenario.policy, [CostModelBackend(model, host)])


def _served(records: Records) -> Served:
    requests, iterations = records.requests, records.iterations
    done = requests["last_token_at"] >= 0
    if not done.all():
        raise ExperimentError(
            f"{int((~done).sum())} requests did not finish in the prediction: nothing can be compared."
        )
    arrival = requests["arrival_s"]
    launches = np.sort(iterations["start_s"])
    seen = launches[np.minimum(np.searchsorted(launches, arrival), len(launches) - 1)]
    end_s = iterations["end_s"]
    return Served(
        queued_s=np.maximum(seen, arrival),
        first_token_s=end_s[requests["first_token_at"]],
        last_token_s=end_s[requests["last_token_at"]],
        output_tokens=requests["num_output_tokens"],
    )


def _recorded(run: RecordedRun) -> Served:
    return Served(run.queued_s, run.first_token_s, run.last_token_s, run.output_tokens)


def _rows(predicted: Served, recorded: Served, run: RecordedRun) -> list[Row]:
    rows: list[Row] = []
    for label, name in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("E2E", "e2el_ms")):
        ours, theirs = getattr(predicted, name), getattr(recorded, name)
        if len(theirs):
            rows += _statistics(label, ours, theirs)
    for label, which in _groups(run):
        if which.any():
            ours, theirs = predicted.ttft_ms[which], recorded.ttft_ms[which]
            rows.append(Row(f"TTFT mean, {int(which.sum())} {label}", "ms", float(ours.mean()), float(theirs.mean())))
    rows.append(Row("Output throughput", "tokens/s", predicted.output_throughput, recorded.output_throughput))
    return rows


def _groups(run: RecordedRun) -> list[tuple[str, NDArray[np.bool_]]]:
    groups = [("requests at start-up (first second)", run.sent_s < START_UP_S)]
    if run.scheduled_s is not None:
        groups.insert(0, ("requests that did not queue", run.scheduled_s - run.queued_s < UNQUEUED_S))
    return groups


def _statistics(label: str, ours: FloatArray, theirs: FloatArray) -> list[Row]:
    both = [
        ("mean", float(ours.mean()), float(theirs.mean())),
        ("median", float(np.median(ours)), float(np.median(theirs))),
        ("P99", float(np.percentile(ours, 99)), float(np.percentile(theirs, 99))),
    ]
    return [Row(f"{label} {word}", "ms", one, other) for word, one, other in both]


def _timeline(records: Records, run: RecordedRun) -> Timeline | None:
    series = run.series
    if series is None:
        return None
    iterations = records.iterations
    at = np.searchsorted(iterations["start_s"], series.t_s, side="right") - 1
    inside = (at >= 0) & (series.t_s <= iterations["end_s"].max())
    running, waiting = (
        np.where(inside, iterations[name][np.maximum(at, 0)], 0).astype(np.float64)
        for name in ("num_running", "num_waiting")
    )
    return Timeline(series.t_s, running, series.running, waiting, series.waiting)


def _p99_itl_ms(records: Records) -> float:
    from ..sim.metrics import metrics

    return metrics(records, 1, {})["p99_itl_ms"]


def parse_sets(words: Sequence[str]) -> dict[str, Any]:
    """``key=value`` words, values as JSON where they are. Raises ``ExperimentError``."""
    from .options import parse_sets as words_to_fields

    found = words_to_fields(words)
    known = {*Scenario.model_fields, *TABLE_KEYS, *HOST_KEYS}
    for name in found:
        if name not in known:
            raise ExperimentError(
                f"--set {name}: there is no such field; fields of a scenario, {', '.join(TABLE_KEYS)} "
                f"and {', '.join(HOST_KEYS)} can be set."
            )
    return found

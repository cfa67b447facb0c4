"""A scenario: everything that decides a replay, and nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..scheduler.config import SchedulerConfig
from ..sim.metrics import SLO_NAMES
from ..sim.wording import first_problem
from ..traces import GENERATORS, Ramp, Trace, bench_arrivals_s, load_trace
from .errors import ExperimentError

_POOL_FIELDS = ("num_gpu_blocks", "kv_memory_bytes")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TraceSpec(_Part):
    """Which requests, in this order of verbs: read, slice, thin, repeat, scale lengths, send, scale the rate."""

    source: str = "azure-conv-like"
    """A file, or the name of a generator."""
    start: int = Field(0, ge=0)
    num_requests: int | None = Field(None, ge=1)
    thin: float = Field(1.0, gt=0, le=1)
    repeat: int = Field(1, ge=1)
    """So many times, one after another."""
    prompt_scale: float = Field(1.0, gt=0)
    output_scale: float = Field(1.0, gt=0)
    max_prompt_tokens: int | None = Field(None, ge=1)
    max_output_tokens: int | None = Field(None, ge=1)
    request_rate: float | None = Field(None, gt=0)
    """Requests a second at which a client sends them, instead of when the trace says (``vllm bench serve``)."""
    burstiness: float = Field(1.0, gt=0)
    """Shape of that client's gamma distributed gaps: 1 is Poisson, less is burstier."""
    ramp_up_strategy: Literal["linear", "exponential"] | None = None
    """Instead of ``request_rate``: the client's rate goes from ``ramp_up_start_rps`` to ``ramp_up_end_rps``."""
    ramp_up_start_rps: float | None = Field(None, gt=0)
    ramp_up_end_rps: float | None = Field(None, gt=0)
    rate_scale: float = Field(1.0, gt=0)
    offline: bool = False
    seed: int = 0
    sort: bool = False
    """Sort a file's rows by arrival, instead of refusing one that goes back in time."""
    drop_zero_output: bool = False
    """Leave out a file's rows without output, instead of refusing them."""

    @model_validator(mode="after")
    def _one_client(self) -> TraceSpec:
        ends = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if self.ramp_up_strategy is not None and None in ends:
            raise ValueError("a ramp_up_strategy needs ramp_up_start_rps and ramp_up_end_rps")
        if self.ramp_up_strategy is None and ends != (None, None):
            raise ValueError("ramp_up_start_rps and ramp_up_end_rps need a ramp_up_strategy: linear or exponential")
        if self.ramp_up_strategy is not None and self.request_rate is not None:
            raise ValueError("give request_rate or a ramp_up_strategy, not both")
        if self.client_rate is None and self.burstiness != 1:
            raise ValueError("burstiness is that of a client: give request_rate (or a ramp_up_strategy) as well")
        if self.client_rate is not None and self.offline:
            raise ValueError("offline sends all requests at once: leave out request_rate and the ramp")
        return self

    @property
    def client_rate(self) -> float | Ramp | None:
        """What the client sends at; None where the trace says when."""
        if self.ramp_up_strategy is None:
            return self.request_rate
        return Ramp(self.ramp_up_strategy, self.ramp_up_start_rps or 0.0, self.ramp_up_end_rps or 0.0)

    @property
    def is_drawn(self) -> bool:
        """Whether another ``seed`` gives other requests or arrivals: False for a recorded trace as it is."""
        generated = self.source.partition(":")[0] in GENERATORS
        return generated or self.thin < 1 or self.client_rate is not None

    def load(self) -> Trace:
        """The requests; those of a file are read again when it has changed. Raises ``TraceError``."""
        return _load(self, _version(self.source))


_Version = tuple[str, int, int] | None


def _version(source: str) -> _Version:
    """What tells a file from another of its name and from what it was: its absolute path, time and size; None for what
    is no file.
    """
    try:
        found, path = Path(source).stat(), Path(source).absolute()
    except (OSError, ValueError):
        return None
    return str(path), found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4)  # as many seeds as a cell is predicted with, and one more
def _read(source: str, seed: int, sort: bool, drop_zero_output: bool, _: _Version) -> Trace:
    return load_trace(source, seed=seed, sort=sort, drop_zero_output=drop_zero_output)


@lru_cache(maxsize=8)
def _load(spec: TraceSpec, version: _Version) -> Trace:
    trace = _read(spec.source, spec.seed, spec.sort, spec.drop_zero_output, version)
    if spec.start or spec.num_requests is not None:
        stop = len(trace) if spec.num_requests is None else spec.start + spec.num_requests
        trace = trace.slice(spec.start, stop)
    if spec.thin < 1:
        trace = trace.thin(spec.thin, spec.seed)
    if spec.repeat > 1:
        trace = trace.repeat(spec.repeat)
    limits = (spec.max_prompt_tokens, spec.max_output_tokens)
    if (spec.prompt_scale, spec.output_scale) != (1, 1) or limits != (None, None):
        trace = trace.scale_lengths(spec.prompt_scale, spec.output_scale, *limits)
    if (rate := spec.client_rate) is not None:
        arrival_s = bench_arrivals_s(len(trace), spec.seed, rate, spec.burstiness)
        trace = trace.arriving(arrival_s, f"{rate} requests/s, burstiness {spec.burstiness:g}, seed {spec.seed}")
    if spec.rate_scale != 1:
        trace = trace.scale_rate(spec.rate_scale)
    return trace.offline() if spec.offline else trace


class Scenario(_Part):
    """One cell of an experiment. Fields carry vLLM's names where it has them."""

    trace: TraceSpec = TraceSpec()
    model: str = "tiny-llama"
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = Field(None, ge=1)
    policy: str = "vllm_v1"
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int = Field(4096, ge=2)
    max_num_active_seqs: int | None = None
    block_size: int = 16
    num_gpu_blocks: int | None = None
    kv_memory_bytes: int | None = Field(None, ge=1)
    """A budget from which the cell derives its blocks; this or ``num_gpu_blocks``, not both."""
    gpu: str | None = None
    """A device of ``sim.facts``, from whose memory the cell derives its blocks where neither of the two is set."""
    gpu_memory_utilization: float = Field(0.92, gt=0, le=1)
    tensor_parallel_size: int = Field(1, ge=1)
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    """Of the weights, where the model's config does not say it (awq, fp8, …)."""
    enforce_eager: bool = False
    """No memory for CUDA graphs."""
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    async_scheduling: bool = False
    scheduler_reserve_full_isl: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    prefill_schedule_interval: int = 1
    watermark: float = 0.0
    preemption_mode: Literal["recompute", "swap"] = "recompute"
    num_cpu_blocks: int = 0
    victim: Literal["last", "lowest_priority", "cheapest"] | None = None
    num_clients: int | None = Field(None, ge=1)
    """Closed loop with so many clients; open loop if not set."""
    think_s: float = Field(0.0, ge=0)
    max_concurrency: int | None = Field(None, ge=1)
    """At most so many requests under way (``vllm bench serve --max-concurrency``): the others wait at the client's own
    gate, in order, which is recorded apart and is no part of TTFT."""
    num_replicas: int = Field(1, ge=1)
    """Servers behind a router, each with these knobs and a KV pool of its own; predicted only."""
    router: Literal["round_robin", "least_outstanding", "prefix_affinity"] = "round_robin"
    router_min_prefix_share: float = Field(0.0, ge=0, le=1)
    """Share of a prompt's KV blocks that a replica must have been sent before, for ``prefix_affinity`` to choose it."""
    slo: dict[str, float] = {}
    """Limits in ms: ``ttft_ms``, ``tpot_ms``, ``e2el_ms``."""
    device_class: Literal["cpu", "gpu", "large_gpu", "huge_gpu"] | None = None
    """Whose defaults vLLM would take: a CPU, a GPU, one with at least 70 GiB (not the A100), or with at least 160; by
    ``gpu``, else by ``device``, if not set."""
    default_cell: Literal["llm_class", "server"] = "server"
    """Which of vLLM's two defaults for the device class counts as "the default"."""
    temperature: float = Field(0.0, ge=0)
    """How a measured run samples (0: greedily), each request by a seed of its own; a prediction ignores it."""
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = 0

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        unknown = sorted(set(self.slo) - set(SLO_NAMES))
        if unknown:
            raise ValueError(f"there is no SLO {unknown[0]!r}; known are {', '.join(SLO_NAMES)}")
        wrong = next((name for name in sorted(self.slo) if self.slo[name] <= 0), None)
        if wrong:
            raise ValueError(f"the SLO {wrong} is {self.slo[wrong]:g} ms, but a limit must be above 0")
        if self.num_clients is not None and self.max_concurrency is not None:
            raise ValueError("give num_clients or max_concurrency, not both")
        if self.max_concurrency is not None and self.think_s:
            raise ValueError("think_s is that of num_clients: a gate of max_concurrency lets the next one go at once")
        if self.num_gpu_blocks is not None and self.kv_memory_bytes is not None:
            raise ValueError("give num_gpu_blocks or kv_memory_bytes, not both")
        if self.num_gpu_blocks is None and self.kv_memory_bytes is None and self.gpu is None:
            object.__setattr__(self, "num_gpu_blocks", 4096)
        return self

    @property
    def concurrency(self) -> int | None:
        """The most requests that the clients have under way at once; None if nothing holds them back. A gate of
        ``max_concurrency`` in front of arrivals is a closed loop of so many clients who do not think.
        """
        return self.num_clients if self.max_concurrency is None else self.max_concurrency

    def config(self, num_gpu_blocks: int) -> SchedulerConfig:
        """The scheduler's knobs with this many blocks. Raises ``ConfigError``."""
        knobs = {
            field.name: getattr(self, field.name) for field in fields(SchedulerConfig) if hasattr(self, field.name)
        }
        return SchedulerConfig(**{**knobs, "num_gpu_blocks": num_gpu_blocks})

    def with_(self, **changes: Any) -> Scenario:
        """A copy with some fields changed, checked again; a new way to size the KV pool replaces the one before.
        Raises ``ExperimentError``.
        """
        fields = self.model_dump()
        if any(changes.get(name) is not None for name in (*_POOL_FIELDS, "gpu")):
            fields |= dict.fromkeys(_POOL_FIELDS)
        return make_scenario(**{**fields, **changes})

    def digest(self) -> str:
        """A name for exactly this scenario."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


def make_scenario(**fields: Any) -> Scenario:
    """A checked scenario. Raises ``ExperimentError`` with the field and what is wrong."""
    try:
        return Scenario.model_validate(fields)
    except ValidationError as error:
        raise ExperimentError(f"{first_problem(error, Scenario)}.") from error


def load_scenario(path: Path) -> Scenario:
    """Read a scenario from JSON. Raises ``ExperimentError``."""
    try:
        return Scenario.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ExperimentError(f"The scenario {path} cannot be read ({error.strerror}).") from error
    except ValidationError as error:
        raise ExperimentError(f"{path} is not a scenario: {first_problem(error, Scenario)}.") from error

"""From a published point to what is simulated: profile, scheduler, requests; with a word on whatever was assumed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

from ..scheduler.config import SchedulerConfig
from ..scheduler.errors import BatchTwinError
from ..sim.cost.models import HostTerm
from ..sim.cost.tables.by_spec import spec_profile
from ..sim.cost.tables.composed import TableProfile
from ..sim.facts.device import DeviceSpec, find_device, known_devices
from ..sim.facts.library import load_model_config
from ..sim.facts.memory import Knobs, plan_memory
from ..sim.facts.model import ModelConfig
from ..sim.world import Clients
from ..traces.generate import generate
from ..traces.lengths import Fixed, LengthDistribution, Lognormal
from ..traces.trace import Trace
from .engine_args import ASYNC_SINCE, V1_SINCE, vllm_version
from .errors import ExperimentError
from .grid import DEFAULTS
from .points import Point

V0_HOST = HostTerm(0.80e-3, 0.042e-3)
"""A synchronous engine of 2024 in Python: a line through schedule + sampler + input preparation + output processing
of Llama-2-7B on an A100 by batch size, in Vidur's ``cpu_overheads.csv`` (1.17 ms at 8, 6.22 at 128)."""
V1_SYNC_HOST = HostTerm(0.85e-3, 0.018e-3)
"""V1 without asynchronous scheduling: 12 to 24 µs a running request for schedule and update (the real scheduler,
measured; scheduler.md §12 of the shared notes), and Vidur's input preparation and sampler launch at small batches."""
LAST_V0 = (0, 7)
V0_WATERMARK = 0.01
"""Blocks that V0 keeps free when it admits."""
DATASET_MEANS = {"sharegpt": (161.3, 338.0), "alpaca": (19.3, 58.5)}
"""Mean prompt and output tokens where a point names its data set only. Source: the PagedAttention paper (Kwon et al.,
SOSP 2023), figure 11."""
SHAREGPT_CV = 1.0
"""Spread of lengths where only "ShareGPT" and their means are said: an assumption."""
MIN_PROMPTS, MAX_PROMPTS, MOST_PROMPTS = 200, 2000, 20_000
SEED = 0


@dataclass(slots=True)
class Setup:
    """What is simulated for one point."""

    profile: TableProfile
    config: SchedulerConfig
    policy: str
    host: HostTerm
    trace: Trace
    clients: Clients | None
    assumed: list[str] = field(default_factory=list)


def setup_point(point: Point, given: TableProfile | None, *, before_v1: bool = False) -> Setup:
    """``before_v1`` says what a point without a version is of. Raises ``BatchTwinError`` with what the point does not
    say or what cannot be predicted.
    """
    assumed: list[str] = []
    model, device = _model(point, given), _device(point, assumed)
    profile = _profile(point, model, device, given, assumed)
    version = vllm_version(point.vllm_version)
    if version is None and before_v1:
        version = LAST_V0
        assumed.append("no version, and points of the same source without chunked prefill: vLLM before V1")
    chunked = _chunked(point, version, assumed)
    config = _config(point, model, device, chunked, version, assumed)
    old = version is not None and version < V1_SINCE
    config = _with_pool(point, config, model, device, old, assumed)
    policy = "prefill_first" if old and not chunked else "vllm_v1"
    host = _host(point, config, old, assumed)
    trace, clients = _requests(point, config, assumed)
    return Setup(profile, config, policy, host, trace, clients, assumed)


@cache
def _config_of(name: str) -> ModelConfig:
    return load_model_config(name)


def _model(point: Point, given: TableProfile | None) -> ModelConfig:
    name = point.model or (given.model.name if given is not None else None)
    if name is None:
        raise ExperimentError("the point does not say which model was served")
    return _config_of(name)


def _device(point: Point, assumed: list[str]) -> DeviceSpec | None:
    """The GPU of that name; else the one with the longest name that is a part of it (``H100 64GB SXM``)."""
    if point.gpu is None:
        return None
    try:
        return find_device(point.gpu)
    except BatchTwinError:
        pass
    asked = _letters(point.gpu)
    parts = [device for name, device in known_devices().items() if _letters(name) in asked]
    if not parts:
        return None
    nearest = max(parts, key=lambda device: len(device.name))
    assumed.append(f"GPU {point.gpu!r} taken for the {nearest.name}")
    return nearest


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _profile(
    point: Point, model: ModelConfig, device: DeviceSpec | None, given: TableProfile | None, assumed: list[str]
) -> TableProfile:
    """The profile that was named if it is of this model, GPU and degree; else by data sheet."""
    degree = point.tensor_parallel_size or 1
    fits = given is not None and given.tensor_parallel == degree and _same_model(given, model)
    if given is not None and fits and (device is None or _same_device(given, device)):
        return given
    if device is None:
        raise ExperimentError(
            f"no GPU named {point.gpu!r} is known and no profile of {model.name} at {degree} GPUs was given"
            if point.gpu
            else "the point does not say which GPU served it, and no profile of its model was given"
        )
    if given is not None:
        assumed.append("the profile given is of something else: operators by data sheet")
    return _by_spec(model, device, degree, point.kv_cache_dtype or "auto")


@cache
def _by_spec(model: ModelConfig, device: DeviceSpec, degree: int, kv_dtype: str) -> TableProfile:
    return spec_profile(model, device, tensor_parallel=degree, kv_dtype=kv_dtype)


def _same_model(given: TableProfile, model: ModelConfig) -> bool:
    return given.model.num_parameters == model.num_parameters and given.model.num_layers == model.num_layers


def _same_device(given: TableProfile, device: DeviceSpec) -> bool:
    try:
        return find_device(given.device.name).name == device.name
    except BatchTwinError:
        return True  # a profile whose GPU has no data sheet here: the user named it for this row


def _chunked(point: Point, version: tuple[int, int] | None, assumed: list[str]) -> bool:
    if point.enable_chunked_prefill is not None:
        return point.enable_chunked_prefill
    on = version is None or version >= V1_SINCE
    assumed.append(f"chunked prefill {'on' if on else 'off'}, the default")
    return on


def _config(
    point: Point,
    model: ModelConfig,
    device: DeviceSpec | None,
    chunked: bool,
    version: tuple[int, int] | None,
    assumed: list[str],
) -> SchedulerConfig:
    """All knobs but the pool."""
    kind = "gpu" if device is None else device.device_class
    seqs_default, budget_default = DEFAULTS[kind if kind in DEFAULTS else "large_gpu"]["server"]
    longest = int((point.input_tokens or 0) + (point.output_tokens or 0)) + 1
    max_len = point.max_model_len or max(model.max_model_len, longest)
    seqs = point.max_num_seqs or seqs_default
    if point.max_num_seqs is None:
        assumed.append(f"max_num_seqs {seqs}, the default")
    budget = point.max_num_batched_tokens
    if budget is None:
        budget = budget_default if chunked else max(max_len, 2048)
        assumed.append(f"max_num_batched_tokens {budget}, the default")
    if not chunked and budget < max_len:
        max_len = budget
        assumed.append(f"max_model_len {max_len}: without chunked prefill a prompt must fit the budget")
    if budget < seqs:
        assumed.append(f"budget raised from {budget} to max_num_seqs")
        budget = seqs
    asynchronous = point.async_scheduling
    if asynchronous is None:
        asynchronous = version is None or version >= ASYNC_SINCE
    return SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_len,
        block_size=point.block_size or 16,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=False if point.enable_prefix_caching is None else point.enable_prefix_caching,
        async_scheduling=asynchronous,
    )


def _with_pool(
    point: Point,
    config: SchedulerConfig,
    model: ModelConfig,
    device: DeviceSpec | None,
    old: bool,
    assumed: list[str],
) -> SchedulerConfig:
    blocks = point.num_gpu_blocks
    if blocks is None and point.kv_cache_tokens is not None:
        blocks = point.kv_cache_tokens // config.block_size + 1
    if blocks is None:
        if device is None:
            raise ExperimentError("neither num_gpu_blocks nor a known GPU says how many KV blocks there were")
        share = point.gpu_memory_utilization or 0.9
        knobs = Knobs(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            tensor_parallel_size=point.tensor_parallel_size or 1,
            gpu_memory_utilization=share,
            kv_cache_dtype=point.kv_cache_dtype or "auto",
            block_size=config.block_size,
            enforce_eager=point.enforce_eager is True,
        )
        blocks = plan_memory(model, device, knobs).num_gpu_blocks
        if blocks < 2:
            raise ExperimentError(
                f"{model.name} leaves no room for KV blocks on {device.name} at {share:g} of its memory"
            )
        assumed.append(f"KV blocks from the memory of {device.name} at {share:g}: an estimate")
    return replace(config, num_gpu_blocks=blocks, watermark=V0_WATERMARK if old else 0.0)


def _host(point: Point, config: SchedulerConfig, old: bool, assumed: list[str]) -> HostTerm:
    if point.host_fixed_ms is not None or point.host_per_seq_ms is not None:
        return HostTerm((point.host_fixed_ms or 0.0) * 1e-3, (point.host_per_seq_ms or 0.0) * 1e-3)
    if config.async_scheduling:
        return HostTerm()
    host, which = (V0_HOST, "a 2024 engine (Vidur)") if old else (V1_SYNC_HOST, "V1 without asynchronous scheduling")
    assumed.append(f"host {1e3 * host.fixed_s:.2f} ms + {1e6 * host.per_seq_s:.0f} µs a sequence, as of {which}")
    return host


def _requests(point: Point, config: SchedulerConfig, assumed: list[str]) -> tuple[Trace, Clients | None]:
    prompt_tokens, output_tokens = _mean_lengths(point, assumed)
    if not prompt_tokens or not output_tokens:
        raise ExperimentError("the point does not say how long prompts and outputs were")
    busy = max(config.max_num_seqs, point.concurrency or 0)
    count = point.num_prompts
    if count is None:
        count = min(max(4 * busy, MIN_PROMPTS), MAX_PROMPTS)
        assumed.append(f"{count} requests")
    if count > MOST_PROMPTS:
        assumed.append(f"{MOST_PROMPTS:,} requests instead of {count:,}")
        count = MOST_PROMPTS
    rate = point.request_rate or float("inf")
    if point.request_rate is None and point.concurrency is None:
        assumed.append("all requests at once")
    trace = generate(
        max(count, 1),
        rate,
        SEED,
        burstiness=point.burstiness or 1.0,
        prompt=_lengths("prompts", prompt_tokens, point.input_cv, point.dataset, assumed),
        output=_lengths("outputs", output_tokens, point.output_cv, point.dataset, assumed),
    )
    room = config.max_model_len - 1
    trace = trace.scale_lengths(1.0, 1.0, max(room - 1, 1), None)
    over = trace.num_prompt_tokens + trace.output_len > room
    if over.any():
        trace = trace.scale_lengths(1.0, 1.0, room // 2 + 1, max(room // 2, 1))
        assumed.append("lengths cut to max_model_len")
    return trace, None if point.concurrency is None else Clients(point.concurrency)


def _mean_lengths(point: Point, assumed: list[str]) -> tuple[float | None, float | None]:
    named = next((name for name in DATASET_MEANS if name in (point.dataset or "").lower()), None)
    if named is None or (point.input_tokens and point.output_tokens):
        return point.input_tokens, point.output_tokens
    prompt, output = DATASET_MEANS[named]
    assumed.append(f"mean lengths of {named} as the PagedAttention paper has them")
    return point.input_tokens or prompt, point.output_tokens or output


def _lengths(what: str, mean: float, cv: float | None, dataset: str | None, assumed: list[str]) -> LengthDistribution:
    if cv is None and dataset is not None and "sharegpt" in dataset.lower():
        cv = SHAREGPT_CV
        assumed.append(f"{what} spread as lognormal with a coefficient of variation of {cv:g}")
    if not cv:
        return Fixed(max(1, round(mean)))
    variance = _log_variance(cv)
    return Lognormal(max(1.0, mean / (1.0 + cv * cv) ** 0.5), variance**0.5)


def _log_variance(cv: float) -> float:
    """σ² of the logarithm of a lognormal with this coefficient of variation."""
    from math import log1p

    return log1p(cv * cv)

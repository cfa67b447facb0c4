"""The question that the scenario bar holds: a scenario, from the open sweep and what the address changes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..experiments.errors import ExperimentError
from ..experiments.kv_pool import num_gpu_blocks
from ..experiments.scenario import Scenario, make_scenario
from ..scheduler.errors import BatchTwinError
from ..sim.cost.profile import ModelFacts, Profile
from ..sim.metrics import SLO_NAMES
from ..traces import TraceError
from .labels import number

PRESETS: dict[str, dict[str, float]] = {
    "chat": {"ttft_ms": 500.0, "tpot_ms": 50.0},
    "code": {"ttft_ms": 250.0, "tpot_ms": 25.0},
    "RAG": {"ttft_ms": 2000.0, "tpot_ms": 75.0},
    "batch": {},
}
"""SLOs by kind of service, each a starting point and not a standard: chat answers within half a second at 20 tokens/s
a reader, code completion is twice as impatient, retrieval may read its long prompt for two seconds, a batch job has no
limit."""


class Field(NamedTuple):
    """One thing the bar may change: where it stands in a scenario and how it is read."""

    path: str
    read: Callable[[str], Any]


def _flag(text: str) -> bool:
    return {"1": True, "0": False}[text]


def _some(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """``none`` for not set."""
    return lambda text: None if text == "none" else read(text)


def read_slo(text: str) -> dict[str, float]:
    """A preset's name, or ``ttft_ms=500,tpot_ms=50``; ``none`` for none. Raises ``ValueError`` or ``KeyError``."""
    if text in PRESETS:
        return PRESETS[text]
    if text == "none":
        return {}
    pairs = [part.split("=") for part in text.split(",")]
    return {name: float(value) for name, value in pairs}


def write_slo(slo: Mapping[str, float]) -> str:
    """What ``read_slo`` reads; the name of a preset where it is one."""
    preset = next((name for name, limits in PRESETS.items() if limits == dict(slo)), None)
    return preset or ",".join(f"{name}={slo[name]:g}" for name in SLO_NAMES if name in slo)


FIELDS = {
    "trace": Field("trace.source", str),
    "requests": Field("trace.num_requests", _some(int)),
    "rate": Field("trace.rate_scale", float),
    "prompts": Field("trace.prompt_scale", float),
    "outputs": Field("trace.output_scale", float),
    "offline": Field("trace.offline", _flag),
    "clients": Field("num_clients", _some(int)),
    "blocks": Field("num_gpu_blocks", int),
    "context": Field("max_model_len", int),
    "seed": Field("seed", int),
    "slo": Field("slo", read_slo),
}
"""By the name in the address."""
WORDS = {
    "profile": "profile",
    "trace": "trace",
    "requests": "number of requests",
    "rate": "rate",
    "prompts": "prompt lengths",
    "outputs": "output lengths",
    "offline": "arrivals",
    "clients": "clients",
    "blocks": "KV blocks",
    "context": "max_model_len",
    "seed": "seed",
    "slo": "SLOs",
}


@dataclass(frozen=True)
class Question:
    """What is asked. ``changed`` names (as ``WORDS`` does) what the open sweep does not answer; SLOs are not among
    them, since its cells can be judged by any.
    """

    scenario: Scenario
    profile: Profile | None
    profile_path: str
    changed: tuple[str, ...] = ()


def ask(base: Scenario, address: Mapping[str, str], profile: Profile | None, profile_path: str) -> Question:
    """``base`` with what the address changes of it; nonsense in an address changes nothing. Another profile than the
    open sweep's brings its own model, dtype, device, threads and block size.
    """
    scenario = _fitted(base, profile)
    changed = ["profile"] if scenario != base else []
    for name, field in FIELDS.items():
        if name in address:
            asked = _with(scenario, field, address[name])
            if asked != scenario and name != "slo":
                changed.append(name)
            scenario = asked
    return Question(scenario, profile, profile_path, tuple(WORDS[name] for name in changed))


def value_of(scenario: Scenario, name: str) -> Any:
    """A field of the bar, as the scenario has it."""
    value: Any = scenario
    for part in FIELDS[name].path.split("."):
        value = getattr(value, part)
    return value


def write(name: str, value: Any) -> str:
    """A field's value for the address."""
    if name == "slo":
        return write_slo(value) or "none"
    if isinstance(value, bool):
        return str(int(value))
    return "none" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)


def _with(scenario: Scenario, field: Field, text: str) -> Scenario:
    try:
        value = field.read(text)
        first, _, rest = field.path.partition(".")
        if first == "seed":
            return scenario.with_(seed=value, trace={**scenario.trace.model_dump(), "seed": value})
        return scenario.with_(**{first: {**scenario.trace.model_dump(), rest: value} if rest else value})
    except (ValueError, KeyError, ExperimentError):
        return scenario


def _fitted(base: Scenario, profile: Profile | None) -> Scenario:
    if profile is None:
        return base
    own = {
        "model": profile.model.name,
        "dtype": profile.model.dtype,
        "device": profile.device.type,
        "block_size": profile.block_size,
    }
    if all(getattr(base, name) == value for name, value in own.items()):
        return base
    threads = profile.device.threads if profile.device.type == "cpu" else None
    fits = min(base.max_model_len, profile.model.max_model_len)
    return make_scenario(**{**base.model_dump(), **own, "threads": threads, "max_model_len": fits})


def feasibility(question: Question) -> str:
    """Weights, KV blocks and the maximum concurrency (as vLLM's start-up line has it: the pool over max_model_len), or
    in one sentence why it cannot be said.
    """
    if question.profile is None:
        return "Choose a profile: it knows the model's sizes and the device."
    scenario, model = question.scenario, question.profile.model
    try:
        blocks = num_gpu_blocks(scenario, model)
        if blocks < 2:
            return f"{blocks:,} KV blocks hold nothing: give at least 2, one of which is never handed out."
        mean_tokens = _mean_tokens(scenario)
    except (BatchTwinError, TraceError) as error:
        return str(error)
    return _feasibility(scenario, model, blocks, mean_tokens)


def _feasibility(scenario: Scenario, model: ModelFacts, blocks: int, mean_tokens: float) -> str:
    tokens = (blocks - 1) * scenario.block_size
    parts = [
        f"Weights {in_bytes(model.num_parameters * model.dtype_bytes)}",
        f"KV cache {blocks - 1:,} blocks × {scenario.block_size} = {tokens:,} tokens "
        f"({in_bytes(tokens * model.kv_bytes_per_token)})",
        f"maximum concurrency {tokens / scenario.max_model_len:.1f} requests of max_model_len "
        f"{scenario.max_model_len:,}, {number(tokens / mean_tokens)} of this trace's mean, "
        f"{number(mean_tokens)} tokens",
    ]
    text = " · ".join(parts)
    if tokens < scenario.max_model_len:
        text += " · a request of max_model_len does not fit: raise the KV blocks or lower max_model_len"
    return text


def _mean_tokens(scenario: Scenario) -> float:
    trace = scenario.trace.load()
    return float((trace.num_prompt_tokens + trace.output_len).mean())


def in_bytes(value: float) -> str:
    """With a binary unit."""
    for limit, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if value >= limit:
            return f"{number(value / limit)} {unit}"
    return f"{number(value / 2**10)} KiB"

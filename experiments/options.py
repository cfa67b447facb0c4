"""From the words of a command line to a scenario."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..sim.cost.profile import Profile, load_profile
from .errors import ExperimentError
from .scenario import Scenario, make_scenario

if TYPE_CHECKING:
    from .plan import Plan

_TRACE_FIELDS = {
    "trace": "source",
    "requests": "num_requests",
    "rate_scale": "rate_scale",
    "request_rate": "request_rate",
    "burstiness": "burstiness",
    "prompt_scale": "prompt_scale",
    "output_scale": "output_scale",
    "max_prompt_tokens": "max_prompt_tokens",
    "max_output_tokens": "max_output_tokens",
    "offline": "offline",
    "seed": "seed",
}
_SAME_NAME = (
    "dtype",
    "device",
    "threads",
    "policy",
    "router",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "num_gpu_blocks",
    "kv_memory_bytes",
    "gpu",
    "max_concurrency",
    "seed",
)

_PLAN_NAMES = (
    "model",
    "gpu",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "quantization",
    "block_size",
    "num_gpu_blocks",
    "prompt_tokens",
    "output_tokens",
    "enforce_eager",
    "vllm_version",
    "entry",
)


def profile_from_options(options: Mapping[str, Any]) -> Profile | None:
    """The profile that a command is given. Of a folder of operator tables, those of the model, degree and way to launch
    that the options name. Raises ``ProfileError``.
    """
    if options["profile"] is None:
        return None
    sets = parse_sets(options["fields"] or ())
    degree = sets.get("tensor_parallel_size")
    return load_profile(
        options["profile"],
        model=sets.get("model", options["model"]),
        tensor_parallel=degree if isinstance(degree, int) and degree >= 1 else None,
        enforce_eager=sets.get("enforce_eager") is True,
    )


def scenario_from_options(options: Mapping[str, Any], profile: Profile | None = None) -> Scenario:
    """A scenario from a command's options by name (``profile`` is the one they name, if it is read already); a model
    that is not given is the profile's, which also says the dtype, device and block size unless they are given (then
    another than the profile's is refused). Raises ``ExperimentError``.
    """
    fields: dict[str, Any] = {name: options[name] for name in _SAME_NAME if name in options}
    fields["num_replicas"] = options.get("replicas", 1)
    fields["trace"] = {field: options[name] for name, field in _TRACE_FIELDS.items() if name in options}
    fields["num_clients"] = options["clients"]
    fields["slo"] = parse_slo(options["slo"] or ())
    profile = profile or profile_from_options(options)
    if options["model"] is not None:
        fields["model"] = options["model"]
    elif profile is not None:
        fields["model"] = profile.model.name
    if profile is None and options.get("gpu") is not None:
        fields |= _device_of_gpu(options["model"])
    if profile is not None:
        fields |= _of_tables(profile, options["model"])
        own = {"dtype": profile.model.dtype, "device": profile.device.type}
        fields |= {name: value for name, value in own.items() if fields[name] is None}
        fields["block_size"] = profile.block_size
        if profile.memory is not None and options["num_gpu_blocks"] is None and options["kv_memory_bytes"] is None:
            fields["num_gpu_blocks"] = profile.memory.num_gpu_blocks
        if options["threads"] is None and profile.device.type == "cpu":
            fields["threads"] = profile.device.threads
    fields = {name: value for name, value in fields.items() if value is not None}
    return make_scenario(**_merge(fields, parse_sets(options["fields"] or ())))


def _of_tables(profile: Profile, model: str | None) -> dict[str, Any]:
    """What operator tables say of a scenario that a calibrated profile does not: their degree, and the name under which
    they have the model that is given.
    """
    degree = getattr(profile, "tensor_parallel", None)
    if degree is None:
        return {}
    from ..sim.facts.library import load_model_config

    named = {} if model is None else {"model": load_model_config(model).name}
    return {"tensor_parallel_size": degree, **named}


def _device_of_gpu(model: str | None) -> dict[str, str]:
    """What a prediction from a data sheet computes in. Raises ``ExperimentError`` if there is no model."""
    from .ask import configured

    if model is None:
        raise ExperimentError("--gpu without a profile needs a model: give --model, such as meta-llama/Llama-3.1-8B.")
    return {"device": "cuda", "dtype": configured(model).dtype}


def plan_from_options(options: Mapping[str, Any]) -> Plan:
    """A plan from the options of ``batchtwin plan``. Raises ``BatchTwinError``."""
    from .plan import ENTRIES, plan

    if options["entry"] not in ENTRIES:
        raise ExperimentError(f"--entry {options['entry']}: give {' or '.join(ENTRIES)}.")
    return plan(**{name: options[name] for name in _PLAN_NAMES}, enable_chunked_prefill=options["chunked_prefill"])


def sweep_from_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What ``sweep`` is asked for besides folder, scenario and profile. Raises ``ExperimentError``."""
    from .pool import parse_backend

    return {
        "max_num_seqs": parse_list("--seqs", options["seqs"]),
        "max_num_batched_tokens": parse_list("--tokens", options["tokens"]),
        "policies": parse_policies(options["policies"]),
        "measure": parse_measure(options["measure"]),
        "backend": parse_backend(options["backend"]),
        **{name: options[name] for name in ("objective", "repeats", "seeds", "workers", "search", "bare")},
    }


def parse_slo(words: Sequence[str]) -> dict[str, float]:
    """``ttft_ms=500`` and so on, as a mapping."""
    limits = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            limits[name] = float(value)
        except ValueError as error:
            raise ExperimentError(f"--slo {word}: give a name and a limit in ms, such as ttft_ms=500.") from error
    return limits


def parse_policies(text: str) -> list[str]:
    """Policies separated by commas; a policy's own options (``name:a=1,b=2``) stay with it."""
    found: list[str] = []
    for part in text.split(","):
        if found and "=" in part and ":" not in part:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def parse_clock(text: str) -> bool:
    """Whether the wall clock paces the replay."""
    if text not in ("sim", "wall"):
        raise ExperimentError(f"--clock {text}: give sim or wall.")
    return text == "wall"


def parse_stream(stream: bool, output: Path | None) -> Path | None:
    """Where a run goes that is written while it is made."""
    if stream and output is None:
        raise ExperimentError("--stream needs a folder: give --output.")
    return output if stream else None


def parse_list(option: str, text: str) -> list[int]:
    """``8,16,32`` as numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ExperimentError(f"{option} {text}: give whole numbers separated by commas, such as 8,16,32.") from error


def parse_measure(text: str | None) -> int | Literal["all"] | None:
    """A number of cells, ``all``, or nothing."""
    if text is None:
        return None
    if text == "all":
        return "all"
    try:
        return int(text)
    except ValueError as error:
        raise ExperimentError(f"--measure {text}: give a number of cells, or all.") from error


def parse_sets(words: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ExperimentError(f"--set {word}: give field=value, such as enable_chunked_prefill=false.")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def _merge(fields: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``trace.start=100`` goes into the trace."""
    for name, value in more.items():
        where, dot, rest = name.partition(".")
        if dot and where == "trace" and isinstance(fields["trace"], dict):
            fields["trace"][rest] = value
        else:
            fields[name] = value
    return fields

"""What a sweep's results rest on, as pairs of a label and a text: for the side of the page and the head of a report."""

from __future__ import annotations

from typing import NamedTuple

from ..experiments.grid import default_cell, policy_label
from ..experiments.provenance import provenance
from ..experiments.scenario import Scenario, TraceSpec
from ..sim.cost.profile import Profile
from ..traces.errors import TraceError
from .labels import number, percent
from .results import Results


class Fact(NamedTuple):
    """One thing to know."""

    label: str
    text: str


def facts(results: Results) -> list[Fact]:
    """Model, device, trace, load, KV pool, scheduler, SLOs, vLLM's default and the profile with its errors."""
    scenario, profile = results.sweep.spec.scenario, results.sweep.profile
    found = [
        Fact("Model", _model(profile)),
        Fact("Device", _device(profile)),
        Fact("Requests", trace_text(scenario.trace)),
        Fact("Arrivals", _arrivals(scenario)),
        Fact("Load ρ", _load(results)),
        Fact("KV cache", _pool(results)),
        Fact("Scheduling", _scheduling(results)),
        Fact("vLLM's default", _default(scenario)),
        Fact("Profile", f"{results.sweep.spec.profile_hash} · {profile.attention_backend}"),
        Fact("Error of the fit", _fit(profile)),
    ]
    if scenario.slo:
        found.insert(4, Fact("SLOs", slo_text(scenario)))
    return found


def versions(results: Results) -> list[Fact]:
    """What made the profile, and what wrote the page."""
    made = ", ".join(f"{name} {value}" for name, value in results.sweep.profile.provenance.items())
    now = provenance("numpy", "pandas", "plotly")
    return [
        Fact("Profile made with", made or "not recorded"),
        Fact("Shown with", ", ".join(f"{name} {value}" for name, value in now.items())),
        Fact("Trace digest", results.sweep.spec.trace_digest[:16]),
    ]


def slo_text(scenario: Scenario) -> str:
    """The limits that a recommendation has to meet."""
    return ", ".join(f"P99 {name.removesuffix('_ms').upper()} ≤ {limit:g} ms" for name, limit in scenario.slo.items())


def trace_text(trace: TraceSpec) -> str:
    """The trace and what was done to it."""
    parts = [trace.source]
    if trace.num_requests is not None:
        parts.append(f"{trace.num_requests:,} requests" + (f" from {trace.start:,}" if trace.start else ""))
    if trace.thin < 1:
        parts.append(f"thinned to {trace.thin:.3g}")
    if (trace.prompt_scale, trace.output_scale) != (1, 1):
        parts.append(f"lengths × {trace.prompt_scale:g} / {trace.output_scale:g}")
    return " · ".join(parts)


def _model(profile: Profile) -> str:
    model = profile.model
    return f"{model.name} · {model.dtype} · {number(model.num_parameters / 1e6)} M parameters"


def _device(profile: Profile) -> str:
    device = profile.device
    threads = f" · {device.threads} thread{'s' if device.threads > 1 else ''}" if device.type == "cpu" else ""
    return f"{device.name} ({device.type}){threads}"


def _arrivals(scenario: Scenario) -> str:
    if scenario.num_clients is not None:
        return f"closed loop, {scenario.num_clients:,} clients thinking {scenario.think_s:g} s"
    gate = "" if scenario.max_concurrency is None else f" · at most {scenario.max_concurrency:,} under way"
    return _sending(scenario.trace) + gate


def _sending(trace: TraceSpec) -> str:
    if trace.offline:
        return "all at once (offline)"
    if trace.ramp_up_strategy is not None:
        return f"{trace.ramp_up_strategy} ramp, {trace.ramp_up_start_rps:g} to {trace.ramp_up_end_rps:g} requests/s"
    if trace.request_rate is not None:
        return f"{number(trace.request_rate * trace.rate_scale)} requests/s, burstiness {trace.burstiness:g}"
    changed = "as in the trace" if trace.rate_scale == 1 else f"{number(trace.rate_scale)} times the trace's rate"
    try:
        requests = trace.load()
    except TraceError:  # its file may be elsewhere now
        return changed
    if not requests.span_s:
        return "all at once"
    return f"{number((len(requests) - 1) / requests.span_s)} requests/s on average, {changed}"


def _load(results: Results) -> str:
    if results.recommendation is None:
        return "–"
    metrics = results.recommendation.metrics
    rho = metrics.get("offered_rho", metrics.get("load_rho", float("nan")))
    what = "saturated" if rho >= 1 else "below saturation"
    return f"{number(rho)} at the recommended cell: {what}"


def _pool(results: Results) -> str:
    scenario = results.sweep.spec.scenario
    of = f"blocks of {scenario.block_size} tokens"
    if scenario.num_gpu_blocks is not None:
        return f"{scenario.num_gpu_blocks:,} {of}, the same for every cell"
    blocks = [result.num_gpu_blocks for result in results.cells if result.status == "ok"]
    span = f"{min(blocks):,} to {max(blocks):,} {of}" if blocks else of
    if scenario.kv_memory_bytes is not None:
        return f"{scenario.kv_memory_bytes / 2**30:.2f} GiB: {span}, by cell"
    gpus = f"{scenario.tensor_parallel_size} × {scenario.gpu}" if scenario.tensor_parallel_size > 1 else scenario.gpu
    return f"{gpus} at {scenario.gpu_memory_utilization:.0%} of its memory: {span}, by cell"


def _scheduling(results: Results) -> str:
    scenario = results.sweep.spec.scenario
    chunked = "chunked prefill" if scenario.enable_chunked_prefill else "whole prefills"
    policies = ", ".join(map(policy_label, results.sweep.spec.policies))
    return f"{policies} · {chunked} · model length {scenario.max_model_len:,}"


def _default(scenario: Scenario) -> str:
    cell = default_cell(scenario)
    kind = "server" if scenario.default_cell == "server" else "LLM class"
    return f"{cell.max_num_seqs:,} × {cell.max_num_batched_tokens:,} ({kind}, {scenario.device})"


def _fit(profile: Profile) -> str:
    if not hasattr(profile, "fit"):  # operator tables, which others measured
        return "; ".join(getattr(profile, "notes", ())) or "not stated"
    held_out = profile.fit.held_out
    return (
        f"held out {percent(held_out.median_percent)} median, {percent(held_out.worst_percent)} worst; the device "
        f"repeats itself within {percent(profile.fit.repeat_noise_percent)}"
    )

"""Calibrating a device: designed batches on the real executor, a fit, and its error, in one profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ..executor import DeviceBackend, Engine, MeasuredBatch, calibration_batches, measure_batches, time_batch_s
from ..executor.peaks import device_name, flops_per_s, memory_bytes_per_s, num_threads
from ..scheduler.batch import Batch
from ..scheduler.cohort import NOBODY
from ..sim.cost.features import Features, features_of, stack
from ..sim.cost.fit import fit, fit_constant, fit_host, fit_roofline, held_out_predictions, null_errors, summarize
from ..sim.cost.models import Fitted, HostTerm
from ..sim.cost.profile import (
    DeviceFacts,
    ErrorFacts,
    FitFacts,
    Law,
    MemoryFacts,
    Profile,
    SpreadFacts,
    roofline_of,
)
from ..sim.cost.spread import drift, spread_by_kind
from .active import ActiveChoice, error_curve
from .errors import ExperimentError
from .measure import Device, Limits
from .scenario import Scenario, TraceSpec
from .world import run_scenario

HOST_SHARE = 0.1
"""Share of the time given to a short real replay, which measures what scheduling takes."""
HOST_REQUESTS = 48
LEAST_MINUTES = 0.5
BATCHES_A_KIND, FEWEST_A_KIND = 24, 12
"""Designed batches of each kind from a minute on; in less time fewer, so that three rounds of them fit."""
SWAP_BLOCKS, SWAP_REPEATS = 32, 9
DEFAULT_NUM_BLOCKS = 4096
MOST_DESIGNED_BLOCKS = 65_536
"""Of a pool that fills a GPU, designed batches use a part: contexts are bounded by ``max_model_len`` anyhow."""


def calibrate(
    model: str = "tiny-llama",
    *,
    dtype: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    minutes: float = 2.0,
    max_num_seqs: int = 128,
    max_num_batched_tokens: int = 2048,
    max_model_len: int = 2048,
    block_size: int = 16,
    num_gpu_blocks: int | None = None,
    gpu_memory_utilization: float = 0.9,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Profile:
    """Measure this device for about ``minutes`` and fit an iteration's time. The limits are those of the batches that
    will be predicted: a law is only as good as the region it was measured in. ``num_gpu_blocks`` is 4096 on a CPU and
    what ``gpu_memory_utilization`` leaves on a CUDA device, ``dtype`` float32 or bfloat16 there, if not given.
    """
    if not (LEAST_MINUTES <= minutes < float("inf")):
        raise ExperimentError(
            f"minutes is {minutes:g}, but measuring takes some: give at least {LEAST_MINUTES:g} (a warm-up and three "
            f"rounds of the fewest batches that a fit can rest on)."
        )
    dtype = dtype or ("bfloat16" if device == "cuda" else "float32")
    opened = Device(model, dtype=dtype, device=device, threads=threads, seed=seed)
    began = time.perf_counter()
    limits = Limits(max_num_seqs, max_num_batched_tokens, min(max_model_len, opened.facts.max_model_len))
    memory = opened.memory(limits, block_size, gpu_memory_utilization) if device == "cuda" else None
    num_gpu_blocks = num_gpu_blocks or (memory.num_gpu_blocks if memory else DEFAULT_NUM_BLOCKS)
    engine = opened.engine(num_gpu_blocks, block_size, seed, limits)
    batches = calibration_batches(
        *limits,
        block_size=block_size,
        num_gpu_blocks=min(num_gpu_blocks, MOST_DESIGNED_BLOCKS),
        seed=seed,
        num_each=min(BATCHES_A_KIND, max(FEWEST_A_KIND, int(BATCHES_A_KIND * minutes))),
    )
    sizes = engine.capture_sizes
    measured = measure_batches(
        engine,
        batches,
        minutes=minutes * (1 - HOST_SHARE),
        choose=ActiveChoice(stack([features_of(batch) for batch in batches]), sizes),
        seed=seed,
        progress=progress,
    )
    host = _measure_host(opened, block_size, num_gpu_blocks, limits)
    per_block_s = _measure_swap(engine, num_gpu_blocks)
    facts = _device_facts(opened)
    features = stack([features_of(row.batch) for row in measured])
    medians_s = np.array([np.median(row.times_s) for row in measured])
    law = replace(fit(features, medians_s, capture_sizes=sizes), per_swapped_block_s=per_block_s)
    return _profile(opened, facts, block_size, features, measured, law, host, memory, time.perf_counter() - began)


def _device_facts(opened: Device) -> DeviceFacts:
    device = opened.loaded.device
    return DeviceFacts(
        type=device,
        name=device_name(device),
        threads=num_threads(),
        memory_bytes_per_s=memory_bytes_per_s(device),
        flops_per_s=flops_per_s(device, opened.facts.dtype),
    )


def _profile(
    opened: Device,
    device: DeviceFacts,
    block_size: int,
    features: Features,
    measured: Sequence[MeasuredBatch],
    law: Fitted,
    host: HostTerm,
    memory: MemoryFacts | None,
    seconds: float,
) -> Profile:
    medians_s = np.array([np.median(row.times_s) for row in measured])
    roofline = roofline_of(opened.facts, device)
    affine = fit_roofline(roofline, features, medians_s)
    unseen_s = held_out_predictions(features, medians_s, capture_sizes=law.capture_sizes)
    repeats = [np.array(row.times_s) for row in measured]
    return Profile(
        model=opened.facts,
        device=device,
        block_size=block_size,
        attention_backend="triton" if device.type == "cuda" else "numba",
        law=Law(**_coefficients(law)),
        host_fixed_s=host.fixed_s,
        host_per_seq_s=host.per_seq_s,
        constant_s=fit_constant(features, medians_s).seconds,
        roofline_alpha=affine.alpha,
        roofline_beta_s=affine.launch_s,
        fit=FitFacts(
            num_batches=len(medians_s),
            num_rounds=len(measured[0].times_s),
            seconds_measured=round(seconds, 1),
            held_out=ErrorFacts(**asdict(summarize(unseen_s, medians_s))),
            nulls={
                name: ErrorFacts(**asdict(error)) for name, error in null_errors(features, medians_s, roofline).items()
            },
            repeat_noise_percent=100.0 * float(np.median([_relative_iqr(row.times_s) for row in measured])),
            spread=SpreadFacts(kinds=spread_by_kind(features, unseen_s, medians_s), drift=drift(repeats)),
            curve=error_curve(
                features, [row.times_s for row in measured], [row.at_s for row in measured], law.capture_sizes
            ),
        ),
        memory=memory,
        provenance=opened.describe(),
    )


def _coefficients(law: Fitted) -> dict[str, Any]:
    return {name: getattr(law, name) for name in Law.model_fields}


def _relative_iqr(times_s: Sequence[float]) -> float:
    low, high = np.percentile(times_s, (25, 75))
    return float((high - low) / np.median(times_s))


def _measure_host(opened: Device, block_size: int, num_gpu_blocks: int, limits: Limits) -> HostTerm:
    """A short real replay, everything at once, so that many sizes of the running set occur."""
    scenario = Scenario(
        trace=TraceSpec(
            num_requests=HOST_REQUESTS, prompt_scale=0.05, output_scale=0.1, max_output_tokens=64, offline=True
        ),
        model=opened.facts.name,
        max_num_seqs=HOST_REQUESTS,
        max_num_batched_tokens=256,
        max_model_len=opened.facts.max_model_len,
        block_size=block_size,
        num_gpu_blocks=num_gpu_blocks,
    )
    backend = DeviceBackend(opened.engine(num_gpu_blocks, block_size, limits=limits))
    records = run_scenario(scenario, num_gpu_blocks, backend, host_clock=time.perf_counter)
    return fit_host(records.iterations["num_seqs"].astype(np.float64), records.iterations["host_s"])


def _measure_swap(engine: Engine, num_gpu_blocks: int) -> float:
    """Seconds to copy one block between device and host as a preempting step does, the median over both ways."""
    count = min(SWAP_BLOCKS, num_gpu_blocks - 1)
    engine.cache.reserve_host(count)
    copies = [(block, block) for block in range(1, count + 1)]
    times = []
    for repeat in range(2 * SWAP_REPEATS):
        batch = Batch(step=0, clock=0, members=NOBODY, chunks=[])
        if repeat % 2 == 0:
            batch.copies_out = copies
        else:
            batch.copies_in = copies
        times.append(time_batch_s(engine, batch))
    return float(np.median(times[2:])) / count

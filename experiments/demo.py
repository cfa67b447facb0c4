"""The whole line on one machine, in a few minutes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .errors import ExperimentError
from .render_profile import calibration_progress, print_profile
from .render_sweep import sweep_progress
from .replay import predict
from .scenario import Scenario, TraceSpec, make_scenario
from .sweep import Sweep, sweep


@dataclass(frozen=True, slots=True)
class DemoSize:
    """How much of a trace a model can serve within minutes on a CPU."""

    seqs: tuple[int, ...]
    tokens: tuple[int, ...]
    num_requests: int
    scale: float
    """Of prompt and output lengths."""
    max_prompt_tokens: int
    max_output_tokens: int
    max_model_len: int
    num_gpu_blocks: int


EMBEDDED = DemoSize((4, 8, 16, 32, 64, 128), (128, 256, 512, 1024, 2048), 120, 0.25, 1024, 128, 2048, 1024)
REAL = DemoSize((2, 4, 8, 16), (64, 128, 256), 24, 0.1, 128, 24, 256, 256)
"""For models of a hundred million parameters or so, at 0.3 GFLOP a token."""
REPEATS = 2
"""Twice each, so that the device's own noise stands beside the error."""
LOAD = 1.3
"""Offered load over the capacity of the largest cell: enough that the knobs matter."""


def run_demo(
    folder: Path, trace: str, *, model: str = "tiny-llama", minutes: float, measure: int, threads: int | None
) -> Sweep:
    """Calibrate ``model`` (an embedded one, or any other), predict a grid over a slice of ``trace``, measure at least
    ``measure`` cells.

    The slice's lengths are scaled to the small model, and its rate so that the server is loaded a little beyond its
    capacity: both are said in the results.
    """
    from .calibrate import calibrate

    if (folder / "sweep.json").exists():
        raise ExperimentError(f"{folder} holds results already: delete it or choose another folder.")
    size = demo_size(model)
    with calibration_progress() as progress:
        profile = calibrate(
            model,
            minutes=minutes,
            threads=threads,
            max_num_seqs=max(size.seqs),
            max_num_batched_tokens=max(size.tokens),
            max_model_len=size.max_model_len,
            num_gpu_blocks=size.num_gpu_blocks,
            progress=progress,
        )
    path = folder / "calibration.json"
    profile.save(path)
    print_profile(profile, path)
    scenario = demo_scenario(trace, threads, model)
    capacity = predict(scenario.with_(trace={**scenario.trace.model_dump(), "offline": True}), profile)
    offered = predict(scenario, profile).metrics
    rate_scale = LOAD * capacity.metrics["request_throughput"] * offered["duration"] / offered["num_requests"]
    scenario = scenario.with_(trace={**scenario.trace.model_dump(), "rate_scale": rate_scale})
    with sweep_progress(folder) as progress_cells:
        return sweep(
            folder,
            scenario,
            profile,
            max_num_seqs=size.seqs,
            max_num_batched_tokens=size.tokens,
            measure=measure,
            repeats=REPEATS,
            workers=2,
            progress=progress_cells,
        )


def demo_size(model: str) -> DemoSize:
    """By the model's name: presets of a few million parameters, or anything else."""
    return EMBEDDED if model.startswith("tiny-") else REAL


def demo_scenario(trace: str, threads: int | None, model: str = "tiny-llama") -> Scenario:
    """A slice of ``trace`` with its lengths scaled to ``model``."""
    size = demo_size(model)
    return make_scenario(
        trace=TraceSpec(
            source=trace,
            num_requests=size.num_requests,
            prompt_scale=size.scale,
            output_scale=size.scale,
            max_prompt_tokens=size.max_prompt_tokens,
            max_output_tokens=size.max_output_tokens,
        ).model_dump(),
        model=model,
        threads=threads,
        max_model_len=size.max_model_len,
        num_gpu_blocks=size.num_gpu_blocks,
    )

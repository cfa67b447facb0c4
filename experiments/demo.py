"""The whole line on one machine, in a few minutes."""

from __future__ import annotations

from pathlib import Path

from .errors import ExperimentError
from .render import calibration_progress, print_profile, sweep_progress
from .replay import predict
from .scenario import Scenario, TraceSpec, make_scenario
from .sweep import Sweep, sweep

SEQS = (4, 8, 16, 32, 64, 128)
TOKENS = (128, 256, 512, 1024, 2048)
NUM_REQUESTS = 120
NUM_BLOCKS = 1024
REPEATS = 2
"""Twice each, so that the device's own noise stands beside the error."""
LOAD = 1.3
"""Offered load over the capacity of the largest cell: enough that the knobs matter."""


def run_demo(folder: Path, trace: str, *, minutes: float, measure: int, threads: int | None) -> Sweep:
    """Calibrate the embedded model, predict a grid over a slice of ``trace``, measure at least ``measure`` cells.

    The slice's lengths are scaled to the small model, and its rate so that the server is loaded a little beyond its
    capacity: both are said in the results.
    """
    from .calibrate import calibrate

    if (folder / "sweep.json").exists():
        raise ExperimentError(f"{folder} holds results already: delete it or choose another folder.")
    with calibration_progress() as progress:
        profile = calibrate(minutes=minutes, threads=threads, num_gpu_blocks=NUM_BLOCKS, progress=progress)
    path = folder / "calibration.json"
    profile.save(path)
    print_profile(profile, path)
    scenario = demo_scenario(trace, threads)
    capacity = predict(scenario.with_(trace={**scenario.trace.model_dump(), "offline": True}), profile)
    offered = predict(scenario, profile).metrics
    rate_scale = LOAD * capacity.metrics["request_throughput"] * offered["duration"] / offered["num_requests"]
    scenario = scenario.with_(trace={**scenario.trace.model_dump(), "rate_scale": rate_scale})
    with sweep_progress(folder) as progress_cells:
        return sweep(
            folder,
            scenario,
            profile,
            max_num_seqs=SEQS,
            max_num_batched_tokens=TOKENS,
            measure=measure,
            repeats=REPEATS,
            workers=2,
            progress=progress_cells,
        )


def demo_scenario(trace: str, threads: int | None) -> Scenario:
    """A slice of ``trace`` for the embedded model: prompts at a quarter, outputs at a quarter of their length."""
    return make_scenario(
        trace=TraceSpec(
            source=trace,
            num_requests=NUM_REQUESTS,
            prompt_scale=0.25,
            output_scale=0.25,
            max_prompt_tokens=1024,
            max_output_tokens=128,
        ).model_dump(),
        threads=threads,
        max_model_len=2048,
        num_gpu_blocks=NUM_BLOCKS,
    )

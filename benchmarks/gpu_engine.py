"""The engine on a device: throughput, calibration and a sweep with its step logs; sections of ``gpu_check.py``."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gpu_expectations import ENGINE_DECODES, ENGINE_PREFILLS, judged

from batchtwin.executor import Engine, calibration_batches, design_batch, load_model, measure_batches
from batchtwin.executor.backend import DeviceBackend
from batchtwin.executor.memory import block_bytes, measure_memory
from batchtwin.executor.models import LoadedModel
from batchtwin.scheduler.config import SchedulerConfig
from batchtwin.scheduler.graph_sizes import capture_sizes
from batchtwin.sim.cost.features import Features, features_of
from batchtwin.sim.cost.models import Roofline

if TYPE_CHECKING:
    from gpu_check import Report

    from batchtwin.traces import Trace

BLOCK_SIZE = 16
POLICY = "vllm_v1"


class Plan:
    """What is run: full size, or toy size for a dry run."""

    def __init__(self, dry_run: bool) -> None:
        self.model = "tiny-llama" if dry_run else "llama-3.1-8b-shaped"
        self.dtype = "float32" if dry_run else "bfloat16"
        self.max_num_seqs = 8 if dry_run else 256
        self.budget = 64 if dry_run else 4096
        self.max_model_len = 128 if dry_run else 4096
        self.calibration_minutes = 0.02 if dry_run else 1.2
        self.trace = ("azure-conv-like:10", 0.03, 0.05) if dry_run else ("azure-conv-like:96", 0.5, 0.5)
        """Generator, scale of prompts and of outputs."""
        self.seqs = (2, 8) if dry_run else (16, 64, 256)
        self.tokens = (32, 64) if dry_run else (512, 1024, 2048, 4096)
        self.decodes = ((2, 40), (8, 60)) if dry_run else ENGINE_DECODES
        self.prefills = (32, 64) if dry_run else ENGINE_PREFILLS
        self.repeats = 3 if dry_run else 30


@lru_cache(maxsize=1)
def loaded_model(model: str, dtype: str, device: str) -> LoadedModel:
    """Loaded once for all sections."""
    return load_model(model, device=device, dtype=dtype)


@lru_cache(maxsize=1)
def one_engine(dry_run: bool, device: str) -> tuple[Engine, dict[str, Any]]:
    """The engine of all sections, with its graphs captured, and what that took."""
    plan = Plan(dry_run)
    loaded = loaded_model(plan.model, plan.dtype, device)
    facts: dict[str, Any] = {"num_gpu_blocks": 200}
    if device == "cuda":
        memory = measure_memory(loaded, max_num_seqs=plan.max_num_seqs, max_num_batched_tokens=plan.budget)
        facts = {name: getattr(memory, name) for name in type(memory).__dataclass_fields__}
        facts["num_gpu_blocks"] = memory.num_gpu_blocks(block_bytes(loaded, BLOCK_SIZE), 0.85)
    began = time.monotonic()
    engine = Engine(
        loaded,
        num_gpu_blocks=facts["num_gpu_blocks"],
        block_size=BLOCK_SIZE,
        threads=1 if device == "cpu" else None,
        capture_sizes=capture_sizes(plan.max_num_seqs, plan.budget),
        max_model_len=plan.max_model_len,
    )
    return engine, facts | {"start_s": time.monotonic() - began, "capture_sizes": engine.capture_sizes}


def release() -> None:
    """Give the engine's and the model's memory back: what follows needs neither."""
    one_engine.cache_clear()
    loaded_model.cache_clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def engine(report: Report) -> dict[str, Any]:
    """Steps of decodes alone and of prefills against their floors on this device and on its data sheet."""
    plan = Plan(report.dry_run)
    made, facts = one_engine(report.dry_run, report.device)
    floor = _floor(made, report.sections["roof"])
    pool = {"block_size": BLOCK_SIZE, "num_gpu_blocks": made.cache.num_blocks}
    steps = []
    for num_seqs, context in plan.decodes:
        times = _timed(made, design_batch([context] * num_seqs, [], **pool), floor, plan.repeats)
        rate = {"output_tok_s": 1e3 * num_seqs / times["p50_ms"]}
        steps.append({"kind": "decode", "num_seqs": num_seqs, "context": context} | times | rate)
    for tokens in plan.prefills:
        batch = design_batch([], [(0, tokens)], prefix=f"prefill{tokens}", **pool)
        steps.append({"kind": "prefill", "tokens": tokens} | _timed(made, batch, floor, plan.repeats))
    vllm = "vLLM is not installed" if find_spec("vllm") is None else "vLLM is installed: run its own benchmark beside"
    worst = max(step["over_floor"] for step in steps if step["kind"] == "decode")
    found: dict[str, Any] = {
        "facts": facts,
        "vllm": vllm,
        "summary": f"decode steps up to {worst:.2f}x of the byte floor",
    }
    return found | _judged(steps, report.sections["setup"].get("gpu"))


def _judged(steps: list[dict[str, Any]], gpu: str | None) -> dict[str, Any]:
    """The steps, with the share of the data sheet's floor where there is one."""
    if gpu is None:
        return {"steps": steps, "data_sheet": "none of a CPU"}
    if find_spec("pydantic") is None:
        return {"steps": steps, "data_sheet": "pydantic is not here: run gpu_expectations.py --against on this file"}
    from batchtwin.sim.facts.errors import FactsError

    try:
        return {"steps": judged(steps, gpu), "data_sheet": gpu}
    except FactsError as error:
        return {"steps": steps, "data_sheet": str(error)}


def _floor(made: Engine, roof: dict[str, Any]) -> Roofline:
    """As ``sim/facts/roofline.py`` has it, of the loaded model and the rates measured here; of an embedding that is not
    the LM head too, a row is looked up.
    """
    shape, model = made.loaded.shape, made.loaded.model
    lm_head = shape.vocab_size * shape.hidden_size
    read = shape.num_parameters - (0 if model.config.tie_word_embeddings else lm_head)
    return Roofline(
        weight_bytes=float(read * model.dtype.itemsize),
        kv_bytes_per_token=block_bytes(made.loaded, BLOCK_SIZE) / BLOCK_SIZE,
        flops_per_token=2.0 * (read - lm_head),
        flops_per_sample=2.0 * lm_head,
        flops_per_attention_pair=4.0 * shape.num_layers * shape.num_q_heads * shape.head_dim,
        memory_bytes_per_s=roof["memory_bytes_per_s"],
        flops_per_s=roof["flops_per_s"],
    )


def _timed(made: Engine, batch: Any, floor: Roofline, repeats: int) -> dict[str, float]:
    floor_ms = 1e3 * floor.duration_s(features_of(batch))
    times = _step_ms(made, batch, repeats)
    return {"floor_ms": floor_ms} | times | {"over_floor": times["p50_ms"] / floor_ms}


def _step_ms(made: Engine, batch: Any, repeats: int) -> dict[str, float]:
    for _ in range(3):
        made.run(batch)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        step = made.launch(batch)
        launched_s = time.perf_counter() - began
        made.finish(step)
        on_device_s = step.device_s()
        times.append((on_device_s or time.perf_counter() - began, launched_s))
    device, host = np.array(times).T * 1e3
    low, middle, high = np.percentile(device, (20, 50, 80)).tolist()
    return {"p20_ms": low, "p50_ms": middle, "p80_ms": high, "launch_p50_ms": float(np.median(host))}


def calibration(report: Report) -> dict[str, Any]:
    """Designed batches with their times: what a law is fitted to, here or elsewhere."""
    plan = Plan(report.dry_run)
    made, _ = one_engine(report.dry_run, report.device)
    batches = calibration_batches(
        plan.max_num_seqs,
        plan.budget,
        plan.max_model_len,
        block_size=BLOCK_SIZE,
        num_gpu_blocks=min(made.cache.num_blocks, 40_000),
        num_each=6 if report.dry_run else 24,
    )
    measured = measure_batches(made, batches, minutes=plan.calibration_minutes, choose=_active(batches, made))
    rows = [list(features_of(row.batch)) for row in measured]
    return {
        "features": dict(zip(Features._fields, np.array(rows, dtype=float).T.tolist(), strict=True)),
        "times_s": [row.times_s for row in measured],
        "at_s": [row.at_s for row in measured],
        "capture_sizes": made.capture_sizes,
        "summary": f"{len(rows)} batches, {sum(len(row.times_s) for row in measured)} measurements",
    }


def _active(batches: list[Any], made: Engine) -> Callable[[dict[int, float]], int | None] | None:
    """The active choice needs a fit, and that scipy; without it batches are taken in turn."""
    if find_spec("scipy") is None or find_spec("pydantic") is None:
        return None
    from batchtwin.experiments.active import ActiveChoice
    from batchtwin.sim.cost.features import stack

    return ActiveChoice(stack([features_of(batch) for batch in batches]), made.capture_sizes)


def sweep(report: Report) -> dict[str, Any]:
    """Both knobs, everything at once (offline), each step logged."""
    if find_spec("simpy") is None:
        return {"skipped": "simpy is not here: bring its wheel (simpy-4.1.1-py3-none-any.whl) in --wheels"}
    plan = Plan(report.dry_run)
    made, _ = one_engine(report.dry_run, report.device)
    cells = []
    for seqs in plan.seqs:
        for tokens in plan.tokens:
            if report.left_s() < 15 and not report.dry_run:
                cells.append({"max_num_seqs": seqs, "max_num_batched_tokens": tokens, "skipped": "out of time"})
                continue
            cells.append(_cell(made, plan, seqs, tokens))
    rates = [cell["output_tok_s"] for cell in cells if "output_tok_s" in cell]
    summary = f"{len(rates)} cells, {min(rates):,.0f} to {max(rates):,.0f} output tokens/s" if rates else "no cell"
    return {"cells": cells, "trace": plan.trace, "summary": summary}


def _cell(made: Engine, plan: Plan, seqs: int, tokens: int) -> dict[str, Any]:
    from batchtwin.executor import OutOfMemory
    from batchtwin.sim.world import simulate

    knobs: dict[str, Any] = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}
    config = SchedulerConfig(
        **knobs, max_model_len=plan.max_model_len, num_gpu_blocks=made.cache.num_blocks, block_size=BLOCK_SIZE
    )
    trace = cell_trace(plan.trace, plan.max_model_len)
    made.reset(0)
    try:
        records = simulate(trace, config, POLICY, [DeviceBackend(made)], host_clock=time.perf_counter)
    except OutOfMemory as error:
        return knobs | {"failed": str(error)}
    steps = records.iterations
    logged = {name: np.round(np.asarray(steps[name], dtype=float), 9).tolist() for name in STEP_COLUMNS}
    span_s = float(steps["end_s"].max())
    produced = int(records.requests["num_output_tokens"].sum())
    about = {"num_gpu_blocks": config.num_gpu_blocks, "max_model_len": config.max_model_len, "block_size": BLOCK_SIZE}
    return knobs | about | {"output_tok_s": produced / span_s, "span_s": span_s, "steps": logged}


STEP_COLUMNS = (
    "start_s",
    "end_s",
    "host_s",
    "device_s",
    "num_tokens",
    "num_seqs",
    "num_decodes",
    "num_decode_kv_tokens",
    "num_prefills",
    "num_prefill_tokens",
    "prefill_attention_work",
    "num_samples",
    "num_preempted",
)


def cell_trace(spec: tuple[str, float, float], max_model_len: int) -> Trace:
    """The generated conversation trace, scaled, all of it at once."""
    from batchtwin.traces import load_trace

    source, prompt_scale, output_scale = spec
    half = max_model_len // 2
    return load_trace(source, seed=0).scale_lengths(prompt_scale, output_scale, half, half - 1).offline()

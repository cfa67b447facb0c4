"""Sweeps whose figures are written by hand, and runs that stand in for measured ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profiles import toy_profile
from replays import StandInDevice

from batchtwin.experiments.grid import Cell
from batchtwin.experiments.replay import predict
from batchtwin.experiments.run import Run
from batchtwin.experiments.scenario import Scenario, make_scenario
from batchtwin.experiments.sweep import Sweep, SweepSpec, open_sweep
from batchtwin.experiments.world import run_scenario
from batchtwin.sim.cost.profile import Profile

TINY = {"source": "azure-conv-like:12", "prompt_scale": 0.02, "output_scale": 0.03, "rate_scale": 20.0}


def tiny_scenario(**fields: Any) -> Scenario:
    """Twelve short requests: a replay of some milliseconds."""
    trace = {**TINY, **fields.pop("trace", {})}
    return make_scenario(**{"trace": trace, "max_model_len": 256, "max_num_seqs": 4, "num_gpu_blocks": 200, **fields})


def measured_stand_in(
    scenario: Scenario, profile: Profile, *, seed: int = 0, bias: float = 1.1, gap_s: float = 0.0
) -> Run:
    """No device here: a replay with noisy, biased step times, called ``measured``."""
    blocks = scenario.num_gpu_blocks or 200
    device = StandInDevice(profile.cost_model, profile.host, seed=seed, bias=bias, gap_s=gap_s)
    return Run(scenario, "measured", run_scenario(scenario, blocks, device), blocks, {"device": "a stand-in"})


def spec(scenario: Scenario, seqs: Sequence[int], tokens: Sequence[int], **fields: Any) -> SweepSpec:
    return SweepSpec(
        **{
            "scenario": scenario,
            "policies": (scenario.policy,),
            "max_num_seqs": tuple(seqs),
            "max_num_batched_tokens": tuple(tokens),
            "trace_digest": scenario.trace.load().digest(),
            "profile_hash": toy_profile().hash(),
            "num_seeds": 3,
            **fields,
        }
    )


def write_sweep(folder: Path, asked: SweepSpec, predicted: Mapping[Cell, Mapping[str, Any]]) -> Sweep:
    """A sweep's folder with ``predicted`` as its figures: fields of ``CellResult`` but for the cell."""
    folder.mkdir(parents=True)
    toy_profile().save(folder / "profile.json")
    (folder / "sweep.json").write_text(asked.model_dump_json())
    for cell, fields in predicted.items():
        path = folder / "cells" / cell.key / "predicted.json"
        path.parent.mkdir(parents=True)
        result = {"status": "ok", "reason": "", "num_gpu_blocks": 200, "metrics": {}, "nulls": {}, **fields}
        path.write_text(json.dumps({"format": 1, "cell": cell, **result}))
    return open_sweep(folder)


def write_measured(sweep: Sweep, cell: Cell, repeat: int, figures: Mapping[str, float]) -> None:
    """A measured run of ``cell`` in whose head the given figures stand in the place of its own."""
    folder = sweep.folder / "cells" / cell.key / f"measured-{repeat}"
    measured_stand_in(cell.of(sweep.spec.scenario), sweep.profile, seed=repeat).save(folder)
    head = json.loads((folder / "run.json").read_text())
    head["metrics"] |= figures
    (folder / "run.json").write_text(json.dumps(head))


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file of a sweep by its name in the folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def base_metrics(sweep_scenario: Scenario) -> dict[str, float]:
    """Every metric of some run, to be overwritten where it matters."""
    return dict(predict(sweep_scenario, toy_profile()).metrics)


def biased(profile: Profile, factor: float) -> Profile:
    """``profile`` with every coefficient of its law times ``factor``."""
    law = profile.law.model_dump()
    scaled = {name: value * factor for name, value in law.items() if name.startswith(("fixed", "per_"))}
    scaled["token_slopes_s"] = tuple(slope * factor for slope in law["token_slopes_s"])
    return profile.model_copy(update={"law": profile.law.model_copy(update=scaled)})

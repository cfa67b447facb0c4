"""T1: where a GPU's memory goes, held against the figures of public vLLM logs."""

from __future__ import annotations

from typing import Any

from field_replays import Inputs, Outcome

from batchtwin.experiments.plan import Plan, plan

GIB = 2**30


def _plan(inputs: Inputs, **changes: Any) -> Plan:
    return plan(inputs["model"], inputs["gpu"], **{**inputs["knobs"], **changes})


def blocks_by_budget(inputs: Inputs) -> Outcome:
    """Bytes a token of budget, from the difference of two block counts; ours against the printed."""
    (low, more), (high, less) = inputs["printed_blocks_at"]
    plans = [_plan(inputs, max_num_batched_tokens=tokens) for tokens in (low, high)]
    each = plans[0].memory.block_bytes
    printed = (more - less) * each / (high - low)
    ours = (plans[0].num_gpu_blocks - plans[1].num_gpu_blocks) * each / (high - low)
    error = ours / printed - 1
    text = (
        f"{plans[0].num_gpu_blocks:,} and {plans[1].num_gpu_blocks:,} blocks: {ours:,.0f} bytes a token and GPU, the "
        f"printed blocks differ by {printed:,.0f} ({error:+.0%})."
    )
    return Outcome(abs(error) <= inputs["tolerance"], text)


def fits_fails_fits(inputs: Inputs) -> Outcome:
    """Three model lengths with the budget that each got: which start, and the printed concurrency of those printed."""
    said, holds = [], True
    for case in inputs["cases"]:
        found = _plan(inputs, max_model_len=case["length_tokens"], max_num_batched_tokens=case["budget_tokens"])
        holds &= found.feasible == case["starts"]
        text = f"{case['length_tokens']:,} tokens: {found.num_gpu_blocks:,} blocks, {found.max_concurrency:.2f}×"
        if case["printed_blocks"] is not None:
            holds &= abs(found.num_gpu_blocks / case["printed_blocks"] - 1) <= inputs["tolerance"]
            holds &= abs(found.max_concurrency - case["printed_ratio"]) <= 0.01
            text += f" (printed {case['printed_blocks']:,} and {case['printed_ratio']}×)"
        said.append(text + ("" if found.feasible else ", refused"))
    return Outcome(holds, "; ".join(said) + ".")


def sampler_by_sequences(inputs: Inputs) -> Outcome:
    """The sampler's peak at the old and the new default, beside what the utilisation leaves free of the device."""
    old, new = (_plan(inputs, max_num_seqs=seqs).memory for seqs in inputs["defaults"])
    free = new.total_bytes - new.usable_bytes
    holds = new.sampler_bytes > free > old.sampler_bytes and new.peak_bytes == new.sampler_bytes
    text = (
        f"Sampler {old.sampler_bytes / GIB:.2f} GiB at {inputs['defaults'][0]} sequences, "
        f"{new.sampler_bytes / GIB:.2f} at {inputs['defaults'][1]:,} (activations {new.activation_bytes / GIB:.2f}); a "
        f"utilisation of {inputs['knobs']['gpu_memory_utilization']:g} leaves {free / GIB:.2f} outside."
    )
    return Outcome(holds, text)


def weights_against_knobs(inputs: Inputs) -> Outcome:
    """KV bytes gained by quantising the weights, against those gained by any setting of both knobs."""
    by_weights = {name: _plan(inputs, quantization=name).memory.kv_bytes for name in inputs["quantizations"]}
    block = _plan(inputs).memory.block_bytes
    cells = [
        count * block for count in _plan(inputs, quantization=inputs["quantizations"][0]).blocks_by_cell().values()
    ]
    knobs, weights = max(cells) - min(cells), max(by_weights.values()) - min(by_weights.values())
    left = ", ".join(f"{name} {size / GIB:.1f}" for name, size in by_weights.items())
    text = (
        f"Left for KV (GiB): {left}; the weights decide {weights / GIB:.1f}, both knobs over 15 cells "
        f"{knobs / GIB:.1f}."
    )
    return Outcome(weights > knobs, text)


def knobs_too_high(inputs: Inputs) -> Outcome:
    """What is left at the knobs that ran out of memory, and at vLLM's defaults."""
    asked, default = _plan(inputs), _plan(inputs, max_num_seqs=None, max_num_batched_tokens=None)
    text = (
        f"{asked.memory.kv_bytes / GIB:.1f} GiB left for KV at {inputs['knobs']['max_num_batched_tokens']:,}/"
        f"{inputs['knobs']['max_num_seqs']:,} (peak {asked.memory.peak_bytes / GIB:.1f}), "
        f"{default.memory.kv_bytes / GIB:.1f} at the defaults (peak {default.memory.peak_bytes / GIB:.1f}): "
        f"{'it fits' if asked.feasible else 'it does not fit'}."
    )
    return Outcome(not asked.feasible, text)


CHECKS = {
    "S11": blocks_by_budget,
    "S12": fits_fails_fits,
    "S13": sampler_by_sequences,
    "S60": weights_against_knobs,
    "S63": knobs_too_high,
}

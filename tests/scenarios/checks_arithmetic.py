"""T1: arithmetic, held against what the scheduler then really does."""

from __future__ import annotations

from math import ceil

from field_replays import Inputs, Outcome, scheduler_of, steps

from batchtwin.sim.cost.profile import ModelFacts


def max_concurrency(inputs: Inputs) -> Outcome:
    """X = blocks · block size / length; the scheduler then holds ⌊X⌋ such requests at once, not one more."""
    said, holds = [], True
    for case in inputs["cases"]:
        blocks, length, printed = case["usable_blocks"], case["length_tokens"], case["printed"]
        ratio = blocks * 16 / length
        seats = case.get("holds", int(ratio))
        knobs = {"max_num_seqs": 2 * seats, "max_num_batched_tokens": length * 2 * seats, "max_model_len": length + 1}
        queue = [(length - 1, 2)] * (2 * seats)
        scheduler = scheduler_of({**knobs, "num_gpu_blocks": blocks + 1}, queue, "reserve")
        resident = max(batch.num_running for batch in steps(scheduler))
        holds &= resident == seats and (printed is None or abs(ratio - printed) <= case["rounding"])
        said.append(f"{ratio:.2f}× of {length:,} tokens, {resident} held")
    return Outcome(holds, "; ".join(said) + ".")


def kv_bytes(inputs: Inputs) -> Outcome:
    """Bytes a token from KV heads and the KV dtype; a request's share against the slope that was measured."""
    facts = ModelFacts(
        name="given", digest="", dtype="bfloat16", max_model_len=32768, num_parameters=7_000_000_000, **inputs["model"]
    )
    per_token = facts.kv_bytes_per_token
    each_gib = per_token * inputs["request_tokens"] / 2**30
    points = inputs["measured_gb_at"]
    slopes = [(points[i + 1][1] - points[i][1]) / (points[i + 1][0] - points[i][0]) for i in range(len(points) - 1)]
    holds = per_token == inputs["expected_bytes_per_token"] and min(slopes) <= each_gib <= max(slopes)
    measured = " and ".join(f"{slope:.2f}" for slope in slopes)
    return Outcome(holds, f"{per_token:,} bytes a token, {each_gib:.3f} GiB a request; measured slopes {measured} GB.")


def page_floor(inputs: Inputs) -> Outcome:
    """A pool counted in whole pages: chats whose floor is given, packed by the scheduler."""
    page, floor = inputs["page_tokens"], inputs["floor_tokens"]
    pages = int(inputs["printed_ratio"] * inputs["length_tokens"]) // page
    knobs = {
        "max_num_seqs": inputs["chats"],
        "max_num_batched_tokens": inputs["chats"] * floor,
        "max_model_len": inputs["length_tokens"],
        "block_size": page,
        "num_gpu_blocks": pages + 1,
    }
    scheduler = scheduler_of(knobs, [(floor, 2)] * inputs["chats"])
    resident = max(batch.num_running for batch in steps(scheduler))
    each = ceil(floor / page)
    text = f"{pages} pages, {each} a chat before its prompt: {resident} of {inputs['chats']} chats fit."
    return Outcome(resident == pages // each == inputs["chats"] - 1, text)


CHECKS = {"S05": max_concurrency, "S07": kv_bytes, "S10": page_floor}

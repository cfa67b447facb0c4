"""Published figures as an importer sees them, and optima that are not the largest knobs."""

from __future__ import annotations

from field_replays import Inputs, Outcome, law_of, replay, short

from batchtwin.experiments.exchange.bench_serve import read_bench_record
from batchtwin.experiments.exchange.checks import check_row


def impossible_row(inputs: Inputs) -> Outcome:
    """In flight = rate · latency: first that it holds in a replay, then what an import says of the printed rows."""
    knobs = {**inputs["knobs"], "num_clients": inputs["clients"]}
    m = replay(law_of(inputs["profile"]), inputs["workload"], knobs).metrics
    ours = m["request_throughput"] * m["mean_e2el_ms"] / 1e3
    flags = []
    for row in inputs["printed"]:
        record = {
            "num_prompts": inputs["num_prompts"],
            "request_rate": "inf",
            "max_concurrency": row["clients"],
            "total_input_tokens": inputs["num_prompts"] * inputs["prompt_tokens"],
            "total_output_tokens": inputs["num_prompts"] * inputs["output_tokens"],
            "output_throughput": row["tokens_per_s"],
            "p99_e2el_ms": row["p99_ms"],
        }
        flags.append(check_row(read_bench_record(record, f"{row['clients']} clients")))
    said = [
        (row["clients"], flag.impossible, flag.text)
        for row, of in zip(inputs["printed"], flags, strict=True)
        for flag in of
    ]
    verdicts = {clients: impossible for clients, impossible, _ in said}
    holds = abs(ours / inputs["clients"] - 1) < 0.05 and verdicts == {100: False, 1000: True}
    told = "; ".join(f"{clients:,} clients {'refused' if no else 'doubted'}: {text}" for clients, no, text in said)
    return Outcome(
        holds, f"A replay with {inputs['clients']} clients keeps {short(ours)} in flight. On import — {told}."
    )


def past_the_best_batch(inputs: Inputs) -> Outcome:
    """Throughput rises up to the size at which steps leave the graphs, and falls beyond it."""
    found = {}
    for seqs in inputs["max_num_seqs"]:
        knobs = {**inputs["knobs"], "max_num_seqs": seqs, "num_clients": seqs}
        workload = {**inputs["workload"], "n": inputs["rounds"] * seqs}
        found[seqs] = replay(law_of(inputs["profile"]), workload, knobs).metrics["output_throughput"]
    best = max(found, key=lambda seqs: found[seqs])
    holds = best == inputs["best"] and found[max(found)] < inputs["falls_to"] * found[best]
    told = ", ".join(f"{seqs:,}: {short(value)}" for seqs, value in found.items())
    return Outcome(holds, f"Output tokens/s by max_num_seqs — {told}; best at {best:,}.")


CHECKS = {"S53": impossible_row, "S55": past_the_best_batch}

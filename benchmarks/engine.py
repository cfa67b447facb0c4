"""Output tokens per second: our executor against Hugging Face on the same requests, machine and threads, in turn.

    python benchmarks/engine.py [--rounds 5] [--threads 1] [--out FILE]

Setup first, then a table, one line of JSON last. Part (a) holds all to 8 resident sequences; part (b) gives each its
best setting of those swept before. Hugging Face runs ``generate`` on left-padded batches, in order of arrival or
sorted by output length (which a server could not know), and its own continuous batching, ``generate_batch``. The
model is a Llama of hidden size 256 with random float32 weights, the same on all sides; the tokens of all are compared
first, and a run that differs is not timed.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
import transformers
from engine_peers import CONTINUOUS_SETTINGS, GENERATE_BATCHES, continuous_runs, generate_runs

from batchtwin.executor import Engine, load_model
from batchtwin.executor.models import LoadedModel
from batchtwin.executor.tokens import TokenStore
from batchtwin.kernels.cpu_attention import set_threads
from batchtwin.scheduler.config import SchedulerConfig
from batchtwin.scheduler.request import Request
from batchtwin.scheduler.scheduler import Scheduler

NUM_REQUESTS = 64
PROMPT_TOKENS = (16, 256)
OUTPUT_TOKENS = (16, 128)
MAX_MODEL_LEN = 512
BLOCK_SIZE = 16
EXECUTOR_SETTINGS = ((8, 256), (32, 256), (64, 256), (64, 512), (64, 2048))
SWEEP_ROUNDS = 1
NUM_FINALISTS = 2
TARGETS = {"generate": 3.0, "generate_batch": 2.0}

Outputs = dict[str, list[int]]
Run = Callable[[], Outputs]


@dataclass(frozen=True)
class Workload:
    """The requests of a round: prompts, and how many tokens each is to give."""

    prompts: dict[str, list[int]]
    output_lens: dict[str, int]

    @property
    def num_output_tokens(self) -> int:
        return sum(self.output_lens.values())

    def requests(self) -> list[Request]:
        return [Request(name, len(self.prompts[name]), n) for name, n in self.output_lens.items()]


def make_workload(vocab_size: int, seed: int) -> Workload:
    """Prompt and output lengths uniform in their ranges. Ids are those the executor makes of such requests."""
    rng = np.random.default_rng(seed)
    prompt_lens = rng.integers(PROMPT_TOKENS[0], PROMPT_TOKENS[1], NUM_REQUESTS, endpoint=True).tolist()
    output_lens = rng.integers(OUTPUT_TOKENS[0], OUTPUT_TOKENS[1], NUM_REQUESTS, endpoint=True).tolist()
    store = TokenStore(vocab_size, seed)
    prompts = {f"r{i}": store.ids(Request(f"r{i}", n, 1), 0, n).tolist() for i, n in enumerate(prompt_lens)}
    return Workload(prompts, dict(zip(prompts, output_lens, strict=True)))


def run_executor(loaded: LoadedModel, work: Workload, max_num_seqs: int, budget: int, seed: int) -> Outputs:
    """Offline: everything queued at once, through the scheduler."""
    blocks = NUM_REQUESTS * -(-(PROMPT_TOKENS[1] + OUTPUT_TOKENS[1]) // BLOCK_SIZE) + 1
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=MAX_MODEL_LEN,
        num_gpu_blocks=blocks,
        block_size=BLOCK_SIZE,
    )
    engine = Engine(loaded, num_gpu_blocks=blocks, block_size=BLOCK_SIZE, seed=seed)
    scheduler = Scheduler(config, "vllm_v1")
    for request in work.requests():
        scheduler.add(request)
    while scheduler.has_work:
        batch = scheduler.schedule()
        engine.run(batch)
        scheduler.complete(batch)
    return {name: engine.outputs(name) for name in work.prompts}


def in_turn(runs: dict[str, Run], rounds: int, work: Workload) -> dict[str, list[float]]:
    """Output tokens/s of every run in every round, A B A B …"""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds):
        for name, run in runs.items():
            gc.collect()
            began = time.perf_counter()
            run()
            rates[name].append(work.num_output_tokens / (time.perf_counter() - began))
            print(f"  round {i + 1}/{rounds}  {name:<44}{rates[name][-1]:>9.0f}", file=sys.stderr)
    return rates


def agreement(ours: Outputs, theirs: Outputs) -> float:
    """Share of requests whose tokens are all equal."""
    return sum(ours[name] == theirs[name] for name in ours) / len(ours)


def row(part: str, name: str, rates: list[float]) -> dict[str, Any]:
    low, middle, high = np.percentile(rates, (25, 50, 75))
    spread = 100 * (high - low) / middle
    return {"part": part, "run": name, "median": float(middle), "iqr_percent": float(spread), "rounds": rates}


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'part':<7}{'run':<46}{'output tokens/s':>16}{'IQR %':>8}{'rounds':>8}")
    for r in rows:
        print(f"{r['part']:<7}{r['run']:<46}{r['median']:>16.0f}{r['iqr_percent']:>8.1f}{len(r['rounds']):>8}")


def setup(loaded: LoadedModel, work: Workload, threads: int, rounds: int, seed: int) -> dict[str, Any]:
    shape = loaded.shape
    return {
        "model": f"tiny-llama: hidden {shape.hidden_size}, {shape.num_layers} layers, {shape.num_q_heads}/"
        f"{shape.num_kv_heads} heads of {shape.head_dim}, vocabulary {shape.vocab_size}, "
        f"{shape.num_parameters / 1e6:.1f} M parameters, {loaded.dtype}, random",
        "requests": f"{NUM_REQUESTS}, prompts {PROMPT_TOKENS}, outputs {OUTPUT_TOKENS}, "
        f"{work.num_output_tokens} output tokens in all, all at once",
        "threads": threads,
        "rounds": rounds,
        "seed": seed,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "processor": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "executor_swept": [f"max_num_seqs {m}, max_num_batched_tokens {b}" for m, b in EXECUTOR_SETTINGS],
        "generate_swept": [f"batches of {b}, by arrival and by output length" for b in GENERATE_BATCHES],
        "generate_batch_swept": [f"{r} requests, {t} tokens a batch, {s}" for t, r, s in CONTINUOUS_SETTINGS],
        "load_average": os.getloadavg()[0],
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the JSON line to this file")
    return parser.parse_args()


def executor_runs(loaded: LoadedModel, work: Workload, seed: int) -> dict[str, Run]:
    return {
        f"executor, {seqs} sequences, budget {budget}": partial(run_executor, loaded, work, seqs, budget, seed)
        for seqs, budget in EXECUTOR_SETTINGS
    }


def compare(sides: dict[str, dict[str, Run]], work: Workload, rounds: int) -> dict[str, Any]:
    """Warm up and compare the tokens, sweep, then parts (a) and (b). The sweep is short and the machine noisy: the
    best few of each side go on to (b), and the best of those count. The executor's side comes first.
    """
    runs = {name: run for side in sides.values() for name, run in side.items()}
    at_8 = {side: next(iter(settings)) for side, settings in sides.items()}
    expected, *others = (runs[name]() for name in at_8.values())
    equal = min(agreement(expected, other) for other in others)
    if equal < 1.0:
        raise SystemExit(f"Only {equal:.0%} of the requests got the same tokens on all sides: nothing is timed.")
    swept = in_turn(runs, SWEEP_ROUNDS, work)
    best = {side: sorted(names, key=lambda name: -max(swept[name]))[:NUM_FINALISTS] for side, names in sides.items()}
    rows = [row("sweep", name, rates) for name, rates in swept.items()]
    ratios = {}
    for part, finals in (("a", {side: [name] for side, name in at_8.items()}), ("b", best)):
        rates = in_turn({name: runs[name] for names in finals.values() for name in names}, rounds, work)
        rows += [row(part, name, values) for name, values in rates.items()]
        mine, *peers = ({side: max(statistics.median(rates[name]) for name in names)} for side, names in finals.items())
        (ours,) = mine.values()
        ratios[part] = {side: ours / theirs for peer in peers for side, theirs in peer.items()}
    return {"rows": rows, "identical": equal, "ratio": ratios}


def main() -> None:
    args = parse()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    set_threads(args.threads)
    loaded = load_model("tiny-llama", seed=args.seed)
    work = make_workload(loaded.shape.vocab_size, args.seed)
    facts = setup(loaded, work, args.threads, args.rounds, args.seed)
    for name, value in facts.items():
        for line in value if isinstance(value, list) else [value]:
            print(f"{name:<16}{line}")
    sides = {
        "executor": executor_runs(loaded, work, args.seed),
        "generate": generate_runs(loaded, work),
        "generate_batch": continuous_runs(loaded, work),
    }
    result = compare(sides, work, args.rounds)
    print_table(result["rows"])
    print("\nthe same tokens on all sides for every request")
    for side, target in TARGETS.items():
        at_8, at_best = result["ratio"]["a"][side], result["ratio"]["b"][side]
        print(
            f"against {side}: (a) at 8 sequences {at_8:.2f}x; (b) best against best {at_best:.2f}x (target {target}x)"
        )
    line = json.dumps({"benchmark": "engine", "setup": facts} | result)
    if args.out:
        args.out.write_text(line + "\n")
    print(line)


if __name__ == "__main__":
    main()

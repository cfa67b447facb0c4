"""What a scheduling decision costs: ``schedule()`` + ``complete()``, decodes only.

    python benchmarks/scheduler.py [--repeats 5] [--steps 400]

N requests decode, block size 16, policy vllm_v1. Each request crosses a block boundary every 16 steps, so that a step
has N / 16 of them on average; steps without any are timed apart by giving all requests the same phase. A boundary's
cost is what a whole cycle of 16 steps takes beyond 16 such steps (with prefix caching the hash of the block that was
filled is part of it). Prints its setup, a table of medians with their range in microseconds of CPU time, and one JSON
line. The real vLLM 0.33 scheduler takes 0.8-1.4, 3.2-5.2 and 19-25 ms at 64, 256 and 1,024 running decodes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from statistics import median

from batchtwin.scheduler import Request, Scheduler, SchedulerConfig

BLOCK_SIZE = 16
PROMPT_TOKENS = 64


def decoding(num_running: int, *, caching: bool, aligned: bool) -> Scheduler:
    """A scheduler in which ``num_running`` requests decode, with prompts of equal or of spread phases."""
    config = SchedulerConfig(
        max_num_seqs=num_running,
        max_num_batched_tokens=num_running * (PROMPT_TOKENS + BLOCK_SIZE),
        max_model_len=65_536,
        num_gpu_blocks=num_running * 400,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=caching,
    )
    scheduler = Scheduler(config)
    for i in range(num_running):
        scheduler.add(Request(str(i), PROMPT_TOKENS + (0 if aligned else i % BLOCK_SIZE), 60_000))
    scheduler.complete(scheduler.schedule())
    return scheduler


def steps_us(scheduler: Scheduler, num_steps: int) -> list[tuple[int, float]]:
    """(boundaries crossed, microseconds) of each of ``num_steps`` iterations."""
    rows = []
    for _ in range(num_steps):
        crossed = len(scheduler.cohort.crossers())
        began = time.process_time_ns()
        scheduler.complete(scheduler.schedule())
        rows.append((crossed, (time.process_time_ns() - began) / 1e3))
    return rows


def measure(num_running: int, caching: bool, num_steps: int) -> dict[str, float]:
    """Medians of one round."""
    spread = steps_us(decoding(num_running, caching=caching, aligned=False), num_steps)
    aligned = steps_us(decoding(num_running, caching=caching, aligned=True), num_steps)
    phases = [median(us for _, us in aligned[BLOCK_SIZE + phase :: BLOCK_SIZE]) for phase in range(BLOCK_SIZE)]
    quiet = median(phases)
    return {
        "mean_step_us": median(us for _, us in spread),
        "quiet_step_us": quiet,
        "per_boundary_us": (sum(phases) - BLOCK_SIZE * quiet) / num_running,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    print(f"schedule() + complete(), {args.steps} steps a round, {args.repeats} rounds in turn, CPU time")
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n")
    points = [(n, caching) for caching in (False, True) for n in (64, 256, 1024)]
    rounds = {point: [] for point in points}
    for _ in range(args.repeats):
        for point in points:
            rounds[point].append(measure(*point, args.steps))
    print(f"{'running':>8}{'caching':>9}{'µs a step':>22}{'without boundary':>22}{'µs a boundary more':>22}")
    result = {}
    for (n, caching), rows in rounds.items():
        cells = {name: sorted(row[name] for row in rows) for name in rows[0]}
        words = [f"{median(v):.2f} ({v[0]:.2f}–{v[-1]:.2f})" for v in cells.values()]
        print(f"{n:>8}{'on' if caching else 'off':>9}" + "".join(f"{word:>22}" for word in words))
        result[f"{n}{'_cached' if caching else ''}"] = {name: median(v) for name, v in cells.items()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()

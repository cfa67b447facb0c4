"""How long the page Iterations takes to draw many iterations: the server's part, and all of it in a real Chromium.

    python benchmarks/iterations_page.py [--requests 2500] [--repeats 5] [--no-browser]

A made-up profile predicts one cell of a generated trace with more than 100,000 iterations. ``data`` arranges them by
the pixel, ``figure`` draws and writes the picture's JSON, ``page`` is one run of the page (all of it, the replay kept
in memory), ``browser`` is from a click on All in a closer view until the whole run stands on the screen. Prints its
setup, a table of medians with their spread, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT.parent)]


def make_sweep(folder: Path, num_requests: int) -> None:
    """A sweep of one cell."""
    from profiles import toy_profile

    from batchtwin.experiments.scenario import Scenario, TraceSpec
    from batchtwin.experiments.sweep import sweep

    trace = TraceSpec(num_requests=num_requests, prompt_scale=0.5, max_prompt_tokens=3000)
    scenario = Scenario(trace=trace, num_gpu_blocks=3000, max_num_seqs=64, max_num_batched_tokens=1024)
    sweep(folder, scenario, toy_profile(), max_num_seqs=[64], max_num_batched_tokens=[1024])


def timed(repeats: int, what: Callable[[], object]) -> list[float]:
    """Seconds of each call."""
    out = []
    for _ in range(repeats):
        began = time.perf_counter()
        what()
        out.append(time.perf_counter() - began)
    return out


def server_parts(folder: Path, repeats: int) -> tuple[int, dict[str, list[float]]]:
    """Number of iterations, and seconds by part."""
    import pytest
    from dashboard_pages import open_page

    from batchtwin.dashboard.iteration_data import series, timeline
    from batchtwin.dashboard.iteration_figures import Limits, iterations
    from batchtwin.experiments.replay import predict
    from batchtwin.experiments.sweep import open_sweep

    opened = open_sweep(folder)
    run = predict(opened.feasible()[0].cell.of(opened.spec.scenario), opened.profile)
    data = timeline(series(run))
    with pytest.MonkeyPatch.context() as patch:
        page = open_page("iterations", folder.parent, patch)
        return data.total, {
            "data": timed(repeats, lambda: timeline(series(run))),
            "figure": timed(repeats, lambda: iterations(data, Limits(64, 1024)).to_json()),
            "page": timed(repeats, page.run),
        }


def in_browser(folder: Path, total: int, repeats: int) -> list[float]:
    """Seconds from a click until all of ``total`` iterations are drawn."""
    from playwright.sync_api import sync_playwright

    from batchtwin.dashboard.launch import free_port, start, stop

    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        return []
    port = free_port()
    server = start(folder.parent, port)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(60_000)
            _open(page, f"http://localhost:{port}/iterations?window=10-10.4")
            whole = page.locator(".annotation-text", has_text=f"{total:,} iterations")
            out = []
            for _ in range(repeats):
                page.locator(".annotation-text", has_text="as wide as it took").wait_for()
                time.sleep(1)
                began = time.perf_counter()
                page.get_by_role("button", name="All").click()
                whole.wait_for()
                out.append(time.perf_counter() - began)
                page.go_back()
            browser.close()
            return out
    finally:
        stop(server)


def _open(page: Page, url: str) -> None:
    from playwright.sync_api import Error

    for _ in range(100):
        try:
            page.goto(url)
        except Error:  # the server is still starting
            time.sleep(0.2)
        else:
            return


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-browser", action="store_true")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, load {load:.1f}")
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "results" / "large"
        make_sweep(folder, asked.requests)
        total, parts = server_parts(folder, asked.repeats)
        if not asked.no_browser:
            parts["browser"] = in_browser(folder, total, asked.repeats)
    print(f"{asked.requests:,} requests, {total:,} iterations\n")
    print(f"{'part':10}{'median s':>10}{'least':>8}{'most':>8}")
    for name, seconds in parts.items():
        if seconds:
            print(f"{name:10}{median(seconds):10.3f}{min(seconds):8.3f}{max(seconds):8.3f}")
    medians = {f"{name}_s": round(median(seconds), 4) for name, seconds in parts.items() if seconds}
    print(json.dumps({"benchmark": "iterations_page", "num_iterations": total, **medians}))


if __name__ == "__main__":
    main()

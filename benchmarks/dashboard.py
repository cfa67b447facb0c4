"""How fast the dashboard is: a sweep of 80 cells with 20,000 requests each opens in 2 s and switches its metric in
0.5 s, and 100,000 iterations are drawn in 2 s.

One cell is really replayed, with all its requests; its run is written as it is for the measured cells, and its metrics,
scaled by the knobs, for the predicted ones, all through the writers that a sweep uses. So files and sizes are real, and
what is measured is the dashboard and not the simulator. Times are of Streamlit's own test runner (everything but the
browser), median of a few; the caches are emptied before every opening.

    python benchmarks/dashboard.py [--requests 20000] [--browser]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from profiles import toy_profile
from rich.console import Console
from rich.table import Table

from batchtwin.dashboard.launch import APP, RESULTS_VARIABLE
from batchtwin.experiments.grid import Cell, CellResult
from batchtwin.experiments.provenance import provenance
from batchtwin.experiments.replay import predict
from batchtwin.experiments.run import Run
from batchtwin.experiments.scenario import Scenario, TraceSpec
from batchtwin.experiments.sweep import Sweep, SweepSpec

SEQS = (4, 8, 16, 32, 64, 128, 256, 512)
TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
MEASURED = 8
REPLAYED = Cell("vllm_v1", 32, 2048)
REPEATS = 5
LIMITS_S = {"open": 2.0, "switch metric": 0.5, "iterations": 2.0}


def main() -> None:
    """Make the results, time the pages, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--browser", action="store_true", help="also in a headless Chromium, drawing included")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = make_results(Path(folder) / "large", asked.requests)
        about = {
            "cells": len(SEQS) * len(TOKENS),
            "measured_cells": MEASURED,
            "requests": len(run.records.requests["arrival_s"]),
            "iterations": len(run.records.iterations["end_s"]),
            "made_in_s": round(time.perf_counter() - began, 1),
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 1),
            **provenance("streamlit", "plotly", "pandas"),
        }
        Console().print(about)
        os.environ[RESULTS_VARIABLE] = folder
        found = time_pages()
        if asked.browser:
            found |= time_browser(Path(folder))
    report(about, found)


def make_results(folder: Path, num_requests: int) -> Run:
    """A sweep's folder as the sweep itself writes it; see the module's docstring."""
    trace = TraceSpec(source=f"azure-conv-like:{num_requests}", rate_scale=10.0)
    scenario = Scenario(trace=trace, num_gpu_blocks=16384, max_model_len=16384)
    profile = toy_profile(model=toy_profile().model.model_copy(update={"max_model_len": 16384}))
    run = predict(REPLAYED.of(scenario), profile)
    spec = SweepSpec(
        scenario=scenario,
        policies=("vllm_v1",),
        max_num_seqs=SEQS,
        max_num_batched_tokens=TOKENS,
        trace_digest=trace.load().digest(),
        profile_hash=profile.hash(),
    )
    profile.save(folder / "profile.json")
    (folder / "sweep.json").write_text(spec.model_dump_json())
    sweep = Sweep(folder, spec, profile)
    for cell in spec.cells:
        sweep._store(_scaled(cell, run.metrics, run.num_gpu_blocks))
    measured = dataclasses.replace(run, kind="measured")
    first, *rest = [folder / "cells" / cell.key / "measured-0" for cell in sweep.to_measure(MEASURED)[:MEASURED]]
    measured.save(first)
    for other in rest:
        shutil.copytree(first, other)
    return run


def _scaled(cell: Cell, metrics: dict[str, float], blocks: int) -> CellResult:
    """The replayed cell's metrics, times a factor that rises with both knobs."""
    factor = (cell.max_num_seqs / REPLAYED.max_num_seqs) ** 0.3 * (cell.max_num_batched_tokens / 2048) ** 0.1
    own = {name: value if name.endswith("_share") else value * factor for name, value in metrics.items()}
    return CellResult(cell, "ok", "", blocks, own, dict.fromkeys(("constant", "roofline_affine"), own))


def time_pages() -> dict[str, list[float]]:
    """Seconds of opening, of another metric, and of the iterations page where there is one."""
    import streamlit as st
    from streamlit.testing.v1 import AppTest
    from streamlit.util import calc_hash

    def opened(page: str) -> AppTest:
        test = AppTest.from_file(str(APP), default_timeout=600)
        test._page_hash = calc_hash(page)
        return _checked(test.run())

    found: dict[str, list[float]] = {"first open, imports included": [_timed(lambda: opened("sweep"))]}
    found["open"], found["switch metric"] = [], []
    for _ in range(REPEATS):
        st.cache_resource.clear()
        found["open"].append(_timed(lambda: opened("sweep")))
        test = opened("sweep")
        for metric in ("p99_itl_ms", "mean_ttft_ms"):
            box = test.selectbox(key="metric").select(metric)
            found["switch metric"].append(_timed(box.run))
    if find_spec("batchtwin.dashboard.pages.iterations") is not None:
        opened("iterations")  # replays the cell, which is the simulator's time
        found["iterations"] = [_timed(lambda: opened("iterations")) for _ in range(REPEATS)]
    return found


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _checked(test):  # type: ignore[no-untyped-def]
    if test.exception or test.error:
        raise SystemExit(f"The page failed: {[element.value for element in (*test.exception, *test.error)]}")
    return test


def time_browser(root: Path) -> dict[str, list[float]]:
    """The same with a server and a headless Chromium: until the last map is drawn."""
    from playwright.sync_api import sync_playwright

    from batchtwin.dashboard.launch import free_port, start, stop

    path = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if path is None:
        raise SystemExit("There is no Chromium.")
    port = free_port()
    server = start(root, port)
    found: dict[str, list[float]] = {"open in a browser": [], "switch metric in a browser": []}
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=["--headless", "--no-sandbox"])
            for _ in range(REPEATS):
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                page.set_default_timeout(60_000)
                title = page.locator(".js-plotly-plot .gtitle").nth(2)
                began = time.perf_counter()
                page.goto(f"http://localhost:{port}/?metric=mean_ttft_ms", wait_until="commit")
                title.wait_for()
                found["open in a browser"].append(time.perf_counter() - began)
                page.get_by_role("combobox", name="Metric").click()
                began = time.perf_counter()
                page.get_by_role("option", name="P99 ITL (ms)").click()
                title.filter(has_text="P99 ITL").wait_for()
                found["switch metric in a browser"].append(time.perf_counter() - began)
                page.close()
            browser.close()
    finally:
        stop(server)
    found["open in a browser"] = found["open in a browser"][1:]  # the server's first visitor waits for imports
    return found


def report(about: dict[str, object], found: dict[str, list[float]]) -> None:
    """A table, and one JSON line."""
    table = Table(title="Seconds", title_justify="left", box=None)
    for head in ("", "Median", "Worst", "Limit"):
        table.add_column(head, justify="left" if not head else "right")
    for name, times in found.items():
        limit = LIMITS_S.get(name.removesuffix(" in a browser"))
        table.add_row(name, f"{statistics.median(times):.2f}", f"{max(times):.2f}", f"{limit or ''}")
    Console().print(table)
    medians = {name: round(statistics.median(times), 3) for name, times in found.items()}
    print(json.dumps({"benchmark": "dashboard", **about, "seconds": medians}))


if __name__ == "__main__":
    main()

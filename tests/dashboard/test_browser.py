"""The page in a real browser: what only a browser can tell (that it draws, reacts, and can be linked to)."""

from __future__ import annotations

import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from batchtwin.dashboard.colors import MEASURED, PREDICTED
from batchtwin.dashboard.launch import free_port, start, stop
from batchtwin.dashboard.report import write_report
from batchtwin.experiments.sweep import Sweep

pytestmark = pytest.mark.browser
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if path is None:
        pytest.fail(f"There is no Chromium: install one (looked for {', '.join(CHROMIUM)})")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(measured: Sweep) -> Iterator[str]:
    port = free_port()
    server = start(measured.folder.parent, port)
    try:
        _wait(f"http://localhost:{port}/_stcore/health")
        yield f"http://localhost:{port}"
    finally:
        stop(server)


def _wait(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    pytest.fail(f"{url} does not answer")


@pytest.fixture(params=["light", "dark"])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=request.param)
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def _expect_maps(page: Page, metric: str) -> None:
    """The three maps and the parity plot, all of this metric."""
    titles = [re.compile(f"{word}.*{metric}") for word in ("Predicted", "Measured", "Error", "Parity")]
    expect(page.locator(".js-plotly-plot .gtitle")).to_contain_text(titles, timeout=PATIENCE_MS)


def _has_exception(page: Page) -> bool:
    return page.locator("[data-testid=stException], [data-testid=stAlertContentError]").count() > 0


def test_answer_is_on_the_first_screen_and_the_metric_can_be_switched(page: Page, address: str) -> None:
    page.goto(address)
    answer = page.get_by_role("heading", name=re.compile(r"Choose max_num_seqs=\d+ and max_num_batched_tokens=\d+"))
    expect(answer).to_be_visible(timeout=PATIENCE_MS)
    _expect_maps(page, "Output throughput")
    box = answer.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 900

    page.get_by_role("combobox", name="Metric").click()
    page.get_by_role("option", name="P99 ITL (ms)").click()
    _expect_maps(page, "P99 ITL")
    expect(page).to_have_url(re.compile("metric=p99_itl_ms"))
    assert not _has_exception(page)


def test_hovering_a_cell_that_cannot_work_says_why(page: Page, address: str) -> None:
    page.goto(address)
    _expect_maps(page, "Output throughput")
    area = page.locator(".js-plotly-plot .nsewdrag").first
    box = area.bounding_box()
    assert box is not None
    area.hover(position={"x": box["width"] / 6, "y": box["height"] / 6})  # 128 by 64: upper left of 3 × 3 cells
    label = page.locator(".js-plotly-plot .hoverlayer")
    expect(label.first).to_contain_text("cannot work", timeout=PATIENCE_MS)
    expect(label.first).to_contain_text("(64) is less than max_num_seqs (128)")


def test_back_and_a_link_lead_to_what_was_seen(page: Page, address: str) -> None:
    page.goto(f"{address}/?metric=mean_tpot_ms")
    first = page.locator(".js-plotly-plot .gtitle").first
    expect(first).to_contain_text("Mean TPOT (ms)", timeout=PATIENCE_MS)
    page.get_by_role("combobox", name="Metric").click()
    page.get_by_role("option", name="Mean TTFT (ms)").click()
    expect(first).to_contain_text("Mean TTFT (ms)", timeout=PATIENCE_MS)
    page.go_back()
    expect(first).to_contain_text("Mean TPOT (ms)", timeout=PATIENCE_MS)
    assert not _has_exception(page)


def test_report_draws_itself_without_a_server(page: Page, measured: Sweep, tmp_path: Path) -> None:
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
    write_report(measured, tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    expect(page.locator(".js-plotly-plot .gtitle")).to_have_count(16, timeout=PATIENCE_MS)
    first = page.locator(".js-plotly-plot .gtitle").first
    expect(first).to_contain_text("Predicted")
    colors = page.locator(".js-plotly-plot .gtitle tspan").evaluate_all("all => all.map(e => e.style.fill)")
    assert {_rgb(PREDICTED), _rgb(MEASURED)} <= set(colors)
    body = page.locator("body").evaluate("element => getComputedStyle(element).color")
    title = first.evaluate("element => getComputedStyle(element).fill")
    assert body == title  # the figures' text follows the page, light or dark
    assert wrong == []


def _rgb(color: str) -> str:
    return f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))})"


def _bottom(page: Page, selector: str) -> float:
    boxes = [box for found in page.locator(selector).all() if (box := found.bounding_box())]
    return max(box["y"] + box["height"] for box in boxes)


def test_a_range_drawn_over_the_iterations_is_looked_at_closer(page: Page, address: str) -> None:
    cell = "vllm_v1-seqs128-tokens256"
    page.goto(f"{address}/iterations?cell={cell}")
    whole = page.locator(".annotation-text", has_text="mean by time of")
    expect(whole).to_be_visible(timeout=PATIENCE_MS)
    assert _bottom(page, ".js-plotly-plot") <= 900  # nothing to scroll to
    area = page.locator(".js-plotly-plot .nsewdrag").first
    box = area.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.2 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.3 * box["width"], y, steps=5)
    page.mouse.move(box["x"] + 0.4 * box["width"], y, steps=5)
    page.mouse.up()
    closer = page.locator(".annotation-text", has_text="chunks, a colour a request")
    expect(closer).to_be_visible(timeout=PATIENCE_MS)
    expect(page).to_have_url(re.compile(r"window=[\d.]+-[\d.]+"))
    page.get_by_role("button", name="All").click()
    expect(whole).to_be_visible(timeout=PATIENCE_MS)
    assert not _has_exception(page)


def test_a_forward_is_on_one_screen_and_the_film_plays(page: Page, address: str) -> None:
    page.goto(f"{address}/shapes?what=one-mixed-iteration")
    expect(page.get_by_text("[7, n_q_heads, head_dim]")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(".js-plotly-plot")).to_have_count(4, timeout=PATIENCE_MS)
    expect(page.locator(".gtitle", has_text="8 of 15 slots wasted, 53.3 %")).to_be_visible()
    assert _bottom(page, ".js-plotly-plot") <= 900
    number = page.get_by_role("spinbutton", name="Iteration")
    page.get_by_test_id("stMain").get_by_role("button").filter(has_text="play_arrow").click()
    expect(number).to_have_value("3", timeout=PATIENCE_MS)
    page.get_by_test_id("stMain").get_by_role("button").filter(has_text="pause").click()
    expect(page).to_have_url(re.compile(r"iteration=\d"), timeout=PATIENCE_MS)
    stopped = re.search(r"iteration=(\d)", page.url)
    assert stopped is not None
    expect(number).to_have_value(stopped[1])
    assert int(stopped[1]) >= 3
    assert not _has_exception(page)

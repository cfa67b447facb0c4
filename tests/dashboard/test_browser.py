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
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright
from profiles import toy_profile

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
PATIENCE_MS = 60_000


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


@pytest.fixture(scope="module")
def contexts(browser: Browser) -> dict[str, BrowserContext]:
    """One a scheme, so that Plotly's megabytes are fetched once."""
    found = {}
    for scheme in ("light", "dark"):
        found[scheme] = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
        found[scheme].set_default_timeout(PATIENCE_MS)
    return found


@pytest.fixture
def page(contexts: dict[str, BrowserContext], request: pytest.FixtureRequest) -> Iterator[Page]:
    opened = contexts[getattr(request, "param", "light")].new_page()
    yield opened
    opened.close()


both_schemes = pytest.mark.parametrize("page", ["light", "dark"], indirect=True)


def _expect_maps(page: Page, metric: str) -> None:
    """The three maps, all of this metric."""
    titles = [re.compile(f"{word}.*{metric}") for word in ("Predicted", "Measured", "Error")]
    expect(page.locator(".js-plotly-plot .gtitle")).to_contain_text(titles, timeout=PATIENCE_MS)


def _has_exception(page: Page) -> bool:
    return page.locator("[data-testid=stException], [data-testid=stAlertContentError]").count() > 0


def _settled(page: Page) -> None:
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")


@both_schemes
def test_answer_is_on_the_first_screen_and_the_metric_can_be_switched(page: Page, address: str) -> None:
    page.goto(address)
    answer = page.get_by_role("heading", name=re.compile(r"Choose max_num_seqs=\d+ and max_num_batched_tokens=\d+"))
    expect(answer).to_be_visible(timeout=PATIENCE_MS)
    _expect_maps(page, "Output throughput")
    last = page.locator(".js-plotly-plot").last.bounding_box()
    assert last is not None
    assert last["y"] + last["height"] < 900

    page.get_by_role("combobox", name="Metric").click()
    page.get_by_role("option", name="P99 ITL (ms)").click()
    _expect_maps(page, "P99 ITL")
    expect(page).to_have_url(re.compile("metric=p99_itl_ms"))
    assert not _has_exception(page)


@pytest.mark.parametrize("name", ["load", "compare", "trust", "measure"])
def test_no_page_needs_scrolling_to_its_answer(page: Page, address: str, name: str) -> None:
    page.goto(f"{address}/{name}?slo=ttft_ms%3D5000")
    plot = page.locator(".js-plotly-plot").first
    expect(plot).to_be_visible(timeout=PATIENCE_MS)
    _settled(page)
    box = plot.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 900
    assert not _has_exception(page)


def test_nothing_of_streamlits_own_lies_over_the_page(page: Page, address: str) -> None:
    page.goto(address)
    _expect_maps(page, "Output throughput")
    assert page.locator("[data-testid=stToast], [data-testid=stAppDeployButton]").count() == 0
    assert page.get_by_text("agents write better apps").count() == 0


def test_clicking_a_cell_opens_it(page: Page, address: str) -> None:
    page.goto(address)
    _expect_maps(page, "Output throughput")
    _settled(page)
    area = page.locator(".js-plotly-plot .nsewdrag").first
    box = area.bounding_box()
    assert box is not None
    area.click(position={"x": box["width"] * 0.2, "y": box["height"] * 0.9})  # 4 by 64: lower left of 3 × 3 cells
    expect(page).to_have_url(re.compile("cell=vllm_v1-seqs4-tokens64"), timeout=PATIENCE_MS)
    expect(page.get_by_text("Chosen cell 4 × 64")).to_be_visible(timeout=PATIENCE_MS)


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


def test_back_leads_to_what_was_seen(page: Page, address: str) -> None:
    page.goto(f"{address}/?metric=mean_tpot_ms")
    first = page.locator(".js-plotly-plot .gtitle").first
    expect(first).to_contain_text("Mean TPOT (ms)", timeout=PATIENCE_MS)
    page.get_by_role("combobox", name="Metric").click()
    page.get_by_role("option", name="Mean TTFT (ms)").click()
    expect(first).to_contain_text("Mean TTFT (ms)", timeout=PATIENCE_MS)
    page.go_back()
    expect(first).to_contain_text("Mean TPOT (ms)", timeout=PATIENCE_MS)
    assert not _has_exception(page)


def test_link_to_another_page_keeps_the_question_and_reproduces_the_view(page: Page, address: str) -> None:
    page.goto(f"{address}/?slo=ttft_ms%3D5000&cell=vllm_v1-seqs8-tokens256")
    expect(page.get_by_text("Chosen cell 8 × 256").or_(page.get_by_text("Recommended cell 8 × 256"))).to_be_visible(
        timeout=PATIENCE_MS
    )
    _expect_maps(page, "Output throughput")
    _settled(page)
    page.get_by_role("link", name="Load").click()
    heading = page.get_by_role("heading", name=re.compile("within the SLOs"))
    expect(heading).to_be_visible(timeout=PATIENCE_MS)
    expect(page).to_have_url(re.compile(r"/load\?.*slo=ttft_ms"))
    _settled(page)
    said, link = heading.inner_text(), page.url

    again = page.context.new_page()
    again.goto(link)
    expect(again.get_by_role("heading", name=said)).to_be_visible(timeout=PATIENCE_MS)
    expect(again.get_by_role("button", name="TTFT 5000 ms")).to_be_visible()


class _Hand:
    """Counts what a user does."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.count = 0

    def click(self, target: Locator) -> None:
        self.count += 1
        target.click()
        _settled(self._page)

    def type(self, label: str, text: str) -> None:
        self.count += 1
        field = self._page.get_by_label(label, exact=True)
        field.fill(text)
        field.press("Enter") if label in ("Requests", "Prompts ×", "Outputs ×") else field.blur()
        self._page.wait_for_timeout(300)
        _settled(self._page)


def test_from_start_to_recommendation_in_under_ten_interactions(browser: Browser, tmp_path: Path) -> None:
    toy_profile().save(tmp_path / "profiles" / "toy.json")
    port = free_port()
    server = start(tmp_path, port)
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    try:
        _wait(f"http://localhost:{port}/_stcore/health")
        page = context.new_page()
        page.goto(f"http://localhost:{port}")
        hand = _Hand(page)
        hand.click(page.get_by_role("button", name=re.compile("azure-conv-like")))
        hand.type("Requests", "30")
        hand.type("Prompts ×", "0.1")
        hand.type("Outputs ×", "0.1")
        hand.click(page.get_by_text("No sweep here yet"))  # closes the bar's window
        hand.type("max_num_seqs", "4, 8")
        hand.type("max_num_batched_tokens", "64, 256")
        hand.click(page.get_by_role("button", name="Predict"))
        answer = page.get_by_role("heading", name=re.compile(r"Choose max_num_seqs=\d+"))
        expect(answer).to_be_visible(timeout=2 * PATIENCE_MS)
        assert hand.count < 10
        expect(page.get_by_text("vLLM cannot serve this: tiny-llama is a preset")).to_be_visible()
        assert not _has_exception(page)
    finally:
        context.close()
        stop(server)


@both_schemes
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
    everything = page.get_by_role("button", name="All")
    expect(page.locator(".annotation-text", has_text="vllm:num_requests_running")).to_be_visible(timeout=PATIENCE_MS)
    expect(everything).to_be_disabled()
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
    expect(page).to_have_url(re.compile(r"window=[\d.]+-[\d.]+"), timeout=PATIENCE_MS)
    expect(everything).to_be_enabled(timeout=PATIENCE_MS)
    everything.click()
    expect(everything).to_be_disabled(timeout=PATIENCE_MS)
    assert not _has_exception(page)


@both_schemes
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

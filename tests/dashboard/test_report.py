from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from batchtwin.dashboard.colors import MEASURED, PREDICTED
from batchtwin.dashboard.report import METRICS, write_report
from batchtwin.experiments.compare import compare
from batchtwin.experiments.recommend import recommend
from batchtwin.experiments.sweep import Sweep
from batchtwin.scheduler.errors import BatchTwinError


class _Page(HTMLParser):
    """What a reader sees, and whatever would be fetched from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.headings: list[str] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href", "srcset")]
        self._inside.append(tag)
        if tag in ("h1", "h2"):
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if {"script", "style"}.isdisjoint(self._inside):
            self.text += data
        if {"h1", "h2"} & set(self._inside):
            self.headings[-1] += data


def _figures(text: str) -> list[str]:
    return re.findall(r'<div id="([^"]+)" class="plotly-graph-div"', text)


@pytest.fixture(scope="module")
def report(measured: Sweep, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("reports") / "deeper" / "report.html"
    write_report(measured, path)
    return path.read_text(encoding="utf-8")


def test_report_fetches_nothing_and_holds_plotly_once(report: str) -> None:
    assert _Page(report).fetched == []
    assert len(re.findall(r"plotly\.js v\d", report)) == 1


def test_report_begins_with_the_recommendation_and_its_command(report: str, measured: Sweep) -> None:
    chosen = recommend(measured)
    page = _Page(report)
    assert page.headings[0] == chosen.sentence.partition(". ")[0] + "."
    assert chosen.serve_command in page.text


def test_report_says_what_it_rests_on(report: str, measured: Sweep) -> None:
    text = _Page(report).text
    for part in (
        "tiny-llama · float32",
        "toy (cpu)",
        "azure-conv-like · 60 requests",
        "100 blocks of 16 tokens",
        measured.profile.hash(),
        "held out 3.0 % median, 9.0 % worst",
        "repeats itself within 4.0 %",
        "128 × 2,048 (server, cpu)",
        f"{recommend(measured).metrics['offered_rho']:.2f} at the recommended cell",
        "batchtwin ",
    ):
        assert part in text


def test_report_draws_three_maps_and_parity_for_each_metric(report: str) -> None:
    names = _figures(report)
    assert len(names) == len(set(names)) == 4 * len(METRICS)
    for metric in METRICS:
        assert {f"{what}-{metric}-vllm_v1" for what in ("predicted", "measured", "error")} <= set(names)
        assert f"parity-{metric}" in names
    assert PREDICTED in report
    assert MEASURED in report


def test_report_holds_the_errors_the_regret_and_the_split(report: str, measured: Sweep) -> None:
    found = compare(measured)
    page = _Page(report)
    assert {"Errors", "What believing it costs", "Where the error comes from"} <= set(page.headings)
    row = found.summary.set_index("metric").loc["mean_ttft_ms"]
    cells = re.search(r"<td>Mean TTFT</td>\s*<td>([^<]+)</td>\s*<td>([^<]+)</td>", report)
    assert cells is not None
    assert cells.groups() == (f"{row['median_error_percent']:.1f} %", f"{row['worst_error_percent']:.1f} %")
    assert f"{found.regret_percent['vllm_default']:.1f} %" in page.text


def test_report_of_a_predicted_sweep_says_that_nothing_is_measured(predicted: Sweep, tmp_path: Path) -> None:
    write_report(predicted.folder, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Nothing of this sweep is measured" in _Page(text).text
    assert len(_figures(text)) == len(METRICS)
    assert "Parity" not in _Page(text).headings


def test_report_has_the_same_bytes_every_time(measured: Sweep, report: str, tmp_path: Path) -> None:
    write_report(measured, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == report


def test_name_of_a_folder_cannot_become_markup(make_sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    made = make_sweep(tmp_path / "<img src=x>", max_num_seqs=[4], max_num_batched_tokens=[64])
    write_report(made, tmp_path / "report.html")
    page = _Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.fetched == []
    assert "<img src=x>" in page.text


def test_report_of_several_policies_shows_each(make_sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    names = ["vllm_v1", "prefill_first"]
    made = make_sweep(tmp_path / "two", policies=names, max_num_seqs=[4], max_num_batched_tokens=[1024])
    write_report(made, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert {f"predicted-mean_ttft_ms-{name}" for name in names} <= set(_figures(text))


def test_report_that_cannot_be_written_is_one_sentence(predicted: Sweep, tmp_path: Path) -> None:
    with pytest.raises(BatchTwinError, match="cannot be written"):
        write_report(predicted, tmp_path)


def test_report_of_no_sweep_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BatchTwinError, match=r"holds no sweep\.json"):
        write_report(tmp_path, tmp_path / "report.html")

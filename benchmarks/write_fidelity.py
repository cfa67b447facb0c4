"""Writes docs/fidelity.md from benchmarks/results/fidelity_*.json: ``python benchmarks/write_fidelity.py``.

Every figure of that document is read from those files; a test holds the document against them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENT = ROOT / "docs" / "fidelity.md"
TARGETS = (
    ("output_throughput", "median_error_percent", 5.0),
    ("output_throughput", "worst_error_percent", 12.0),
    ("mean_tpot_ms", "median_error_percent", 8.0),
    ("mean_ttft_ms", "median_error_percent", 15.0),
    ("p99_itl_ms", "median_error_percent", 15.0),
)
NAMES = {
    "output_throughput": "Output throughput",
    "request_throughput": "Request throughput",
    "mean_ttft_ms": "TTFT mean",
    "median_ttft_ms": "TTFT median",
    "p99_ttft_ms": "TTFT P99",
    "mean_tpot_ms": "TPOT mean",
    "p99_tpot_ms": "TPOT P99",
    "mean_itl_ms": "ITL mean",
    "p99_itl_ms": "ITL P99",
    "mean_e2el_ms": "E2E mean",
    "p99_e2el_ms": "E2E P99",
}
CHOOSERS = {
    "predicted": "the prediction",
    "constant": "a constant step time",
    "roofline_affine": "a roofline, scaled and shifted",
    "random": "chance (mean over the cells)",
    "vllm_default": "vLLM's default",
}
HEAD = """# How wrong the predictions are, where that was measured

Written by `python benchmarks/write_fidelity.py` from `benchmarks/results/fidelity_*.json`, which
`python benchmarks/fidelity.py` measures; a test holds this file against them.

Error is predicted over measured, minus one. Noise is half the range of a cell's repeats, median over the cells: no
prediction can be better than that. Constant: every step takes the calibration's median. Roofline: that of the
device's measured peaks, scaled and shifted to the calibration. Both are replayed through the same scheduler.

## How the intervals are made

An interval is what a metric becomes if every step is as fast, or as slow, as the calibration leaves possible at 90 %,
replayed through the scheduler each time, so that a queue that grows on a slower device is in it.
Three things are told apart (`sim/cost/spread.py`). What all alike steps share of the law's error does not average out
over a replay: the variance of the cross-validated residuals *between* regions of alike steps (kind of step, octave of
tokens, of four the context), by the method of moments of a one-way random-effects model. What is a step's own averages
out and is left out, so the tails (P99 of ITL and TPOT) are held less often than the means. What the device does from
one time to another is the spread of the calibration's rounds. No measured cell is looked at. A profile made before
these were kept has the P90 of its held-out error instead. Drawn requests add the uncertainty of the mean over their
seeds (Student's t), in quadrature.

Two cells are called a tie if their difference is less than the two half intervals in quadrature. Cells share most of
what is uncertain, so this calls a tie rather too often than too seldom.
"""


def document(folder: Path = RESULTS) -> str:
    """The whole file."""
    results = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("fidelity_*.json"))
    }
    parts = [HEAD, *(part for name, result in results.items() for part in _parts(name, result))]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _parts(name: str, result: Mapping[str, Any]) -> Iterator[str]:
    yield _about(name, result)
    yield _metrics(result["summary"])
    yield _targets(result["summary"])
    yield _choosing(result)
    if "split" in result:
        yield _split(result["split"])
        yield _cancelling(result["latency"])
        yield _over_time(result["over_time"])
    yield _cells(result["cells"])


def _about(name: str, result: Mapping[str, Any]) -> str:
    made, held_out = result["provenance"], result["held_out"]
    lines = [
        f"## {made['device']}, {made['threads']} thread(s): `{name}.json`",
        "",
        f"{len(result['cells'])} cells, measured in {result['measured_minutes']:.1f} minutes with torch "
        f"{made['torch']} at commit `{made['commit']}`, from profile `{result['profile_hash']}`, which was written "
        f"before the first cell was measured. The law's held-out error is {held_out['median_percent']:.1f} % in the "
        f"median, {held_out['p90_percent']:.1f} % at P90, {held_out['worst_percent']:.1f} % at worst; the same batch "
        f"repeats itself within {result['calibration_noise_percent']:.1f} % (interquartile).",
    ]
    interval = result.get("interval")
    if interval is None:
        lines.append("Measured before intervals were kept: their coverage is not known here.")
    else:
        share = 100 * interval["inside"] / interval["of"]
        lines.append(
            f"Intervals at {interval['level']:.0%} hold {interval['inside']} of {interval['of']} measured figures "
            f"({share:.0f} %)."
        )
    return "\n".join(lines)


def _metrics(summary: Mapping[str, Mapping[str, float]]) -> str:
    heads = ("metric", "median", "worst", "bias", "noise", "interval ±", "inside", "constant", "roofline")
    columns = (
        *("median_error_percent", "worst_error_percent", "bias_percent", "repeat_noise_percent", "interval_percent"),
        *("coverage_percent", "constant_median_percent", "roofline_affine_median_percent"),
    )
    rows = [
        [NAMES[name], *(_percent(row.get(column), signed=column == "bias_percent") for column in columns)]
        for name, row in summary.items()
        if name in NAMES
    ]
    return _table(heads, rows)


def _targets(summary: Mapping[str, Mapping[str, float]]) -> str:
    rows = []
    for name, column, limit in TARGETS:
        reached = summary[name][column]
        verdict = "reached" if reached <= limit else f"missed by {reached - limit:.1f} points"
        rows.append([f"{NAMES[name]}, {column.split('_')[0]}", _percent(limit), _percent(reached), verdict])
    return _table(("target", "aimed at", "came out", ""), rows)


def _choosing(result: Mapping[str, Any]) -> str:
    lost = [[CHOOSERS.get(who, who), _percent(value)] for who, value in result["regret_percent"].items()]
    rank = result["rank_correlation"]
    table = _table(("cell chosen by", "lost of the best measured throughput"), lost)
    return f"{table}\nRank correlation of predicted and measured throughput over the cells: {rank:.2f}.\n"


def _split(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over the cells, in per cent of the measured figure."""
    shown = []
    for name in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "p99_itl_ms", "mean_e2el_ms"):
        mine = [row for row in rows if row["metric"] == name]
        parts = ("rest", "cost", "schedule", "hidden")
        means = [sum(100 * row[part] / row["measured"] for row in mine) / len(mine) for part in parts]
        shown.append([NAMES[name], *(_percent(mean, signed=True) for mean in means[:3]), _percent(means[3])])
    table = _table(("measured − predicted", "rest", "cost model", "other decisions", "of these cancels"), shown)
    return f"Where the error comes from, exactly (the first three sum to it):\n\n{table}"


def _cancelling(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [row for row in rows if row["cancels"]]
    if not found:
        return f"In none of the {len(rows)} cells do errors of TTFT and TPOT cancel in E2E.\n"
    shown = [
        [
            f"{row['max_num_seqs']} × {row['max_num_batched_tokens']}",
            *(_percent(row[f"{part}_error_percent"], signed=True) for part in ("ttft", "tpot", "e2el")),
            _percent(row["hidden_percent"]),
        ]
        for row in found
    ]
    table = _table(("cell", "TTFT", "TPOT", "E2E", "hidden"), shown)
    return f"Errors that cancel in E2E, in {len(found)} of {len(rows)} cells:\n\n{table}"


def _over_time(rows: Sequence[Mapping[str, Any]]) -> str:
    shown = []
    for name, words, scale in (("running", "running", 1), ("waiting", "waiting", 1), ("kv_usage", "KV usage (%)", 100)):
        mean, distance = ([scale * row[f"{name}_{what}"] for row in rows] for what in ("mean", "distance"))
        figures = (sum(mean) / len(mean), sum(distance) / len(distance), max(distance))
        shown.append([words, *(f"{value:.1f}" for value in figures)])
    return _table(("over time", "measured mean", "mean distance", "worst cell's"), shown)


def _cells(cells: Sequence[Mapping[str, float]]) -> str:
    pairs = ("tok_s", "mean_tpot_ms", "p99_itl_ms", "mean_ttft_ms")
    heads = ("seqs × tokens", "load ρ", "busy / span", "preemptions", "tokens/s", "TPOT ms", "P99 ITL ms", "TTFT ms")
    rows = [
        [
            f"{cell['max_num_seqs']:.0f} × {cell['max_num_batched_tokens']:.0f}",
            f"{cell['offered_rho']:.2f}" if "offered_rho" in cell else "–",
            f"{cell['load_rho']:.2f}",
            f"{cell['preemptions']:.0f}",
            *(f"{cell[f'measured_{name}']:,.1f} ({cell[f'predicted_{name}']:,.1f})" for name in pairs),
        ]
        for cell in cells
    ]
    about = (
        "Every cell, measured (predicted). Load ρ: offered over capacity, predicted. Busy / span: the server's busy\n"
        "time over the span of the arrivals, measured."
    )
    return f"{about}\n\n{_table(heads, rows)}"


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"{value:{'+' if signed else ''}.1f} %".replace("-", "−")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
    print(f"Wrote {DOCUMENT}")

"""What a sweep prints of its grid."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from profiles import toy_profile
from rich.console import Console
from sweeps import spec, tiny_scenario, write_measured, write_sweep

from batchtwin.experiments.grid import Cell, default_cell
from batchtwin.experiments.render import make_table, uncut
from batchtwin.experiments.render_sweep import print_sweep
from batchtwin.experiments.sweep import Sweep, sweep
from batchtwin.scheduler.batch import Bound


@pytest.mark.parametrize(("figures", "median"), [((30.0, 10.0), "(20.0)"), ((90.0, 10.0, 30.0), "(30.0)")])
def test_a_measured_cell_shows_the_median_of_its_repeats(
    figures: tuple[float, ...], median: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = sweep(tmp_path / "s", tiny_scenario(), toy_profile(), max_num_seqs=[4], max_num_batched_tokens=[64])
    for repeat, figure in enumerate(figures):
        write_measured(done, done.spec.cells[0], repeat, {"output_throughput": figure})
    print_sweep(done)
    assert median in capsys.readouterr().out


def by_hand(folder: Path, seeds: int = 3) -> Sweep:
    """A cell whose throughput is 800 with the sweep's seed and 900 and 1,000 with two more: 900 on average."""
    own = {"metrics": {"output_throughput": 800.0}, "seeds": [{"output_throughput": y} for y in (900.0, 1000.0)]}
    cell = Cell("vllm_v1", 4, 64)
    asked = spec(tiny_scenario(), [4], [64], num_seeds=seeds)
    metrics = {f"bound_{bound.name.lower()}_share": 0.0 for bound in Bound}
    own["metrics"] |= metrics  # type: ignore[operator]
    return write_sweep(folder, asked, {cell: own, default_cell(asked.scenario): {"status": "infeasible"}})


def test_the_grid_shows_the_mean_that_the_sentence_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_sweep(by_hand(tmp_path / "s"))
    said = " ".join(capsys.readouterr().out.split())
    assert "4 900.0" in said
    assert "800.0" not in said
    assert "900.0 output tokens/s on average over 3 seeds" in said
    assert "predicted, mean over 3 seeds. Results" in said


def test_a_measured_cell_shows_what_was_predicted_with_its_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = by_hand(tmp_path / "s")
    write_measured(done, Cell("vllm_v1", 4, 64), 0, {"output_throughput": 790.0})
    print_sweep(done)
    said = " ".join(capsys.readouterr().out.split())
    assert "800.0 (790.0)" in said
    assert "mean over 3 seeds; where measured: predicted with the measured seed (measured)." in said


def test_one_more_cell_without_a_prediction_is_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four cells with a reason, three of them shown."""
    done = sweep(
        tmp_path / "s", tiny_scenario(), toy_profile(), max_num_seqs=[4, 65, 66, 67, 68], max_num_batched_tokens=[64]
    )
    print_sweep(done)
    assert "(and 1 more cell without a prediction)" in capsys.readouterr().out


def test_no_figure_is_cut_in_a_narrow_terminal() -> None:
    table = uncut(make_table("Knob", "Predicted", "Published"))
    table.add_row("max_num_batched_tokens", "1.234e+05", "8.294e+04")
    out = Console(width=20, file=StringIO())
    out.print(table)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    assert sum(character.isdigit() for character in text) == sum(c.isdigit() for c in "1.234e+058.294e+04")

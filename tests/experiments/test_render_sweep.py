"""What a sweep prints of its grid."""

from __future__ import annotations

from pathlib import Path

import pytest
from profiles import toy_profile
from sweeps import tiny_scenario, write_measured

from batchtwin.experiments.render import print_sweep
from batchtwin.experiments.sweep import sweep


@pytest.mark.parametrize(("figures", "median"), [((30.0, 10.0), "(20.0)"), ((90.0, 10.0, 30.0), "(30.0)")])
def test_a_measured_cell_shows_the_median_of_its_repeats(
    figures: tuple[float, ...], median: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = sweep(tmp_path / "s", tiny_scenario(), toy_profile(), max_num_seqs=[4], max_num_batched_tokens=[64])
    for repeat, figure in enumerate(figures):
        write_measured(done, done.spec.cells[0], repeat, {"output_throughput": figure})
    print_sweep(done)
    assert median in capsys.readouterr().out

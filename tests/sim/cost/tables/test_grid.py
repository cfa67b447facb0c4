"""Interpolation in points that need not form one grid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator

from batchtwin.sim.cost.tables.grid import PointTable
from batchtwin.sim.cost.tables.lines import Line, total

AXES = ((1.0, 2.0, 8.0), (0.0, 16.0, 100.0), (4.0, 5.0, 50.0))
VALUES = np.random.default_rng(3).uniform(1, 9, (3, 3, 3))
FULL = PointTable(
    (
        ((a, b, c), float(VALUES[i, j, k]))
        for i, a in enumerate(AXES[0])
        for j, b in enumerate(AXES[1])
        for k, c in enumerate(AXES[2])
    ),
    ("linear",) * 3,
)


@settings(deadline=None)
@given(st.tuples(st.floats(1, 8), st.floats(0, 100), st.floats(4, 50)))
def test_on_a_full_grid_it_is_scipys_linear_interpolation(point: tuple[float, float, float]) -> None:
    expected = RegularGridInterpolator(AXES, VALUES)([point])[0]
    assert FULL(*point) == pytest.approx(expected, rel=1e-9)


def test_a_coarse_wide_grid_is_used_where_a_fine_narrow_one_does_not_reach() -> None:
    wide = [((x, y), x + y) for x in (0.0, 10.0) for y in (0.0, 100.0)]
    narrow = [((5.0, y), 1000.0) for y in (0.0, 10.0)]
    table = PointTable([*wide, *narrow], ("linear", "linear"))
    assert table(5.0, 50.0) == pytest.approx(55.0)
    assert table(5.0, 5.0) == 1000.0


def test_below_the_table_it_is_flat_and_above_it_goes_on_but_never_down() -> None:
    rising = PointTable([((1.0,), 1.0), ((2.0,), 3.0)], ("linear",))
    falling = PointTable([((1.0,), 3.0), ((2.0,), 1.0)], ("linear",))
    assert (rising(0.0), rising(4.0), falling(4.0)) == (1.0, 7.0, 1.0)
    assert rising.reaches(2.0)
    assert not rising.reaches(2.1)


def test_a_logarithmic_axis_is_straight_in_the_logarithm() -> None:
    table = PointTable([((1.0,), 1.0), ((7.0,), 3.0)], ("log",))
    assert table(3.0) == pytest.approx(2.0)  # log2(1 + x) is 1, 2, 3


def test_a_line_goes_on_with_the_slope_of_its_upper_half() -> None:
    line = Line([(1, 5.0), (10, 10.0), (20, 20.0)])
    assert (line(0), line(1), line(15), line(20)) == (5.0, 5.0, 15.0, 20.0)
    assert line(40) == pytest.approx(40.0)
    assert Line([(4, 1.0)])(100) == 1.0


def test_a_total_ends_where_the_first_of_its_lines_ends() -> None:
    both = total([(Line([(1, 1.0), (4, 4.0)]), 2.0), (Line([(1, 1.0), (2, 1.0)]), 10.0)])
    assert both.high == 2
    assert both(2) == pytest.approx(2 * 2 + 10)

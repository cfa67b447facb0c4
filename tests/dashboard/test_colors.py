from __future__ import annotations

from pathlib import Path

import batchtwin.dashboard
from batchtwin.dashboard.colors import MEASURED, PREDICTED, VALUES, reversed_scale
from batchtwin.dashboard.theme import options


def _luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_both_colors_stand_out_on_the_light_and_the_dark_page() -> None:
    pages = options()["theme.light.backgroundColor"], options()["theme.dark.backgroundColor"]
    for color in (PREDICTED, MEASURED):
        for page in pages:
            assert _contrast(color, page) >= 3  # WCAG 2.1, 1.4.11: graphics


def test_both_colors_are_written_in_one_file_only() -> None:
    folder = Path(batchtwin.dashboard.__file__).parent
    for color in (PREDICTED, MEASURED):
        users = [path.name for path in folder.glob("*.py") if color.lower() in path.read_text().lower()]
        assert users == ["colors.py"]


def test_reversed_scale_runs_from_the_other_end() -> None:
    turned = reversed_scale(VALUES)
    assert [at for at, _ in turned] == [at for at, _ in VALUES]
    assert (turned[0][1], turned[-1][1]) == (VALUES[-1][1], VALUES[0][1])

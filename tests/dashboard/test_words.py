from __future__ import annotations

import pytest

from batchtwin.dashboard.words import cell_name, plain, with_knobs
from batchtwin.experiments.grid import Cell


@pytest.mark.parametrize("text", ["a_b_c", "*x*", "[link](http://x)", ":red[alarm]", "$x$ and $y$", "`code`", "<b>"])
def test_text_of_a_file_cannot_become_markup(text: str) -> None:
    escaped = plain(text)
    assert escaped.replace("\\", "") == text
    for at, letter in enumerate(escaped):
        if letter in "_*[]()$`<>:":
            assert escaped[at - 1] == "\\"


def test_knobs_are_set_as_code_with_their_values() -> None:
    assert with_knobs("Choose max_num_seqs=16, not a_b.") == "Choose `max_num_seqs=16`, not a\\_b."
    assert with_knobs("max_num_batched_tokens holds back 3") == "`max_num_batched_tokens` holds back 3"


def test_cell_is_named_by_both_knobs() -> None:
    assert cell_name(Cell("vllm_v1", 128, 2048)) == "128 × 2,048"

from __future__ import annotations

import dataclasses

from batchtwin.dashboard.answer import about_cell, cards
from batchtwin.dashboard.results import Results


def _cards(results: Results, at: int) -> dict[str, object]:
    return {card.label: card for card in cards(results, results.cells[at])}


def test_card_shows_prediction_measurement_with_its_error_and_change_against_the_default(by_hand: Results) -> None:
    card = cards(by_hand, by_hand.cells[3])[0]
    assert (card.label, card.predicted) == ("Output tokens/s", "300")
    assert card.measured == "measured 200 (+50.0 %)"
    assert (card.change, card.change_color) == ("-25.0 %", "normal")  # the default predicts 400


def test_cell_that_was_not_measured_has_no_measurement(by_hand: Results) -> None:
    assert cards(by_hand, by_hand.cells[1])[0].measured == ""
    assert "this cell is not measured" in about_cell(by_hand, by_hand.cells[1], by_hand.recommendation)


def test_default_is_compared_with_nothing(by_hand: Results) -> None:
    assert cards(by_hand, by_hand.cells[4])[0].change is None
    assert "it is vLLM's default" in about_cell(by_hand, by_hand.cells[4], by_hand.recommendation)


def test_recommended_cell_says_so_what_holds_it_back_and_where_the_default_lies(by_hand: Results) -> None:
    text = about_cell(by_hand, by_hand.cells[3], by_hand.recommendation)
    assert text.startswith("Recommended cell 8 × 256; held back most of the time by the KV blocks")
    assert "vLLM's default 128 × 2,048, off this grid" in text


def test_numbers_of_one_seed_are_told_from_the_mean_that_the_answer_goes_by(by_hand: Results) -> None:
    best = by_hand.cells[4]._replace(seeds=[{"output_throughput": 300.0}])
    mine = by_hand.cells[3]._replace(seeds=[{"output_throughput": 340.0}])
    assert by_hand.recommendation is not None
    answer = dataclasses.replace(by_hand.recommendation, best=best.cell)
    text = about_cell(dataclasses.replace(by_hand, cells=(mine, best)), mine, answer)
    assert "has 9.4 % more" in text  # 350 against 320, not 400 against 300
    assert text.endswith("shown is the first of 2 seeds, the one that is measured; answer and SLOs go by the mean.")

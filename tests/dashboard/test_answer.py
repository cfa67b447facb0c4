from __future__ import annotations

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

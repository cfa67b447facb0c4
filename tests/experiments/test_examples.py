"""The built-in examples, against the numbers of the examples in the literature (worked out by hand)."""

from __future__ import annotations

from batchtwin.experiments.examples import examples
from batchtwin.scheduler import forward_shapes, padded_rectangle


def test_b_c_and_a_are_laid_out_as_in_the_example() -> None:
    example = examples()["one-mixed-iteration"]
    batch = example.batches()[example.start]
    shapes = forward_shapes(batch, example.config.block_size)
    assert [request.request_id for request in shapes.requests] == ["B", "C", "A"]
    assert shapes.query_start_loc.tolist() == [0, 1, 2, 7]
    assert shapes.positions.tolist() == [7, 2, 0, 1, 2, 3, 4]
    assert shapes.seq_lens.tolist() == [8, 3, 5]
    assert shapes.block_tables.tolist() == [[10, 21], [7, 0], [5, 18]]
    assert shapes.slot_mapping.tolist() == [87, 30, 20, 21, 22, 23, 72]
    assert shapes.sample_rows.tolist() == [0, 1, 6]


def test_the_iteration_after_it_takes_block_33_and_ends_b() -> None:
    example = examples()["one-mixed-iteration"]
    following = example.batches()[example.start + 1]
    assert forward_shapes(following, 4).block_tables.tolist()[0] == [10, 21, 33]
    assert [request.request_id for request in following.finishing] == ["B"]


def test_padding_wastes_4976_of_8192_slots() -> None:
    example = examples()["what-padding-costs"]
    batch = example.batches()[example.start]
    rectangle = padded_rectangle(forward_shapes(batch, example.config.block_size).query_lens.tolist())
    assert (rectangle.num_slots, batch.num_tokens, rectangle.num_wasted_tokens) == (8192, 3216, 4976)


def test_examples_end_with_every_token_produced() -> None:
    """B asks for 3 tokens, C and A for 9; each of the four paddings for 4."""
    produced = {name: sum(b.num_samples for b in example.batches()) for name, example in examples().items()}
    assert produced == {"one-mixed-iteration": 3 + 9 + 9, "what-padding-costs": 4 * 4}

"""One forward arranged for drawing, against the worked examples (numbers by hand)."""

from __future__ import annotations

import pytest
from profiles import toy_profile
from sweeps import tiny_scenario

from batchtwin.dashboard.forward_data import FREE, NULL, SHARED, Forward, forward
from batchtwin.dashboard.ladder import SYMBOLS, ladder, ladder_html
from batchtwin.experiments.examples import examples
from batchtwin.experiments.inspect import batches
from batchtwin.experiments.replay import predict
from batchtwin.scheduler import Request, Scheduler, SchedulerConfig


@pytest.fixture(scope="module")
def mixed() -> Forward:
    example = examples()["one-mixed-iteration"]
    return forward(example.batches()[example.start], example.config)


@pytest.fixture(scope="module")
def padding() -> Forward:
    example = examples()["what-padding-costs"]
    return forward(example.batches()[example.start], example.config)


def test_b_c_and_a(mixed: Forward) -> None:
    assert mixed.names == ("B", "C", "A")
    assert mixed.starts.tolist() == [7, 2, 0]
    assert (mixed.num_tokens, mixed.num_seqs, mixed.num_running, mixed.num_waiting) == (7, 3, 3, 0)
    assert mixed.events == ("A admitted",)
    assert (mixed.rectangle.num_slots, mixed.rectangle.num_wasted_tokens) == (15, 8)


def test_every_block_of_the_pool_has_its_owner(mixed: Forward) -> None:
    owned = {int(block): mixed.names[seq] for block, seq in enumerate(mixed.owner) if seq >= 0}
    assert owned == {10: "B", 21: "B", 7: "C", 5: "A", 18: "A"}
    assert mixed.owner[0] == NULL
    assert (mixed.owner == FREE).sum() == 40 - 1 - 5 == mixed.num_free_blocks
    assert mixed.written.tolist() == [5, 7, 18, 21]  # not 10: B's first block is full


def test_tables_to_take_away(mixed: Forward) -> None:
    tokens, sequences = mixed.tokens(), mixed.sequences()
    assert tokens["slot_mapping"].tolist() == [87, 30, 20, 21, 22, 23, 72]
    assert tokens["request"].tolist() == ["B", "C", *"AAAAA"]
    assert tokens["sampled"].tolist() == [True, True, False, False, False, False, True]
    assert sequences["block_table"].tolist() == ["10 21", "7", "5 18"]
    assert sequences["seq_len"].tolist() == [8, 3, 5]


def test_padding(padding: Forward) -> None:
    assert padding.num_tokens == 3216
    assert padding.rectangle.num_wasted_tokens == 4976
    assert padding.rectangle.waste_percent == pytest.approx(60.742, abs=1e-3)


def test_blocks_that_several_read_are_shared() -> None:
    """Two requests of one 8-token system prompt: its two blocks of 4 are found by the second."""
    config = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=64,
        num_gpu_blocks=20,
        block_size=4,
        enable_prefix_caching=True,
    )
    scheduler = Scheduler(config)
    for i in range(2):
        scheduler.add(Request(f"r{i}", 11, 3, prompt=[("sys", 0, 8), (f"own{i}", 0, 3)], index=i))
    data = forward(scheduler.schedule(), config)
    assert (data.owner == SHARED).sum() == 2
    assert data.shapes.block_tables[0, :2].tolist() == data.shapes.block_tables[1, :2].tolist()


def test_a_preempting_iteration_says_who_left() -> None:
    run = predict(
        tiny_scenario(num_gpu_blocks=18, max_num_seqs=8, trace={"rate_scale": 4000.0, "output_scale": 0.3}),
        toy_profile(),
    )
    at = int((run.records.iterations["num_preempted"] > 0).argmax())
    data = forward(batches(run, at, at + 1)[0], run.scenario.config(run.num_gpu_blocks))
    assert any("preempted" in event for event in data.events)


def test_ladder_of_the_example_by_name(mixed: Forward) -> None:
    rungs = {rung.step: rung for rung in ladder(mixed).rungs}
    assert rungs["input_tokens"][1:4] == ("[7]", "[3, 5]", "[3, 1]")
    assert rungs["Q"].flat == "[7, n_q_heads, head_dim]"
    assert rungs["K, V"].flat == "[7, n_kv_heads, head_dim]"
    assert rungs["output, MLP"].flat == "[7, d_model]"
    assert rungs["logits"].flat == "[3, vocab]"  # of seven rows three are sampled
    assert rungs["attention scores"].static_decode == "[3, n_q_heads, 1, 7 + 1]"  # past + 1 of the longest, B


def test_only_attention_and_the_choice_of_rows_need_boundaries(mixed: Forward) -> None:
    assert [rung.step for rung in ladder(mixed).rungs if rung.needs_boundaries] == ["attention scores", "logits"]


def test_ladder_of_a_model_has_its_numbers(mixed: Forward) -> None:
    rungs = {rung.step: rung for rung in ladder(mixed, toy_profile().model).rungs}
    assert rungs["Q"].flat == "[7, 8, 32]"
    assert rungs["K, V"].static_prefill == "[3, 4, 5, 32]"
    assert rungs["logits"].flat == "[3, 4,096]"
    text = ladder_html(ladder(mixed, toy_profile().model))
    assert "<code>[7, 8, 32]</code>" in text
    assert text.count("class='needs'") == 2
    assert not any(symbol in text for symbol in SYMBOLS)
    assert "slot_mapping</code> lives for this forward" in text

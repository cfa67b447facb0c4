"""The grid: its cells, vLLM's default, and which are worth measuring."""

from __future__ import annotations

import pytest
from sweeps import spec, tiny_scenario

from batchtwin.experiments.grid import Cell, cells, cells_to_measure, default_cell, policy_label
from batchtwin.experiments.scenario import Scenario

SEQS, TOKENS = (4, 8, 16, 32), (64, 128, 256, 512)
GRID = cells(["vllm_v1"], SEQS, TOKENS)
DEFAULT = Cell("vllm_v1", 128, 2048)


def cell(seqs: int, tokens: int, policy: str = "vllm_v1") -> Cell:
    return Cell(policy, seqs, tokens)


def test_a_grid_is_every_pair_of_each_policy_once_and_in_order() -> None:
    assert cells(["a", "b"], [8, 4, 8], [64]) == [
        Cell("a", 4, 64),
        Cell("a", 8, 64),
        Cell("b", 4, 64),
        Cell("b", 8, 64),
    ]


@pytest.mark.parametrize(
    ("device", "entry", "seqs", "tokens"),
    [
        ("cpu", "server", 128, 2048),
        ("cpu", "llm_class", 256, 4096),
        ("cuda", "server", 256, 2048),
        ("cuda", "llm_class", 256, 8192),
    ],
)
def test_vllms_defaults_by_device_and_entry_point(device: str, entry: str, seqs: int, tokens: int) -> None:
    assert default_cell(Scenario(device=device, default_cell=entry)) == cell(seqs, tokens)


def test_a_sweep_holds_vllms_default_for_each_policy_off_the_grid_too() -> None:
    asked = spec(tiny_scenario(), (4, 8), (64,), policies=("vllm_v1", "static_batch"))
    assert len(asked.grid) == 4
    assert asked.cells == [*asked.grid, cell(128, 2048), cell(128, 2048, "static_batch")]


def test_a_default_on_the_grid_is_there_once() -> None:
    asked = spec(tiny_scenario(), (64, 128), (2048,))
    assert asked.cells == [cell(64, 2048), cell(128, 2048)]


def test_corners_default_and_predicted_best_are_measured_whatever_the_number() -> None:
    chosen = cells_to_measure([*GRID, DEFAULT], GRID, [cell(8, 128)], DEFAULT, 1)
    corners = [cell(4, 64), cell(4, 512), cell(32, 64), cell(32, 512)]
    assert chosen == sorted([*corners, DEFAULT, cell(8, 128)])


def test_further_cells_lie_far_from_those_chosen_and_ties_go_to_the_smaller_knobs() -> None:
    """On a grid of 3 × 3 octaves with the corners chosen, the middles of the edges and the centre are left: the centre
    is two octaves from every corner, an edge's middle one. Then all edges are alike."""
    grid = cells(["vllm_v1"], (4, 8, 16), (64, 128, 256))
    corners = [cell(4, 64), cell(4, 256), cell(16, 64), cell(16, 256)]
    assert set(cells_to_measure(grid, grid, [cell(4, 64)], DEFAULT, 5)) == {*corners, cell(8, 128)}
    assert set(cells_to_measure(grid, grid, [cell(4, 64)], DEFAULT, 6)) == {*corners, cell(8, 128), cell(4, 128)}


def test_each_policy_has_its_own_corners_default_and_best() -> None:
    policies = ("vllm_v1", "static_batch")
    grid = cells(policies, (4, 8), (64, 128))
    chosen = cells_to_measure(grid, grid, [cell(4, 64, policy) for policy in policies], DEFAULT, 1)
    assert chosen == sorted(grid)


def test_cells_that_cannot_work_are_not_measured() -> None:
    """Small budgets cannot hold many sequences: the corners are those of what is left."""
    feasible = [c for c in GRID if c.max_num_batched_tokens >= 8 * c.max_num_seqs]
    chosen = cells_to_measure(feasible, GRID, [cell(4, 64)], DEFAULT, 1)
    assert set(chosen) == {cell(4, 64), cell(4, 512), cell(32, 256), cell(32, 512)}
    assert cells_to_measure([DEFAULT], GRID, [DEFAULT], DEFAULT, 5) == [DEFAULT]


def test_the_choice_is_the_same_again_and_never_more_than_there_is() -> None:
    arguments = ([*GRID, DEFAULT], GRID, [cell(8, 128)], DEFAULT)
    assert cells_to_measure(*arguments, 9) == cells_to_measure(*arguments, 9)
    assert len(cells_to_measure(*arguments, 9)) == 9
    assert cells_to_measure(*arguments, 1000) == sorted([*GRID, DEFAULT])


def test_a_cell_is_a_scenarios_knobs_and_a_folders_name() -> None:
    scenario = cell(8, 64, "prefill_first").of(tiny_scenario())
    assert (scenario.policy, scenario.max_num_seqs, scenario.max_num_batched_tokens) == ("prefill_first", 8, 64)
    assert cell(8, 64, "my.module:Mine").key == "my.module-Mine-seqs8-tokens64"


def test_an_oracle_is_called_one_wherever_its_name_is_shown() -> None:
    assert policy_label("srtf") == "srtf (oracle)"
    assert policy_label("sjf:predicted=true") == "sjf:predicted=true"
    assert policy_label("vllm_v1") == "vllm_v1"

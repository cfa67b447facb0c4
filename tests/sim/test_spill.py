"""Records that are handed on while they are made are those that are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import toy_profile
from sweeps import tiny_scenario

from batchtwin.experiments.scenario import Scenario
from batchtwin.experiments.world import run_scenario
from batchtwin.sim import iteration_rows, records, spill
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.sim.iteration_rows import FEW_HAVE, PACKED, RECORDED, IterationRows, pack
from batchtwin.sim.records import Records

PROFILE = toy_profile()


class Shelf:
    """A sink that keeps what it gets, and how large the pieces were."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[Any]] = {"iterations": [], "requests": [], "gaps": []}

    def iterations(self, columns: Any) -> None:
        self.pieces["iterations"].append(columns)

    def requests(self, columns: Any) -> None:
        self.pieces["requests"].append(columns)

    def gaps(self, gaps: Any) -> None:
        self.pieces["gaps"].append(gaps)

    def records(self) -> Records:
        def joined(table: str) -> dict[str, Any]:
            pieces = self.pieces[table]
            return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

        return Records(
            joined("requests"), joined("iterations"), np.concatenate([np.empty((0, 2), int), *self.pieces["gaps"]])
        )


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven rows a block, so that a short replay hands on many times."""
    for module in (iteration_rows, records, spill):
        monkeypatch.setattr(module, "CHUNK_ROWS", 7)


def both(scenario: Scenario, **options: Any) -> tuple[Records, Records, Shelf]:
    blocks = scenario.num_gpu_blocks or 200
    kept = run_scenario(scenario, blocks, CostModelBackend(PROFILE.cost_model, PROFILE.host), **options)
    shelf = Shelf()
    handed_on = run_scenario(
        scenario, blocks, CostModelBackend(PROFILE.cost_model, PROFILE.host), sink=shelf, **options
    )
    return kept, handed_on, shelf


SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {},
    "preempting": {"num_gpu_blocks": 14, "trace": {"offline": True}},
    "swapping": {"num_gpu_blocks": 14, "trace": {"offline": True}, "preemption_mode": "swap", "num_cpu_blocks": 64},
    "asynchronous": {"async_scheduling": True},
    "asynchronous and preempting": {"async_scheduling": True, "num_gpu_blocks": 14, "trace": {"offline": True}},
    "small budget": {"max_num_batched_tokens": 8},
    "static": {"policy": "static_batch", "max_num_batched_tokens": 1024},
    "shortest first": {"policy": "sjf", "trace": {"offline": True}},
    "closed loop": {"num_clients": 2, "think_s": 0.01},
}


@pytest.mark.parametrize("leap", [True, False])
@pytest.mark.parametrize("fields", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_rule_7_what_is_handed_on_is_what_is_kept_bit_for_bit(fields: dict[str, Any], leap: bool) -> None:
    trace = {"source": "azure-conv-like:60", **fields.get("trace", {})}
    kept, handed_on, shelf = both(tiny_scenario(**{**fields, "trace": trace}), leap=leap)
    for table in ("requests", "iterations"):
        ours, theirs = getattr(handed_on, table), getattr(kept, table)
        assert list(ours) == list(theirs)
        for name in theirs:
            assert ours[name].dtype == theirs[name].dtype
            assert ours[name].tobytes() == theirs[name].tobytes(), name
    assert handed_on.gaps.tolist() == kept.gaps.tolist()
    assert len(shelf.pieces["iterations"]) > 3
    if fields.get("policy") != "sjf":
        assert len(shelf.pieces["requests"]) > 3, "requests leave while others still run"


def test_a_request_that_waits_for_long_holds_back_those_behind_it_and_none_is_lost() -> None:
    """Shortest first, all at once: the long first request ends last, so the rows come all together at the end."""
    scenario = tiny_scenario(policy="sjf", max_num_seqs=1, trace={"source": "azure-conv-like:40", "offline": True})
    kept, handed_on, _ = both(scenario)
    assert handed_on.requests["last_token_at"].tolist() == kept.requests["last_token_at"].tolist()
    assert (handed_on.requests["last_token_at"] >= 0).all()


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.integers(1, 5),
            st.integers(0, 99),
            st.lists(st.integers(1, 6), max_size=4).map(lambda joined: tuple(sorted(joined))),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_stretch_is_written_out_as_the_steps_it_stands_for(
    pieces: list[tuple[bool, int, int, tuple[int, ...]]],
) -> None:
    """The rows one by one, by a loop that does what ``stretch`` promises."""
    rows, expected, at = IterationRows(), [], 0
    columns = {name: i for i, name in enumerate(RECORDED)}
    for is_stretch, count, value, joined in pieces:
        row = [float(value + i) for i in range(len(RECORDED))]
        row[columns["num_tokens"]] = row[columns["num_decodes"]] + row[columns["num_prefill_tokens"]]
        row[columns["num_seqs"]] = row[columns["num_decodes"]] + row[columns["num_prefills"]]
        for name in FEW_HAVE if is_stretch else ():
            row[columns[name]] = 0.0
        if not is_stretch:
            rows.few(tuple(row[columns[name]] for name in FEW_HAVE))
            rows.steps += pack(*(row[columns[name]] for name in PACKED))
            expected.append(row)
            at += 1
            continue
        ends = [value + 0.1 * (step + 1) for step in range(count)]
        devices, free = (
            [0.1 + value / (step + 1) for step in range(count)],
            [1000 - value - step for step in range(count)],
        )
        first = list(row)
        first[columns["end_s"]], first[columns["device_s"]], first[columns["num_free_blocks"]] = (
            ends[0],
            devices[0],
            free[0],
        )
        rows.stretch(pack(*(first[columns[name]] for name in PACKED)), ends, devices, free, joined)
        for step in range(count):
            more = list(first)
            more[columns["start_s"]] = first[columns["start_s"]] if step == 0 else ends[step - 1]
            more[columns["end_s"]], more[columns["device_s"]] = ends[step], devices[step]
            more[columns["num_free_blocks"]] = free[step]
            more[columns["num_decode_kv_tokens"]] += step * first[columns["num_decodes"]]
            more[columns["previous_tick"]] += step
            more[columns["num_waiting"]] += sum(first_seen_by <= step for first_seen_by in joined)
            expected.append(more)
    taken = rows.take()
    assert list(taken) == list(RECORDED)
    assert np.stack([column.astype(np.float64) for column in taken.values()], axis=1).tolist() == expected
    assert {column.shape for column in rows.take().values()} == {(0,)}

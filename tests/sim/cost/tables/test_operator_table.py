"""An iteration composed from operator times: by hand, in the same bits whichever way it is asked, from real tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import attention_us, write_layers

from batchtwin.scheduler.config import SchedulerConfig
from batchtwin.sim.cost.contexts import Contexts
from batchtwin.sim.cost.features import Features, stack
from batchtwin.sim.cost.profile import ProfileError, load_profile
from batchtwin.sim.cost.tables.composed import TableProfile
from batchtwin.sim.cost.tables.csv_table import TableError, read_csv
from batchtwin.sim.cost.tables.mixed_attention import attention_rows, choose_scales
from batchtwin.sim.cost.tables.open import open_tables
from batchtwin.sim.cost.tables.operator_table import attention_load
from batchtwin.sim.cost.tables.pieces import Wanted
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.sim.world import simulate
from batchtwin.traces.trace import Trace


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> TableProfile:
    return open_tables(write_layers(tmp_path_factory.mktemp("toy"), skew=True))


def features(n: int = 0, kv: float = 0, chunk: int = 0, start: int = 0) -> Features:
    rows = n + (1 if chunk else 0)
    pairs = chunk * (start + chunk / 2)
    return Features(n + chunk, n, n * kv, 1 if chunk else 0, chunk, pairs, rows, 0, rows)


def test_a_step_is_its_layers_its_attention_and_its_head(toy: TableProfile) -> None:
    """Padded to 8: 2 layers of qkv and twice a norm, the embedding once; all 100 + 8 µs. Attention twice."""
    dense = (2 * 3 + 1) * 108
    attention = 2 * attention_us(0, 0, 5, 100)
    assert toy.cost_model.duration_s(features(5, 100)) == pytest.approx(1e-6 * (dense + attention + 55))
    eager = open_tables(toy.source, Wanted(enforce_eager=True)).cost_model
    assert eager.duration_s(features(5, 100)) == pytest.approx(1e-6 * (7 * 105 + attention + 55))


def test_mixed_attention_is_the_tables_not_a_sum_of_parts(toy: TableProfile) -> None:
    mixed, alone = toy.cost_model.duration_s(features(4, 64, 32, 16)), toy.cost_model.duration_s(features(4, 64))
    dense = 7 * (40 - 8)  # 36 tokens pad to 40, 4 decodes to 4
    head = 1
    attention = 2 * (attention_us(32, 16, 4, 64) - attention_us(0, 0, 4, 64))
    expected = 1e-6 * (7 * (40 - 4) + head + attention)
    assert dense == 7 * 32
    assert mixed - alone == pytest.approx(expected)


def test_unequal_contexts_take_a_quarter_of_the_way_to_the_longest(toy: TableProfile) -> None:
    """As the toy's skew table says: four decodes of 64, 64, 64 and 256 tokens."""
    contexts = np.array([64, 64, 64, 256])
    equal = features(4, float(contexts.mean()))
    unequal = Contexts(int((contexts**2).sum()), 256)
    gap = attention_us(0, 0, 4, 256) - attention_us(0, 0, 4, 112)
    model = toy.cost_model
    assert model.duration_s(equal, unequal) - model.duration_s(equal) == pytest.approx(2e-6 * 0.25 * gap, rel=1e-6)


def test_several_chunks_count_with_their_pairs() -> None:
    """Two fresh prompts of 300 tokens have the pairs of one of 300 · √2."""
    two = Features(600, 0, 0, 2, 600, 2 * 300 * 150.0, 2, 0, 2)
    load = attention_load(two)
    assert (load.chunk, load.chunk_start) == (pytest.approx(300 * 2**0.5), 0.0)
    assert attention_load(features(chunk=300, start=77)).chunk_start == pytest.approx(77)


rows = st.builds(features, st.integers(0, 40), st.floats(1, 3000), st.integers(0, 500), st.integers(0, 2000))


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=8))
def test_one_by_one_and_all_at_once_are_the_same_bits(toy: TableProfile, batch: list[Features]) -> None:
    model = toy.cost_model
    assert model.durations_s(stack(batch)).tolist() == [model.duration_s(row) for row in batch]


def test_a_steady_stretch_is_the_same_bits_as_its_steps(toy: TableProfile) -> None:
    contexts = np.array([100, 300, 900])
    model = toy.cost_model

    def at(step: int) -> tuple[Features, Contexts]:
        now = contexts + step
        return features(3)._replace(num_decode_kv_tokens=int(now.sum())), Contexts(int((now**2).sum()), int(now.max()))

    assert model.steady_s(at(0)[0], 50, at(0)[1]) == [model.duration_s(*at(step)) for step in range(50)]
    assert model.steady_s(at(0)[0], 50) == [model.duration_s(at(step)[0]) for step in range(50)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_leaping_and_stepping_leave_the_same_records(toy: TableProfile, asynchronous: bool) -> None:
    rng = np.random.default_rng(5)
    arrivals = np.sort(rng.uniform(0, 0.2, 40))
    trace = Trace("t", arrivals - arrivals[0], rng.integers(1, 300, 40), rng.integers(1, 60, 40))
    config = SchedulerConfig(
        max_num_seqs=12, max_num_batched_tokens=128, num_gpu_blocks=400, async_scheduling=asynchronous
    )
    leapt, stepped = (
        simulate(trace, config, "vllm_v1", [CostModelBackend(toy.cost_model)], leap=leap) for leap in (True, False)
    )
    for name, values in leapt.iterations.items():
        assert values.tolist() == stepped.iterations[name].tolist(), name


def test_the_spread_that_the_simulator_hands_over_is_that_of_the_contexts(toy: TableProfile) -> None:
    seen: list[tuple[Features, Contexts]] = []

    class Watched:
        needs_spread, name = True, "watched"

        def duration_s(self, f: Features, contexts: Contexts) -> float:
            seen.append((f, contexts))
            return 1e-3

    trace = Trace("t", [0.0, 0.0, 0.0], [10, 20, 40], [5, 9, 3])
    simulate(trace, SchedulerConfig(num_gpu_blocks=50), "vllm_v1", [CostModelBackend(Watched())], leap=False)
    decodes = [(f.num_decodes, *contexts) for f, contexts in seen if f.num_decodes]
    assert decodes[:3] == [(3, 10**2 + 20**2 + 40**2, 40), (3, 11**2 + 21**2 + 41**2, 41), (2, 12**2 + 22**2, 22)]
    assert decodes[-1] == (1, 27**2, 27)


def test_what_lies_beyond_the_tables_is_marked(toy: TableProfile) -> None:
    batch = stack([features(5, 100), features(5, 5000), features(chunk=200), features(chunk=300), features(30, 10)])
    assert toy.cost_model.extrapolates(batch).tolist() == [False, True, False, True, True]


def test_a_folder_of_tables_is_a_profile(toy: TableProfile, tmp_path: Path) -> None:
    loaded = load_profile(toy.source)
    assert loaded.hash() == toy.hash()
    assert loaded.cost_model_for(4, 64).duration_s(features(3, 50)) == toy.cost_model_for(4, 64).duration_s(
        features(3, 50)
    )
    loaded.check(model=toy.model.name, dtype="bfloat16", device="cuda", threads=None, block_size=16)
    with pytest.raises(ProfileError, match="dtype"):
        loaded.check(model=toy.model.name, dtype="float32", device="cuda", threads=None, block_size=16)


def test_a_saved_profile_finds_its_tables_and_refuses_changed_ones(tmp_path: Path) -> None:
    folder = write_layers(tmp_path / "tables")
    open_tables(folder, Wanted(model=str(folder))).save(tmp_path / "profile.json")
    assert load_profile(tmp_path / "profile.json").hash()
    with (folder / "tp1" / "dense.csv").open("a") as file:
        file.write("qkv_proj,512,900\n")
    with pytest.raises(TableError, match="not those"):
        load_profile(tmp_path / "profile.json")


def test_an_intervals_ends_are_the_tables_a_tenth_faster_and_slower(toy: TableProfile) -> None:
    fast, slow = (model.duration_s(features(5, 100)) for model in toy.fast_and_slow)
    once = toy.cost_model.duration_s(features(5, 100))
    assert (once / fast, slow / once) == (pytest.approx(1.1), pytest.approx(1.1))


def test_nulls_are_of_the_tables_own_step(toy: TableProfile) -> None:
    step = Features(64, 64, 64 * 1024, 0, 0, 0.0, 64, 0, 64)
    measured = toy.cost_model.duration_s(step)
    assert toy.null("constant").duration_s(step) == measured
    assert toy.null("roofline_affine").duration_s(step) == pytest.approx(measured)


@pytest.mark.parametrize(
    ("degree", "wanted", "said"),
    [(2, Wanted(tensor_parallel=1), "no times for tensor_parallel_size 1: it holds tp2"), (2, Wanted(), "")],
)
def test_degrees_come_from_the_folders_names(tmp_path: Path, degree: int, wanted: Wanted, said: str) -> None:
    folder = write_layers(tmp_path, degree=degree)
    if said:
        with pytest.raises(TableError, match=said):
            open_tables(folder, wanted)
    else:
        profile = open_tables(folder, wanted)
        assert profile.tensor_parallel == degree
        assert any("no all-reduce times" in note for note in profile.notes)


def test_all_reduces_lengthen_every_step(tmp_path: Path) -> None:
    """Two a layer and one for the embedding, at 64 elements a token: 5 of 7 µs at 8 tokens."""
    folder = write_layers(tmp_path, degree=2)
    without = open_tables(folder).cost_model.duration_s(features(5, 100))
    (folder / "tp2" / "all_reduce.csv").write_text("num_gpus,tokens,time_us\n2,1,7\n2,256,7\n4,1,99\n")
    profile = open_tables(folder)
    assert profile.cost_model.duration_s(features(5, 100)) - without == pytest.approx(5 * 7e-6)
    assert not any("all-reduce" in note for note in profile.notes)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    folder = write_layers(tmp_path, meta=False)
    assert any("no meta.yaml" in note for note in open_tables(folder).notes)
    assert any("no skew.csv" in note for note in open_tables(folder).notes)
    (folder / "tp1" / "attention.csv").unlink()
    with pytest.raises(TableError, match=r"lacks .*attention\.csv"):
        open_tables(folder)


def test_axes_are_chosen_on_held_out_rows(shared_path: Callable[[str], Path]) -> None:
    """fidelity.md of the shared notes, on all of them: linear −0.1 % bias, 1.4 % median; logarithmic +4.1 %."""
    path = shared_path("data/llmservingsim_rtxpro6000_llama31_8b/profile/tp1/attention.csv")
    scales, errors = choose_scales(attention_rows(read_csv(path)))
    assert scales == ("linear",) * 4
    linear, log = errors["linear/linear/linear/linear"], errors["log/log/log/log"]
    assert linear.bias_percent == pytest.approx(-0.1, abs=0.4)
    assert linear.median_percent == pytest.approx(1.4, abs=0.3)
    assert log.bias_percent == pytest.approx(4.1, abs=0.7)


def test_a_chunk_beside_decodes_takes_what_was_measured(shared_path: Callable[[str], Path]) -> None:
    """fidelity.md: 1,024 tokens beside 128 decodes at 1,024 take 825 µs; apart 61 and 405."""
    profile = open_tables(shared_path("data/llmservingsim_rtxpro6000_llama31_8b/profile"))
    attention = profile.operators.attention
    us = [
        1e6 / 32 * attention.seconds(attention_load(f))
        for f in (features(128, 1024, 1024), features(chunk=1024), features(128, 1024))
    ]
    assert us == pytest.approx([825, 61, 405], rel=0.01)

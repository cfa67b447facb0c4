"""Cost models: arithmetic by hand, and one batch at a time or all at once give the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchtwin.sim.cost.features import Features, stack
from batchtwin.sim.cost.models import Constant, Fitted, HostTerm, Roofline

PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)
COEFFICIENT = st.floats(0, 1e-2) | st.just(0.0)
COUNT = st.integers(0, 5000)


@st.composite
def laws(draw: st.DrawFn) -> Fitted:
    knots = tuple(sorted(draw(st.sets(st.integers(0, 3000), min_size=1, max_size=5))))
    slopes = tuple(draw(COEFFICIENT) for _ in knots)
    names = ("decode", "decode_kv_token", "prefill", "prefill_token", "attention_pair", "sample", "swapped_block")
    sizes = draw(st.sampled_from([(), (1, 2, 4, 8), (3, 600)]))
    rest = {"capture_sizes": sizes, "eager_s": draw(COEFFICIENT) if sizes else 0.0}
    return Fitted(draw(COEFFICIENT), knots, slopes, **{f"per_{name}_s": draw(COEFFICIENT) for name in names}, **rest)


@st.composite
def features(draw: st.DrawFn) -> Features:
    return Features(
        num_tokens=draw(st.just(0) | COUNT),
        num_decodes=draw(COUNT),
        num_decode_kv_tokens=draw(st.integers(0, 10**7)),
        num_prefills=draw(st.just(0) | COUNT),
        num_prefill_tokens=draw(COUNT),
        prefill_attention_work=draw(st.integers(0, 10**9)) / 2,
        num_samples=draw(COUNT),
        num_blocks_swapped=draw(st.just(0) | COUNT),
        num_seqs=draw(COUNT),
    )


ROOFLINE = Roofline(
    weight_bytes=20e6,
    kv_bytes_per_token=4096.0,
    flops_per_token=8e6,
    flops_per_sample=2e6,
    flops_per_attention_pair=4096.0,
    memory_bytes_per_s=1e10,
    flops_per_s=5e10,
)


@given(laws(), st.lists(features(), min_size=1, max_size=8))
@example(Fitted(per_attention_pair_s=0.5), [Features(1, 1, 0, 0, 0, 8.0, 1, 0, 1)])
@PROPERTY
def test_a_fitted_law_gives_the_same_bits_one_by_one_and_all_at_once(law: Fitted, rows: list[Features]) -> None:
    one_by_one = [law.duration_s(row) for row in rows]
    assert law.durations_s(stack(rows)).tolist() == one_by_one
    afresh = Fitted(**{name: getattr(law, name) for name in Fitted.__dataclass_fields__ if name[0] != "_"})
    assert afresh.durations_s(stack(rows[::-1])).tolist() == one_by_one[::-1], "whatever was asked before"


@given(st.lists(features(), min_size=1, max_size=8), COEFFICIENT, COEFFICIENT)
@PROPERTY
def test_the_other_models_give_the_same_bits_too(rows: list[Features], fixed_s: float, per_seq_s: float) -> None:
    columns = stack(rows)
    for model in (ROOFLINE, Constant(fixed_s)):
        assert model.durations_s(columns).tolist() == [model.duration_s(row) for row in rows]
    host = HostTerm(fixed_s, per_seq_s)
    assert host.hosts_s(columns).tolist() == [host.host_s(row) for row in rows]


@given(laws(), features())
@PROPERTY
def test_no_step_takes_less_than_no_time(law: Fitted, row: Features) -> None:
    assert law.duration_s(row) >= 0
    assert ROOFLINE.duration_s(row) >= 0


@given(laws(), features(), st.sampled_from(Features._fields))
@PROPERTY
def test_more_work_never_takes_less_time(law: Fitted, row: Features, name: str) -> None:
    """But for the first prompt beside decodes, with which a step is no longer padded to a captured size."""
    leaves_graph = name == "num_prefills" and not row.num_prefills and law.capture_sizes
    if row.num_tokens and not leaves_graph:
        more = row._replace(**{name: getattr(row, name) + 7})
        assert law.duration_s(more) >= law.duration_s(row) * (1 - 1e-12)


def test_a_prompt_beside_decodes_is_launched_eagerly_and_not_padded() -> None:
    law = Fitted(token_slopes_s=(1.0,), capture_sizes=(3, 600), eager_s=20.0)
    assert law.duration_s(Features(5, 5, 0, 0, 0, 0.0, 5, 0, 5)) == 600.0
    assert law.duration_s(Features(5, 4, 0, 1, 1, 0.0, 5, 0, 5)) == 25.0


def test_a_fitted_law_adds_up_as_its_docstring_says() -> None:
    """T = 100 over knots at 1, 10 and 50: 9 · 1 ms + 40 · 2 ms + 50 · 3 ms = 239 ms, on top of 10 ms."""
    law = Fitted(
        fixed_s=0.010,
        token_knots=(1, 10, 50),
        token_slopes_s=(0.001, 0.002, 0.003),
        per_decode_s=0.1,
        per_decode_kv_token_s=0.01,
        per_prefill_s=1.0,
        per_prefill_token_s=0.001,
        per_attention_pair_s=0.0001,
        per_sample_s=0.2,
        per_swapped_block_s=0.5,
    )
    row = Features(100, 4, 30, 2, 96, 1000.0, 5, 3, 6)
    expected = 0.010 + 0.239 + 0.4 + 0.3 + 2.0 + 0.096 + 0.1 + 1.0 + 1.5
    assert law.duration_s(row) == pytest.approx(expected)
    assert law.duration_s(Features(1, 1, 0, 0, 0, 0.0, 0, 0, 1)) == pytest.approx(0.010 + 0.1)


def test_a_step_with_nothing_to_compute_costs_its_swaps_only() -> None:
    law = Fitted(fixed_s=0.010, per_swapped_block_s=0.5)
    assert law.duration_s(Features(0, 0, 0, 0, 0, 0.0, 0, 3, 0)) == 1.5
    assert law.duration_s(Features(0, 0, 0, 0, 0, 0.0, 0, 0, 0)) == 0
    assert ROOFLINE.duration_s(Features(0, 0, 0, 0, 0, 0.0, 0, 0, 0)) == 0


def test_a_roofline_is_the_larger_of_memory_and_compute_time() -> None:
    """Decode of 10 at 1,000 tokens of context each: 20 MB + 40.96 MB at 10 GB/s are 6.096 ms; 80 + 20 + 40.96 MFLOP at
    50 GFLOP/s are 2.8192 ms. Prefill of 512: 20 MB are 2 ms; 4,096 + 2 + 536.870912 MFLOP are 92.69741824 ms.
    """
    decode = Features(10, 10, 10_000, 0, 0, 0.0, 10, 0, 10)
    prefill = Features(512, 0, 0, 1, 512, 512 * 256.0, 1, 0, 1)
    assert ROOFLINE.duration_s(decode) == pytest.approx(6.096e-3)
    assert ROOFLINE.duration_s(prefill) == pytest.approx(92.69741824e-3)


def test_the_launch_floor_and_alpha_of_a_roofline_are_beta_and_alpha() -> None:
    affine = Roofline(
        **{
            **{name: getattr(ROOFLINE, name) for name in Roofline.__dataclass_fields__},
            "launch_s": 1e-3,
            "alpha": 2.0,
        }
    )
    assert affine.duration_s(Features(10, 10, 10_000, 0, 0, 0.0, 10, 0, 10)) == pytest.approx(1e-3 + 2 * 6.096e-3)


def test_a_host_term_is_a_line_in_the_sequences_served() -> None:
    host = HostTerm(0.5, 0.25)
    assert host.host_s(Features(0, 0, 0, 0, 0, 0.0, 0, 0, 8)) == 2.5
    assert np.array_equal(host.hosts_s(stack([Features(0, 0, 0, 0, 0, 0.0, 0, 0, n) for n in (0, 2)])), [0.5, 1.0])


def test_a_constant_is_constant_but_for_steps_with_nothing_to_compute() -> None:
    columns = stack(
        [
            Features(0, 0, 0, 0, 0, 0.0, 0, 0, 0),
            Features(1, 1, 0, 0, 0, 0.0, 0, 0, 0),
            Features(9, 9, 9, 9, 9, 9.0, 9, 9, 9),
        ]
    )
    assert Constant(0.008).durations_s(columns).tolist() == [0.0, 0.008, 0.008]

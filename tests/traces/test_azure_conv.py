"""The stand-in for the Azure 2023 conversation trace, held against published figures and the file itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from batchtwin.traces import Trace, azure_conv_like, describe, read_trace

SEEDS = [0, 1, 2]


@pytest.fixture(scope="module")
def real(shared_path: Callable[[str], Path]) -> Trace:
    return read_trace(shared_path("data/azure_llm_2023/AzureLLMInferenceTrace_conv.csv"))


@pytest.mark.parametrize("seed", SEEDS)
def test_it_has_the_published_number_span_and_means(seed: int) -> None:
    trace = azure_conv_like(seed=seed)
    assert len(trace) == 19_366
    assert trace.span_s == pytest.approx(3501.7, abs=0.05)
    assert trace.num_prompt_tokens.mean() == pytest.approx(1154.7, rel=0.02)
    assert trace.output_len.mean() == pytest.approx(211.1, rel=0.02)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("column", ["num_prompt_tokens", "output_len"])
def test_its_length_quantiles_are_those_of_the_file(real: Trace, column: str, seed: int) -> None:
    levels = [10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 95, 98, 99]
    ours = np.percentile(getattr(azure_conv_like(seed=seed), column), levels)
    assert ours == pytest.approx(np.percentile(getattr(real, column), levels), rel=0.10)


@pytest.mark.parametrize("seed", SEEDS)
def test_prompts_and_outputs_go_together_as_in_the_file(real: Trace, seed: int) -> None:
    trace = azure_conv_like(seed=seed)

    def dependence(one: Trace) -> list[float]:
        prompt, output = one.num_prompt_tokens, one.output_len
        together = (prompt * output).mean() / (prompt.mean() * output.mean())
        return [stats.spearmanr(prompt, output).statistic, np.corrcoef(prompt, output)[0, 1], together]

    assert dependence(trace) == pytest.approx(dependence(real), abs=0.04)


@pytest.mark.parametrize("seed", SEEDS)
def test_its_arrivals_are_as_bursty_and_drift_as_in_the_file(real: Trace, seed: int) -> None:
    ours, theirs = describe(azure_conv_like(seed=seed)), describe(real)
    assert ours.interarrival_cv == pytest.approx(theirs.interarrival_cv, abs=0.05)
    assert ours.peak_minute_share == pytest.approx(theirs.peak_minute_share, rel=0.12)
    tenths = [np.histogram(one.arrival_s, bins=10)[0] for one in (azure_conv_like(seed=seed), real)]
    assert tenths[0] == pytest.approx(tenths[1], rel=0.12)


def test_no_row_of_the_file_is_repeated_in_its_place(real: Trace) -> None:
    trace = azure_conv_like()
    same = (trace.num_prompt_tokens == real.num_prompt_tokens) & (trace.output_len == real.output_len)
    assert same.mean() < 0.01


@pytest.mark.parametrize("n", [1, 2, 7, 2000, 50_000])
def test_another_count_keeps_the_rate(n: int) -> None:
    trace = azure_conv_like(n, seed=4)
    assert len(trace) == n
    assert trace.span_s == pytest.approx((n - 1) * 3501.7 / 19_365, rel=1e-4)


def test_seeds_differ_in_arrivals_and_order_but_not_in_marginals() -> None:
    one, other = azure_conv_like(seed=1), azure_conv_like(seed=2)
    assert not np.array_equal(one.arrival_s, other.arrival_s)
    assert not np.array_equal(one.num_prompt_tokens, other.num_prompt_tokens)
    assert np.array_equal(np.sort(one.num_prompt_tokens), np.sort(other.num_prompt_tokens))
    assert np.array_equal(np.sort(one.output_len), np.sort(other.output_len))


def test_lengths_in_a_row_are_not_sorted_by_their_making() -> None:
    lengths = azure_conv_like(seed=3).num_prompt_tokens.astype(np.float64)
    assert abs(np.corrcoef(lengths[:-1], lengths[1:])[0, 1]) < 0.03


def test_the_source_names_data_set_licence_and_address() -> None:
    source = azure_conv_like(10).source
    for part in ("generated", "CC BY 4.0", "Patel", "https://github.com/Azure/AzurePublicDataset"):
        assert part in source

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from batchtwin.executor.engine import Engine
from batchtwin.executor.errors import ExecutorError
from batchtwin.executor.models import load_model
from batchtwin.executor.sampling import SamplingParams, _gumbel, sample
from batchtwin.scheduler.request import Request

from .test_rule_11_greedy_tokens import BATCHINGS, BLOCK_SIZE, ragged_requests, serve

LOGITS = torch.tensor([1.0, 3.0, 0.5, 2.0, 2.5, -1.0])


def _draws(params: SamplingParams, count: int = 4000) -> np.ndarray:
    """Frequencies over as many positions."""
    tokens = sample(LOGITS.repeat(count, 1), [params] * count, range(count))
    return np.bincount(tokens.numpy(), minlength=LOGITS.numel())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_a_temperature(temperature: float) -> None:
    weights = np.exp(LOGITS.numpy().astype(np.float64) / temperature)
    counts = _draws(SamplingParams(temperature=temperature, seed=3))
    assert chisquare(counts, weights / weights.sum() * counts.sum()).pvalue > 1e-3


def test_top_k_keeps_the_k_most_probable() -> None:
    counts = _draws(SamplingParams(temperature=5.0, top_k=3))
    assert np.flatnonzero(counts).tolist() == [1, 3, 4]
    weights = np.exp(LOGITS.numpy()[[1, 3, 4]].astype(np.float64) / 5)
    assert chisquare(counts[[1, 3, 4]], weights / weights.sum() * counts.sum()).pvalue > 1e-3


def test_top_p_keeps_the_smallest_set_that_reaches_its_share() -> None:
    # By hand, e^x: 2.718, 20.086, 1.649, 7.389, 12.182, 0.368; in all 44.392.
    # Shares of the largest: 0.452, 0.274, 0.166.
    assert np.flatnonzero(_draws(SamplingParams(temperature=1.0, top_p=0.45))).tolist() == [1]
    assert np.flatnonzero(_draws(SamplingParams(temperature=1.0, top_p=0.46))).tolist() == [1, 4]
    assert np.flatnonzero(_draws(SamplingParams(temperature=1.0, top_p=0.73))).tolist() == [1, 3, 4]


def test_top_p_is_of_what_top_k_left() -> None:
    # Of the three largest, 39.657 in all, the first two are 0.814: enough for 0.8. Of all six they are 0.727.
    assert np.flatnonzero(_draws(SamplingParams(temperature=1.0, top_k=3, top_p=0.8))).tolist() == [1, 4]


def test_no_temperature_is_greedy_whoever_else_samples() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    hot = SamplingParams(temperature=100.0, seed=1)
    mixed = sample(logits, [hot, SamplingParams(), hot], [4, 4, 4])
    assert mixed[1] == logits[1].argmax()
    assert sample(logits, [], [4, 4, 4]).tolist() == logits.argmax(dim=1).tolist()


def test_a_row_does_not_depend_on_the_others() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(1))
    params = [
        SamplingParams(temperature=1.0 + i / 4, top_k=(0, 40)[i % 2], top_p=(1.0, 0.9)[i % 3 == 0], seed=i)
        for i in range(6)
    ]
    together = sample(logits, params, range(10, 16)).tolist()
    alone = [sample(logits[i : i + 1], params[i : i + 1], [10 + i]).item() for i in range(6)]
    assert together == alone


def test_seed_and_position_change_the_draw() -> None:
    logits = torch.zeros(40, 1000)
    one, other = ([SamplingParams(temperature=1.0, seed=seed)] * 40 for seed in (1, 2))
    assert len(set(sample(logits, one, range(40)).tolist())) > 30
    assert sample(logits, one, range(40)).tolist() != sample(logits, other, range(40)).tolist()


def _unmixed(bits: int) -> int:
    """The inverse of MurmurHash3's finaliser: what it turns into ``bits``."""
    bits ^= bits >> 16
    bits = bits * pow(0xC2B2AE35, -1, 2**32) % 2**32
    bits ^= (bits >> 13) ^ (bits >> 26)
    bits = bits * pow(0x85EBCA6B, -1, 2**32) % 2**32
    return bits ^ (bits >> 16)


@pytest.mark.parametrize("drawn", [0xFFFFFFFF, 0])
def test_the_rarest_noise_is_finite(drawn: int) -> None:
    """Token 0's bits are its key's upper half, mixed: the largest and the smallest that can be drawn."""
    key = torch.tensor([[_unmixed(drawn) << 32]])
    noise = _gumbel(key, 2)
    assert torch.isfinite(noise).all()
    # The uniform number is within 2⁻²⁴ of 1 or of 0: −log(−log(1 − 2⁻²⁴)) = 24 log 2, −log(24 log 2).
    expected = 24 * np.log(2) if drawn else -np.log(24 * np.log(2))
    assert float(noise[0, 0]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": -2}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_parameters_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ExecutorError, match=next(iter(wrong))):
        SamplingParams(**wrong)  # type: ignore[arg-type]


def test_a_request_gets_the_same_tokens_whatever_the_batching() -> None:
    loaded = load_model("tiny-llama")

    def params(request: Request) -> SamplingParams:
        return (
            SamplingParams(temperature=0.7, top_k=50, top_p=0.95, seed=request.index)
            if request.index % 3
            else SamplingParams()
        )

    served = []
    for config in BATCHINGS.values():
        engine = Engine(loaded, num_gpu_blocks=config.num_gpu_blocks, block_size=BLOCK_SIZE, seed=3, sampling=params)
        serve(engine, config, ragged_requests())
        served.append({f"r{i}": engine.outputs(f"r{i}") for i in range(14)})
    assert all(outputs == served[0] for outputs in served)
    greedy = Engine(loaded, num_gpu_blocks=400, block_size=BLOCK_SIZE, seed=3)
    serve(greedy, BATCHINGS["all at once"], ragged_requests())
    different = [i for i in range(14) if greedy.outputs(f"r{i}") != served[0][f"r{i}"]]
    assert different
    assert all(i % 3 for i in different)

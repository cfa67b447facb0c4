from __future__ import annotations

import pytest
from profiles import toy_profile

from batchtwin.dashboard.question import PRESETS, ask, feasibility, in_bytes, read_slo, write, write_slo
from batchtwin.experiments.scenario import Scenario, TraceSpec

BASE = Scenario(trace=TraceSpec(num_requests=50), num_gpu_blocks=257, max_model_len=1024, threads=1)


def test_address_without_changes_asks_what_the_sweep_answers() -> None:
    question = ask(BASE, {"sweep": "x", "metric": "mean_ttft_ms"}, toy_profile(), "p.json")
    assert question.scenario == BASE
    assert question.changed == ()


def test_address_changes_trace_load_pool_and_seed() -> None:
    address = {"trace": "a.csv", "requests": "none", "rate": "2.5", "offline": "1", "blocks": "99", "seed": "7"}
    question = ask(BASE, address, None, "")
    trace = question.scenario.trace
    assert (trace.source, trace.num_requests, trace.rate_scale, trace.offline) == ("a.csv", None, 2.5, True)
    assert question.scenario.num_gpu_blocks == 99
    assert question.scenario.seed == trace.seed == 7
    assert question.changed == ("trace", "number of requests", "rate", "arrivals", "KV blocks", "seed")


def test_other_slos_are_no_other_question() -> None:
    question = ask(BASE, {"slo": "chat"}, None, "")
    assert question.scenario.slo == {"ttft_ms": 500.0, "tpot_ms": 50.0}
    assert question.changed == ()


@pytest.mark.parametrize(
    "address", [{"requests": "many"}, {"rate": "-1"}, {"offline": "perhaps"}, {"slo": "fast"}, {"slo": "beauty_ms=3"}]
)
def test_nonsense_in_an_address_changes_nothing(address: dict[str, str]) -> None:
    assert ask(BASE, address, None, "").scenario == BASE


def test_another_profile_brings_its_model_device_and_block_size() -> None:
    profile = toy_profile()
    other = profile.model_copy(
        update={
            "model": profile.model.model_copy(update={"name": "big", "max_model_len": 512}),
            "block_size": 32,
        }
    )
    question = ask(BASE, {}, other, "other.json")
    assert (question.scenario.model, question.scenario.block_size) == ("big", 32)
    assert question.scenario.max_model_len == 512
    assert question.changed == ("profile",)


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_has_a_name_in_the_address(name: str) -> None:
    assert read_slo(write_slo(PRESETS[name])) == PRESETS[name]
    assert write_slo(PRESETS[name]) == name


def test_own_limits_are_written_in_full() -> None:
    assert write("slo", {"ttft_ms": 321.0}) == "ttft_ms=321"
    assert read_slo("ttft_ms=321,e2el_ms=9000") == {"ttft_ms": 321.0, "e2el_ms": 9000.0}


@pytest.mark.parametrize(
    ("value", "text"), [(None, "none"), (True, "1"), (5.935664562870292, "5.93566456287"), (7, "7")]
)
def test_values_are_written_so_that_they_read_back(value: object, text: str) -> None:
    assert write("rate", value) == text


def test_feasibility_names_weights_pool_and_concurrency_as_vllm_counts_it() -> None:
    text = feasibility(ask(BASE, {}, toy_profile(), "p.json"))
    assert "Weights 19.1 MiB" in text  # 5,000,000 parameters of 4 bytes
    assert "256 blocks × 16 = 4,096 tokens (16 MiB)" in text  # 2 · 4 layers · 4 heads · 32 · 4 bytes = 4 KiB a token
    assert "maximum concurrency 4.0 requests of max_model_len 1,024" in text


def test_pool_smaller_than_one_request_is_said() -> None:
    text = feasibility(ask(BASE, {"blocks": "10"}, toy_profile(), "p.json"))
    assert "does not fit: raise the KV blocks" in text


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ({"trace": "no-such-trace"}, "neither a file nor a generated trace"),
        ({"blocks": "-3"}, "-3 KV blocks hold nothing: give at least 2"),
    ],
)
def test_what_cannot_be_said_is_one_sentence(address: dict[str, str], sentence: str) -> None:
    assert sentence in feasibility(ask(BASE, address, toy_profile(), "p.json"))


def test_without_a_profile_the_line_says_what_to_do() -> None:
    assert "Choose a profile" in feasibility(ask(BASE, {}, None, ""))


@pytest.mark.parametrize(("value", "text"), [(512, "0.50 KiB"), (3 * 2**20, "3 MiB"), (5 * 2**30, "5 GiB")])
def test_bytes_have_binary_units(value: float, text: str) -> None:
    assert in_bytes(value) == text

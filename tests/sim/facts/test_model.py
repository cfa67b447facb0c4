"""Shapes of models: held against the parameter counts on their public pages and what vLLM logs of their weights."""

from __future__ import annotations

import dataclasses

import pytest

from batchtwin.sim.facts.errors import FactsError
from batchtwin.sim.facts.hf_config import parse_config
from batchtwin.sim.facts.library import known_models, load_model_config
from batchtwin.sim.facts.model import QUANTIZATIONS

PUBLISHED = {
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-6.7b": 6_658_473_984,
    "facebook/opt-30b": 29_974_540_288,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-Nemo-Instruct-2407": 12_247_782_400,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "01-ai/Yi-34B": 34_388_917_248,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-2-9b": 9_241_705_984,
    "microsoft/phi-2": 2_779_683_840,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
}
"""Sizes of the safetensors on the models' pages, in elements."""
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items(), ids=PUBLISHED.keys())
def test_parameters_are_those_of_the_model_page(name: str, count: int) -> None:
    assert load_model_config(name).num_parameters == count


def test_every_model_of_the_table_reads_and_names_its_source() -> None:
    assert len(known_models()) >= 25
    for row in known_models():
        assert load_model_config(row.name).num_parameters > 1e8
        assert row.source.startswith("https://huggingface.co/")


def test_kv_bytes_follow_kv_heads_and_the_kv_dtype() -> None:
    """By hand: 2 · 28 layers · 4 KV heads · 128 · 2 bytes (vllm-project/vllm#22291); a head is copied, never halved."""
    model = load_model_config("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8")
    assert model.kv_bytes_per_token() == 57_344
    assert model.kv_bytes_per_token(kv_dtype="fp8") == 28_672
    assert model.kv_bytes_per_token(2) == 28_672
    assert dataclasses.replace(model, num_q_heads=32).kv_bytes_per_token(8) == 14_336
    with pytest.raises(FactsError, match="no KV cache dtype 'int3'"):
        model.kv_bytes_per_token(kv_dtype="int3")


def test_active_parameters_are_those_of_the_experts_a_token_takes() -> None:
    """The page of Mixtral says 12.9 B active, that of Qwen3-30B-A3B 3.3 B, of Qwen3-235B-A22B 22 B."""
    for name, billions in (("Mixtral-8x7B-v0.1", 12.9), ("Qwen3-30B-A3B", 3.3), ("Qwen3-235B-A22B", 22.0)):
        assert load_model_config(name).num_active_parameters / 1e9 == pytest.approx(billions, rel=0.02)
    dense = load_model_config("Llama-3.1-8B")
    assert dense.num_active_parameters == dense.num_parameters


def test_what_a_profile_holds_of_a_model_is_the_same_shape() -> None:
    facts = load_model_config("Llama-3.1-8B").facts()
    assert (facts.kv_bytes_per_token, facts.num_parameters, facts.intermediate_size) == (131_072, 8_030_261_248, 14336)


def test_heads_that_gpus_cannot_share_are_a_sentence_with_the_degrees_that_work() -> None:
    with pytest.raises(FactsError, match=r"40 attention heads, which 3 GPUs cannot share.*size of 1, 2, 4, 8\."):
        load_model_config("Qwen2.5-14B").weight_bytes(3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "mamba"}, "of type 'mamba', whose layers are not known"),
        ({"model_type": None}, "has no model_type"),
        ({"num_hidden_layers": None}, "has no num_hidden_layers"),
        ({"hidden_size": "4096"}, "hidden_size is '4096', but it must be a whole number"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_key_value_heads": 5}, "32 attention heads cannot share 5 KV heads"),
        ({"torch_dtype": "int7"}, "the dtype is 'int7'"),
        ({"quantization_config": {"quant_method": "sorcery"}}, "no quantisation 'sorcery'"),
        ({"quantization_config": "awq"}, "quantization_config is 'awq', but it must be an object"),
    ],
)
def test_what_is_wrong_in_a_config_is_one_sentence_with_the_field(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(FactsError, match="The config of mine") as caught:
        parse_config({**LLAMA, **changes}, "mine")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "bytes_per_weight"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 / 8 + 20 / 8 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1.0),
        ({"quant_method": "fp8"}, 1.0),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}},
            1.0,
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4 / 8 + 1 / 64),
    ],
)
def test_quantisation_is_read_from_the_config(config: dict[str, object], bytes_per_weight: float) -> None:
    found = parse_config({**LLAMA, "quantization_config": config}, "mine").quantization
    assert found is not None
    assert found.bytes_per_weight == pytest.approx(bytes_per_weight)


def test_smaller_weights_leave_the_embeddings_as_they_are() -> None:
    """FP8 halves 6,979,321,856 linear weights of Llama-3.1-8B, and nothing else."""
    model = load_model_config("Llama-3.1-8B")
    smaller = dataclasses.replace(model, quantization=QUANTIZATIONS["fp8"])
    assert model.weight_bytes() - smaller.weight_bytes() == 6_979_321_856


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"rope_type": "llama3", "factor": 8.0}, 8192),
        ({"type": "linear", "factor": 4.0}, 32768),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        (None, 8192),
    ],
)
def test_the_context_length_is_that_of_the_position_table(scaling: object, length: int) -> None:
    assert parse_config({**LLAMA, "rope_scaling": scaling}, "mine").max_model_len == length


def test_a_multimodal_config_gives_its_text_model() -> None:
    nested = {"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {**LLAMA, "model_type": "gemma3_text"}}
    assert parse_config(nested, "mine").hidden_size == 4096


def test_a_window_counts_only_where_it_is_used() -> None:
    assert parse_config({**LLAMA, "sliding_window": 4096}, "mine").sliding_window == 4096
    off = {**LLAMA, "sliding_window": 4096, "use_sliding_window": False}
    assert parse_config(off, "mine").sliding_window is None

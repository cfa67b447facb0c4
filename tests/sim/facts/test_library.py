"""Finding a model: files, folders, names, the local cache; and whatever is wrong with them in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchtwin.sim.facts.errors import FactsError
from batchtwin.sim.facts.hf_config import parse_config
from batchtwin.sim.facts.library import known_models, load_model_config
from batchtwin.sim.facts.model import ModelConfig

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 5000,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}


def test_a_file_and_its_folder_give_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    by_folder = load_model_config(tmp_path)
    assert by_folder == load_model_config(tmp_path / "config.json")
    assert (by_folder.name, by_folder.hidden_size) == (str(tmp_path), 1024)


def test_a_name_in_the_local_cache_is_read_from_the_revision_of_main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "models--acme--anvil-1b"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("abc")
    for revision, vocab in (("abc", 7000), ("older", 1)):
        folder = root / "snapshots" / revision
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": vocab}))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert load_model_config("acme/anvil-1b").vocab_size == 7000
    with pytest.raises(FactsError, match="not in the local Hugging Face cache"):
        load_model_config("acme/hammer-1b")


@pytest.mark.parametrize(
    ("name", "layers", "method"),
    [
        ("Llama-3.1-8B-Instruct", 32, None),
        ("NousResearch/Meta-Llama-3.1-8B-Instruct", 32, None),
        ("meta-llama/Llama-2-13b-chat-hf", 40, None),
        ("Qwen/Qwen2.5-32B-Instruct-AWQ", 64, "awq"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", 28, "gptq-int8"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8", 80, "fp8"),
        ("TheBloke/Yi-34B-Chat-AWQ", 60, "awq"),
        ("RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic", 80, "fp8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", 32, "gptq"),
    ],
)
def test_variants_have_the_shape_of_their_base_and_the_weights_that_the_name_says(
    name: str, layers: int, method: str | None
) -> None:
    found = load_model_config(name)
    assert (found.name, found.num_layers) == (name, layers)
    assert (found.quantization.method if found.quantization else None) == method


def test_an_unknown_name_is_told_what_is_close() -> None:
    with pytest.raises(FactsError, match=r"did you mean .*meta-llama/Llama-3\.1-8B"):
        load_model_config("meta-llama/Llama-3.1-9B")


def test_aliases_and_names_are_not_shared() -> None:
    names = [name.rsplit("/")[-1].lower() for row in known_models() for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b"nul", b"[" * 100_000])
def test_a_file_that_is_no_config_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(FactsError, match=r"config\.json") as caught:
        load_model_config(path)
    assert "\n" not in str(caught.value)


def test_an_empty_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match=r"holds no config\.json"):
        load_model_config(tmp_path)


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=12), inner, max_size=2),
    max_leaves=4,
)
_NAMES = st.sampled_from(
    [
        *CONFIG,
        *("tie_word_embeddings", "attention_bias", "multi_query", "sliding_window", "use_sliding_window", "n_embd"),
        *("rope_scaling", "rope_parameters", "partial_rotary_factor", "quantization_config", "text_config"),
        *("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "torch_dtype"),
    ]
)
_TYPES = st.sampled_from(["llama", "qwen3_moe", "mixtral", "opt", "gpt2", "gpt_bigcode", "phi", "gemma3"])
_PARTS = st.fixed_dictionaries(
    {},
    optional={
        "quant_method": st.sampled_from(["awq", "gptq", "fp8", "compressed-tensors", "bitsandbytes", "modelopt", "x"]),
        "bits": _ANYTHING,
        "group_size": _ANYTHING,
        "config_groups": _ANYTHING,
        "load_in_8bit": _ANYTHING,
        "rope_type": st.sampled_from(["yarn", "linear", "dynamic", "llama3"]),
        "factor": _ANYTHING,
        "original_max_position_embeddings": _ANYTHING,
    },
)


@settings(max_examples=250, deadline=None)
@given(
    changes=st.dictionaries(_NAMES, _ANYTHING | _PARTS, max_size=4),
    dropped=st.sets(st.sampled_from(sorted(CONFIG)), max_size=2),
    model_type=_TYPES | st.none(),
)
def test_a_mutated_config_is_a_model_or_a_sentence(
    changes: dict[str, object], dropped: set[str], model_type: str | None
) -> None:
    raw = {name: value for name, value in CONFIG.items() if name not in dropped} | changes
    if model_type is not None:
        raw["model_type"] = model_type
    found = _read(lambda: parse_config(raw, "mutated"))
    if isinstance(found, str):
        assert "\n" not in found
        assert len(found) < 400
        return
    assert found.num_parameters > 0
    assert found.kv_bytes_per_token() > 0
    assert found.weight_bytes() > 0


def _read(read: Callable[[], ModelConfig]) -> ModelConfig | str:
    """The model, or the sentence."""
    try:
        return read()
    except FactsError as error:
        return str(error)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mutated_bytes_of_a_config_are_a_model_or_a_sentence(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = json.dumps(CONFIG).encode()
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, min(start + 12, len(whole))))
    mutated = whole[:start] + data.draw(st.binary(max_size=6)) + whole[stop:]
    path = tmp_path_factory.getbasetemp() / "mutated-config.json"
    path.write_bytes(mutated)
    found = _read(lambda: load_model_config(path))
    assert "\n" not in found if isinstance(found, str) else found.num_layers >= 1

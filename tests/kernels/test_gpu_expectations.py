"""The expectations written down before any GPU run are what the program computes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_expectations.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_expectations", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_holds_what_the_program_writes(program: ModuleType) -> None:
    text = FILE.with_suffix(".md").read_text()
    assert program.updated(text) == text


def test_what_stands_around_the_written_part_stays(program: ModuleType) -> None:
    text = f"before\n{program.MARK}\nold numbers\n{program.END}\nafter\n"
    new = program.updated(text)
    assert new.startswith("before\n" + program.MARK)
    assert new.endswith(program.END + "\nafter\n")
    assert "old numbers" not in new
    assert program.updated("By hand.\n").startswith("By hand.\n\n" + program.MARK)


def test_a_published_decode_is_in_the_table_under_its_measured_time(program: ModuleType) -> None:
    """128 sequences over 4,096 tokens on an H200: 2.15 GB, FlashAttention-3 took 492.6 µs (AIConfigurator 0.12.0)."""
    row = next(line for line in program.section().splitlines() if line.startswith("| 128 × 4096 |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert float(cells[1]) == pytest.approx(2150, rel=0.01)
    assert 0.90 < float(cells[7]) / 492.6 < 0.92


def test_the_engines_floors_are_as_by_hand(program: ModuleType) -> None:
    """Llama-3.1-8B: 8,030,261,248 parameters, of which the embedding's 128,256 · 4,096 are not read; 2 · 32 layers ·
    8 KV heads · 128 · 2 bytes of KV a token. 32 decodes over 1,024: 15.010 + 4.295 GB.
    """
    features = program.decode_features(32, 1024)
    h100, h200 = program.engine_floor("H100"), program.engine_floor("H200")
    moved, flops = program.step_work(h100, features)
    assert moved == 2 * (8_030_261_248 - 128_256 * 4096) + 32 * 1024 * 131_072
    # Weights but both embeddings 2 · 6.9796 G a token, LM head 2 · 0.5253 G a row, 4 · 32 · 32 · 128 a context token.
    assert flops == pytest.approx(32 * (2 * 6.979588e9 + 2 * 0.525337e9 + 524_288 * 1024), rel=1e-6)
    assert 1e3 * h100.duration_s(features) == pytest.approx(19.305 / 3.35, rel=1e-3)
    assert 1e3 * h200.duration_s(features) == pytest.approx(19.305 / 4.8, rel=1e-3)


def test_a_chunk_of_2048_is_bound_by_its_products(program: ModuleType) -> None:
    """28.59 TFLOP of weights, 1.10 of attention (2,048² / 2 pairs), one row of the LM head; at 989.4 TFLOP/s."""
    seconds = [program.engine_floor(gpu).duration_s(program.prefill_features(2048)) for gpu in ("H100", "H200")]
    assert seconds == pytest.approx([(28.5884 + 1.0995 + 0.0011) / 989.4] * 2, rel=1e-4)


def test_the_model_expected_is_the_one_that_the_gpu_run_makes(program: ModuleType) -> None:
    pytest.importorskip("transformers")
    from batchtwin.executor.checkpoints import PRESETS

    made, expected = PRESETS["llama-3.1-8b-shaped"](), program._engine_model()
    assert (made.num_hidden_layers, made.hidden_size, made.intermediate_size) == (
        expected.num_layers, expected.hidden_size, expected.intermediate_size,
    )  # fmt: skip
    assert (made.num_attention_heads, made.num_key_value_heads) == (expected.num_q_heads, expected.num_kv_heads)
    assert (made.vocab_size, made.tie_word_embeddings) == (expected.vocab_size, expected.tie_word_embeddings)


def test_measured_steps_stand_beside_their_floors(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [
        {"kind": "decode", "num_seqs": 32, "context": 1024, "p50_ms": 5.0},
        {"kind": "prefill", "tokens": 2048, "p50_ms": 60.0},
    ]
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"sections": {"setup": {"gpu": "NVIDIA H200"}, "engine": {"steps": steps}}}))
    program.against(path)
    shares = [row["percent_of_sheet_floor"] for row in json.loads(capsys.readouterr().out.splitlines()[-1])]
    assert shares == pytest.approx([100 * 4.0219 / 5, 100 * 30.007 / 60], rel=1e-3)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"sections": {"setup": {}}}, "holds no engine steps measured on a GPU"),
        ({"sections": {"setup": {"gpu": "Abacus"}, "engine": {"steps": []}}}, "There is no device 'Abacus'"),
    ],
)
def test_a_file_that_cannot_be_judged_is_one_sentence(
    program: ModuleType, tmp_path: Path, document: object, said: str
) -> None:
    (tmp_path / "results.json").write_text(json.dumps(document))
    with pytest.raises(SystemExit, match=said):
        program.against(tmp_path / "results.json")

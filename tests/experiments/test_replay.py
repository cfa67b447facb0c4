"""One scenario, predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
from profiles import toy_profile
from records_digest import digest
from sweeps import TINY, tiny_scenario
from tables import write_layers

from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.render import print_run
from batchtwin.experiments.replay import check_profile, predict, replay
from batchtwin.experiments.scenario import make_scenario
from batchtwin.experiments.sweep import open_sweep, sweep
from batchtwin.scheduler import ConfigError, RequestRefused, UnknownPolicy
from batchtwin.sim.cost.profile import ProfileError
from batchtwin.sim.cost.tables.csv_table import TableError
from batchtwin.sim.cost.tables.open import open_tables

PROFILE = toy_profile()


def test_a_replay_is_asked_for_by_scenario_by_fields_or_by_both(tmp_path: Path) -> None:
    PROFILE.save(tmp_path / "profile.json")
    expected = digest(predict(tiny_scenario(max_num_seqs=2), PROFILE).records)
    assert digest(replay(tiny_scenario(max_num_seqs=2), profile=PROFILE).records) == expected
    assert digest(replay(tiny_scenario(), profile=tmp_path / "profile.json", max_num_seqs=2).records) == expected
    fields = {"trace": TINY, "max_model_len": 256, "max_num_seqs": 2, "num_gpu_blocks": 200}
    assert digest(replay(profile=str(tmp_path / "profile.json"), **fields).records) == expected


def test_a_null_baseline_has_no_host_and_is_named() -> None:
    """Constant steps of 8 ms, whatever is in them."""
    run = predict(tiny_scenario(), PROFILE, PROFILE.null("constant"))
    assert run.provenance["cost_model"] == "constant"
    assert set(run.records.iterations["device_s"].tolist()) == {8e-3}
    assert not run.records.iterations["host_s"].any()


def test_a_prediction_needs_a_profile() -> None:
    with pytest.raises(ExperimentError, match="needs a profile: write one with batchtwin calibrate"):
        replay(tiny_scenario())


def test_only_a_measured_run_can_be_paced_by_the_wall_clock() -> None:
    with pytest.raises(ExperimentError, match="Only a measured run can be paced by the wall clock"):
        replay(tiny_scenario(), profile=PROFILE, wall_clock=True)


@pytest.mark.parametrize(
    ("fields", "error", "sentence"),
    [
        ({"model": "other"}, ProfileError, "model 'tiny-llama', but the scenario asks for model 'other'"),
        ({"dtype": "bfloat16"}, ProfileError, "dtype 'float32', but .* dtype 'bfloat16'"),
        ({"threads": 3}, ProfileError, "threads 1, but .* threads 3"),
        ({"block_size": 32}, ProfileError, "block_size 16, but .* block_size 32"),
        ({"policy": "fastest"}, UnknownPolicy, "prefill_first, .*static_batch, vllm_v1"),
        ({"max_num_batched_tokens": 2}, ConfigError, r"\(2\) is less than max_num_seqs \(4\)"),
        ({"max_num_seqs": 0}, ConfigError, "max_num_seqs is 0"),
        ({"num_gpu_blocks": 1}, ConfigError, "num_gpu_blocks is 1"),
        ({"max_model_len": 40}, RequestRefused, "prompt of 46 tokens, but max_model_len is 40"),
        ({"num_gpu_blocks": 4}, RequestRefused, "needs 6 KV blocks .* only 3 can be used .*: raise num_gpu_blocks"),
    ],
)
def test_what_cannot_work_is_an_error_of_ours(fields: dict[str, object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence) as caught:
        replay(tiny_scenario(), profile=PROFILE, **fields)
    assert "\n" not in str(caught.value)


def test_operator_tables_stand_for_a_profile_and_what_they_lack_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_layers(tmp_path / "tables")
    scenario = tiny_scenario(model=str(folder), dtype="bfloat16", device="cuda")
    run = replay(scenario, profile=folder)
    notes = run.provenance["tables"]
    assert notes[:-1] == list(open_tables(folder).notes)
    assert "measured tables" in notes[-1] or "extrapolated" in notes[-1]
    print_run(run, None)
    assert f"Operator tables: {notes[-1]}" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(TableError, match="no times for tensor_parallel_size 2: it holds tp1"):
        replay(scenario, profile=folder, tensor_parallel_size=2)


def test_a_sweep_of_tables_launched_eagerly_is_found_again(tmp_path: Path) -> None:
    folder = write_layers(tmp_path / "tables")
    scenario = tiny_scenario(model=str(folder), dtype="bfloat16", device="cuda", enforce_eager=True)
    made = sweep(tmp_path / "sweep", scenario, folder, max_num_seqs=[2], max_num_batched_tokens=[64], seeds=1)
    assert open_sweep(tmp_path / "sweep").profile.hash() == made.profile.hash()


def test_a_kv_cache_of_another_dtype_is_refused_where_it_would_change_nothing(tmp_path: Path) -> None:
    folder = write_layers(tmp_path / "tables")
    with pytest.raises(
        ExperimentError, match="kv_cache_dtype is fp8, but the profile's times are of a cache in bfloat16"
    ):
        check_profile(open_tables(folder), make_scenario(kv_cache_dtype="fp8"))

"""A profile on disk: it comes back as it was, and is refused where it does not belong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from profiles import toy_profile

from batchtwin.sim.cost.features import Features
from batchtwin.sim.cost.models import Constant, Fitted, HostTerm
from batchtwin.sim.cost.profile import Profile, ProfileError, load_profile

ASKED = {"model": "tiny-llama", "dtype": "float32", "device": "cpu", "threads": 1, "block_size": 16}
DECODE = Features(10, 10, 10_000, 0, 0, 0.0, 10, 0, 10)


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    profile = toy_profile(constant_s=0.1 + 0.2, provenance={"said by": "Ünïcode"})
    profile.save(tmp_path / "deep" / "profile.json")
    loaded = load_profile(tmp_path / "deep" / "profile.json")
    assert loaded == profile
    assert loaded.hash() == profile.hash()
    assert loaded.cost_model == profile.cost_model


def test_paths_may_be_strings(tmp_path: Path) -> None:
    toy_profile().save(str(tmp_path / "profile.json"))
    assert load_profile(str(tmp_path / "profile.json")) == toy_profile()


def test_the_hash_is_the_same_again_and_another_for_any_other_number() -> None:
    profile = toy_profile()
    assert profile.hash() == toy_profile().hash()
    law = profile.law.model_copy(update={"fixed_s": profile.law.fixed_s * (1 + 1e-15)})
    others = [toy_profile(block_size=32), toy_profile(host_fixed_s=0.0), toy_profile(law=law)]
    assert len({profile.hash(), *(other.hash() for other in others)}) == 4


def test_a_profile_fits_what_it_was_calibrated_with() -> None:
    toy_profile().check(**ASKED)
    toy_profile().check(**{**ASKED, "threads": None})


@pytest.mark.parametrize(
    ("what", "wanted", "own"),
    [
        ("model", "'Llama-3.1-8B'", "'tiny-llama'"),
        ("dtype", "'bfloat16'", "'float32'"),
        ("device", "'cuda'", "'cpu'"),
        ("threads", "4", "1"),
        ("block_size", "32", "16"),
    ],
)
def test_a_profile_of_something_else_is_refused_and_both_are_named(what: str, wanted: str, own: str) -> None:
    asked = {**ASKED, what: int(wanted) if wanted.isdigit() else wanted.strip("'")}
    with pytest.raises(ProfileError, match=f"calibrated with {what} {own}, .* asks for {what} {wanted}"):
        toy_profile().check(**asked)


def test_the_null_baselines_are_those_of_the_calibration() -> None:
    """Roofline of the toy (5 M parameters of 4 bytes, 1,048,576 of them in the LM head; K and V of 4 · 4 · 32 · 2 ·
    4 B = 4,096 B a token; 10 GB/s, 50 GFLOP/s): 60.96 MB are 6.096 ms; 79.02848 + 20.97152 + 40.96 MFLOP are less.
    """
    profile = toy_profile()
    assert profile.model.kv_bytes_per_token == 4096
    assert profile.null("constant") == Constant(8e-3)
    assert profile.null("roofline").duration_s(DECODE) == pytest.approx(6.096e-3)
    assert profile.null("roofline_affine").duration_s(DECODE) == pytest.approx(2e-3 + 1.5 * 6.096e-3)
    assert profile.roofline.flops_per_sample == 2 * 4096 * 256
    assert profile.roofline.flops_per_token == 2 * (5_000_000 - 4096 * 256)
    assert profile.roofline.flops_per_attention_pair == 4 * 4 * 256


def test_the_law_and_the_host_are_what_the_file_says() -> None:
    """10 decodes over 1,000 tokens each: 2 ms + 9 · 100 µs + 10 · 20 µs + 10,000 · 0.1 µs + 10 · 10 µs."""
    profile = toy_profile()
    assert isinstance(profile.cost_model, Fitted)
    assert profile.cost_model.duration_s(DECODE) == pytest.approx((2000 + 900 + 200 + 1000 + 100) * 1e-6)
    assert profile.host == HostTerm(2e-5, 1e-7)


def _changed(**changes: Any) -> str:
    raw = json.loads(toy_profile().model_dump_json())
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        inner = raw
        for name in path:
            inner = inner[name]
        inner[last] = value
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "it is not JSON ("),
        ("{", "it is not JSON ("),
        ("\x00\x01", "it is not JSON ("),
        ("[1]", "it is [1], but it must be an object"),
        (_changed(format=2), "format is 2, but it must be 1"),
        (_changed(extra=1), "there is no field extra"),
        (_changed(law__fixed_s="fast"), 'law.fixed_s is "fast", but it must be a number'),
        (_changed(law__fixed_s=-1e-3), "law.fixed_s is -0.001, but it must be at least 0"),
        (_changed(law__per_sample_s=None), "law.per_sample_s is null, but it must be a number"),
        (_changed(law__token_slopes_s=[1e-4, 1e-4]), "law: token_knots must ascend"),
        (
            _changed(law__token_knots=[], law__token_slopes_s=[]),
            "law.token_knots is [], but it must be at least 1 long",
        ),
        (_changed(device__flops_per_s=0), "device.flops_per_s is 0, but it must be above 0"),
    ],
)
def test_a_broken_profile_or_one_of_another_version_is_one_sentence(
    tmp_path: Path, content: str, sentence: str
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(content)
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert message.startswith(f"{path} is not a profile of this version: {sentence}")
    assert message.endswith("write one with batchtwin calibrate.")
    assert "\n" not in message


def test_a_missing_profile_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "absent.json"
    with pytest.raises(ProfileError, match=rf"The profile {path} cannot be read \(.*\): write one with batchtwin"):
        load_profile(path)
    with pytest.raises(ProfileError, match="holds no operator tables of a known layout"):
        load_profile(tmp_path)


def test_a_profile_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileError, match=r"The profile .* cannot be written \(.*\): make room or choose another"):
        toy_profile().save(tmp_path / "file" / "profile.json")


def test_a_profile_is_never_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        toy_profile().block_size = 32  # type: ignore[misc]
    assert isinstance(toy_profile(), Profile)

"""A hand-made profile for tests: the coefficients are round numbers, not measurements."""

from __future__ import annotations

from batchtwin.sim.cost.profile import DeviceFacts, ErrorFacts, FitFacts, Law, ModelFacts, Profile

_ERROR = ErrorFacts(median_percent=3.0, p90_percent=6.0, worst_percent=9.0, bias_percent=0.5)


def toy_profile(**changes: object) -> Profile:
    profile = Profile(
        model=ModelFacts(
            name="tiny-llama",
            digest="0" * 16,
            dtype="float32",
            num_layers=4,
            num_q_heads=8,
            num_kv_heads=4,
            head_dim=32,
            hidden_size=256,
            vocab_size=4096,
            num_parameters=5_000_000,
            max_model_len=4096,
            dtype_bytes=4,
            intermediate_size=688,
            gated_mlp=True,
        ),
        device=DeviceFacts(type="cpu", name="toy", threads=1, memory_bytes_per_s=1e10, flops_per_s=5e10),
        block_size=16,
        attention_backend="toy",
        law=Law(
            fixed_s=2e-3,
            token_knots=(1,),
            token_slopes_s=(1e-4,),
            per_decode_s=2e-5,
            per_decode_kv_token_s=1e-7,
            per_prefill_s=1e-4,
            per_prefill_token_s=0.0,
            per_attention_pair_s=2e-8,
            per_sample_s=1e-5,
        ),
        host_fixed_s=2e-5,
        host_per_seq_s=1e-7,
        constant_s=8e-3,
        roofline_alpha=1.5,
        roofline_beta_s=2e-3,
        fit=FitFacts(
            num_batches=50,
            num_rounds=5,
            seconds_measured=60.0,
            held_out=_ERROR,
            nulls={"constant": _ERROR, "roofline_affine": _ERROR},
            repeat_noise_percent=4.0,
        ),
        provenance={"made": "by hand for tests"},
    )
    return profile.model_copy(update=changes)

"""What the benchmarks have in common: the setups in the shared data, as profiles."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchtwin.sim.cost.models import Fitted
    from batchtwin.sim.cost.profile import Profile

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("BATCHTWIN_SHARED", ROOT.parent / "shared"))
AZURE = "data/azure_llm_2023/AzureLLMInferenceTrace_conv.csv"


def load_setup(shared: Path, name: str) -> dict[str, Any]:
    """``h100_like`` or ``a100_like``."""
    return dict(json.loads((shared / "bench" / f"{name}.json").read_text()))


def law_of(setup: dict[str, Any]) -> Fitted:
    """The setup's law of an iteration's time."""
    from batchtwin.sim.cost.models import Fitted

    return Fitted(**_coefficients(setup))


def _coefficients(setup: dict[str, Any]) -> dict[str, float]:
    law = setup["duration_s"]
    return {
        "fixed_s": law["fixed"],
        "per_prefill_token_s": law["per_prefill_token"],
        "per_decode_s": law["per_decode_seq"],
        "per_decode_kv_token_s": law["per_decode_kv_token"],
        "per_attention_pair_s": law["per_prefill_query_context_pair"],
    }


def profile_of(setup: dict[str, Any]) -> Profile:
    """A whole profile around the law. Its other facts are those of an 8B model in half precision, and no prediction of
    a benchmark uses them.
    """
    from batchtwin.sim.cost.profile import DeviceFacts, ErrorFacts, FitFacts, Law, ModelFacts, Profile

    none = ErrorFacts(median_percent=0, p90_percent=0, worst_percent=0, bias_percent=0)
    rest = ("per_prefill_s", "per_sample_s")
    return Profile(
        model=ModelFacts(
            name="8b-for-benchmarks",
            digest="0" * 16,
            dtype="bfloat16",
            num_layers=32,
            num_q_heads=32,
            num_kv_heads=8,
            head_dim=128,
            hidden_size=4096,
            vocab_size=128_256,
            num_parameters=8_030_000_000,
            max_model_len=131_072,
            dtype_bytes=2,
        ),
        device=DeviceFacts(type="cuda", name=setup["about"][:40], threads=1, memory_bytes_per_s=2e12, flops_per_s=3e14),
        block_size=setup["block_size"],
        attention_backend="none",
        law=Law(**_coefficients(setup), token_knots=(0,), token_slopes_s=(0.0,), **dict.fromkeys(rest, 0.0)),
        host_fixed_s=0.0,
        host_per_seq_s=0.0,
        constant_s=0.0,
        roofline_alpha=1.0,
        roofline_beta_s=0.0,
        fit=FitFacts(
            num_batches=0, num_rounds=0, seconds_measured=0.0, held_out=none, nulls={}, repeat_noise_percent=0.0
        ),
        provenance={"made": "from arithmetic, for benchmarks"},
    )

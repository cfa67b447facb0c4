"""A profile: a cost model calibrated on one device, with all that is needed to trust or refuse it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ...scheduler.errors import BatchTwinError
from ..wording import first_problem
from .models import Constant, CostModel, Fitted, HostTerm, Roofline
from .spread import Factors, KindSpread, Scaled, bounds

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MaybeUnknown = Annotated[float, BeforeValidator(lambda value: float("nan") if value is None else value)]


class ProfileError(BatchTwinError):
    """A profile that cannot be read, or that belongs to something else."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelFacts(_Part):
    """The model a profile was measured with; all sizes as the executor found them."""

    name: str
    digest: str
    dtype: str
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    num_parameters: int
    max_model_len: int
    dtype_bytes: int
    intermediate_size: int | None = None
    """Width of the MLP; None in a profile of an earlier version."""
    gated_mlp: bool | None = None

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token occupies over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype_bytes


class DeviceFacts(_Part):
    """The device, with its measured peaks."""

    type: str
    name: str
    threads: int
    memory_bytes_per_s: Positive
    flops_per_s: Positive


class ErrorFacts(_Part):
    """Errors of predicted iteration times on batches that the fit has not seen, in per cent."""

    median_percent: float
    p90_percent: float
    worst_percent: float
    bias_percent: float


class CurvePoint(_Part):
    """How well a fit would have done, had calibrating stopped then: errors on batches it has not seen, in per cent."""

    minutes: float
    num_batches: int
    num_measurements: int
    median_percent: float
    p90_percent: float


class MemoryFacts(_Part):
    """What a CUDA device's memory went to, in bytes, and the KV blocks that were left (as vLLM sizes them)."""

    total_bytes: int
    gpu_memory_utilization: float
    weight_bytes: int
    activation_peak_bytes: int
    other_bytes: int
    """Of the driver, of torch's context and of other processes."""
    max_num_batched_tokens: int
    """The step at which activations were measured."""
    num_gpu_blocks: int


class SpreadFacts(_Part):
    """What the intervals of predictions rest on (``sim.cost.spread``), as logarithms of measured over predicted."""

    kinds: dict[str, KindSpread] = Field(min_length=1)
    """By kind of step: ``decode``, ``prefill``."""
    drift: NonNegative


class FitFacts(_Part):
    """How the fit was obtained and how wrong it is."""

    num_batches: int
    num_rounds: int
    seconds_measured: float
    held_out: ErrorFacts
    nulls: dict[str, ErrorFacts]
    repeat_noise_percent: MaybeUnknown
    """Median over the batches of (p75 − p25) / median of their repeats; NaN (null in the file) where nothing tells."""
    curve: tuple[CurvePoint, ...] = ()
    """Error against minutes spent."""
    spread: SpreadFacts | None = None
    """None in profiles of before it was kept, and of logs and tables, which do not repeat a batch."""


class Law(_Part):
    """The coefficients of ``Fitted``, in seconds, none negative; one slope a knot."""

    fixed_s: NonNegative
    token_knots: tuple[int, ...] = Field(min_length=1)
    token_slopes_s: tuple[NonNegative, ...]
    per_decode_s: NonNegative
    per_decode_kv_token_s: NonNegative
    per_prefill_s: NonNegative
    per_prefill_token_s: NonNegative
    per_attention_pair_s: NonNegative
    per_sample_s: NonNegative
    per_swapped_block_s: NonNegative = 0.0
    capture_sizes: tuple[int, ...] = ()
    eager_s: NonNegative = 0.0

    @model_validator(mode="after")
    def _slopes_belong_to_knots(self) -> Law:
        if list(self.token_knots) != sorted(set(self.token_knots)) or len(self.token_slopes_s) != len(self.token_knots):
            raise ValueError("token_knots must ascend and token_slopes_s have one slope for each")
        if list(self.capture_sizes) != sorted(set(self.capture_sizes)):
            raise ValueError("capture_sizes must ascend")
        return self


class Profile(_Part):
    """What ``batchtwin calibrate`` writes and every prediction rests on."""

    format: Literal[1] = 1
    model: ModelFacts
    device: DeviceFacts
    block_size: int
    attention_backend: str
    law: Law
    host_fixed_s: NonNegative
    host_per_seq_s: NonNegative
    constant_s: NonNegative
    """Median iteration of the calibration: the constant null baseline."""
    roofline_alpha: NonNegative
    roofline_beta_s: NonNegative
    fit: FitFacts
    memory: MemoryFacts | None = None
    """Where it was measured."""
    provenance: dict[str, str]

    @property
    def cost_model(self) -> Fitted:
        """The fitted law."""
        return Fitted(**self.law.model_dump())

    def cost_model_for(self, max_num_seqs: int, max_num_batched_tokens: int) -> CostModel:
        """The law: what was measured already has this device's padding in it, whatever the knobs."""
        return self.cost_model

    @property
    def host(self) -> HostTerm:
        """The host's part."""
        return HostTerm(self.host_fixed_s, self.host_per_seq_s)

    @property
    def fast_and_slow(self) -> tuple[Scaled, Scaled]:
        """The law at both ends of the interval in which the device is believed to be. A profile that keeps no spread
        has the P90 of its held-out error instead, for every step alike.
        """
        spread = self.fit.spread
        if spread is None:
            half = self.fit.held_out.p90_percent / 100.0
            ends = (Factors(1.0 / (1.0 + half), 1.0 / (1.0 + half)), Factors(1.0 + half, 1.0 + half))
        else:
            ends = bounds(spread.kinds, spread.drift)
        fast, slow = (Scaled(self.cost_model, factors) for factors in ends)
        return fast, slow

    @property
    def roofline(self) -> Roofline:
        """The roofline of this model on this device, from its measured peaks."""
        return roofline_of(self.model, self.device)

    def null(self, name: str) -> CostModel:
        """A null baseline: ``constant``, ``roofline`` or ``roofline_affine`` (α · roofline + β)."""
        bare = self.roofline
        baselines: dict[str, CostModel] = {
            "constant": Constant(self.constant_s),
            "roofline": bare,
            "roofline_affine": replace(
                bare, alpha=self.roofline_alpha, launch_s=self.roofline_beta_s, name="roofline_affine"
            ),
        }
        return baselines[name]

    def hash(self) -> str:
        """A name for exactly this content."""
        return hashlib.sha256(self.model_dump_json(exclude_none=True).encode()).hexdigest()[:16]

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON. Raises ``ProfileError`` if the disk fails."""
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch = path.with_name(path.name + ".part")  # complete or not at all
            scratch.write_text(self.model_dump_json(indent=2, exclude_none=True) + "\n")
            scratch.replace(path)
        except OSError as error:
            raise ProfileError(
                f"The profile {path} cannot be written ({error.strerror or error}): make room or choose another place."
            ) from error

    def check(self, *, model: str, dtype: str, device: str, threads: int | None, block_size: int) -> None:
        """Raise ``ProfileError`` unless the profile was calibrated with this model, dtype, device type, CPU threads
        (if they are given) and block size.
        """
        for what, wanted, own in (
            ("model", model, self.model.name),
            ("dtype", dtype, self.model.dtype),
            ("device", device, self.device.type),
            ("threads", threads, self.device.threads),
            ("block_size", block_size, self.block_size),
        ):
            if wanted is not None and wanted != own:
                raise ProfileError(
                    f"The profile was calibrated with {what} {own!r}, but the scenario asks for {what} {wanted!r}: "
                    f"calibrate that one (batchtwin calibrate) or change the scenario."
                )


def roofline_of(model: ModelFacts, device: DeviceFacts) -> Roofline:
    """The roofline of ``model`` on ``device``; see ``Roofline`` for the terms."""
    lm_head = model.vocab_size * model.hidden_size
    return Roofline(
        weight_bytes=float(model.num_parameters * model.dtype_bytes),
        kv_bytes_per_token=float(model.kv_bytes_per_token),
        flops_per_token=2.0 * max(model.num_parameters - lm_head, 0),
        flops_per_sample=2.0 * lm_head,
        flops_per_attention_pair=4.0 * model.num_layers * model.num_q_heads * model.head_dim,
        memory_bytes_per_s=device.memory_bytes_per_s,
        flops_per_s=device.flops_per_s,
    )


def load_profile(
    path: str | Path, *, model: str | None = None, tensor_parallel: int | None = None, enforce_eager: bool = False
) -> Profile:
    """Read a profile; a folder (or a file that points to one) is one of operator tables. What else is given chooses
    among a folder's tables: ``model`` counts where they are of none in particular. Raises ``ProfileError`` with the
    file and what is wrong in it.
    """
    path = Path(path)
    tables = _pointed(path) if not path.is_dir() else _tables(path, model, tensor_parallel, enforce_eager)
    if tables is not None:
        return tables
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ProfileError(
            f"The profile {path} cannot be read ({error.strerror}): write one with batchtwin calibrate."
        ) from error
    except ValidationError as error:
        raise ProfileError(
            f"{path} is not a profile of this version: {first_problem(error, Profile)}; write one with batchtwin "
            f"calibrate."
        ) from error


def _tables(folder: Path, model: str | None, tensor_parallel: int | None, enforce_eager: bool) -> Profile:
    """The operator tables in ``folder``, which answer whatever a calibrated profile is asked."""
    from .tables.open import open_tables
    from .tables.pieces import Wanted

    wanted = Wanted(model_hint=model, tensor_parallel=tensor_parallel, enforce_eager=enforce_eager)
    return cast(Profile, open_tables(folder, wanted))


def _pointed(path: Path) -> Profile | None:
    """The operator tables that a file points to; None if it is another file."""
    try:
        with path.open("rb") as file:
            is_pointer = b'"format": "tables"' in file.read(64)
    except OSError:
        return None
    if not is_pointer:
        return None
    from .tables.open import follow

    return cast(Profile, follow(path))

"""One scenario, predicted or measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..sim.cost.models import CostModel, HostTerm
from ..sim.cost.profile import ModelFacts, Profile, load_profile
from ..sim.cost_backend import CostModelBackend
from ..sim.spill import Sink
from .errors import ExperimentError
from .grid import policy_label
from .kv_pool import ask_of, num_gpu_blocks
from .preflight import check_ready
from .provenance import provenance
from .run import Run
from .scenario import Scenario, make_scenario
from .world import run_scenario

if TYPE_CHECKING:
    from ..sim.facts.roofline import RooflineProfile
    from ..sim.records import Records


def replay(
    scenario: Scenario | None = None,
    *,
    profile: Profile | str | Path | None = None,
    measured: bool = False,
    wall_clock: bool = False,
    stream_to: str | Path | None = None,
    **fields: Any,
) -> Run:
    """Replay a scenario: predicted from ``profile`` (without one, of a scenario that names a ``gpu``, from the roofline
    of public figures, which nobody validated), or measured on the executor (``wall_clock``: with arrivals in real
    time, instead of skipping idle time). ``stream_to`` is a folder into which a prediction is written while it
    goes (``spill.predict_to``).

    ``fields`` are those of ``Scenario`` (or changes to ``scenario``). Raises ``BatchTwinError`` or ``TraceError``
    with one sentence for whatever is wrong with the input.
    """
    chosen = make_scenario(**fields) if scenario is None else scenario.with_(**fields)
    loaded = _loaded(profile, chosen)
    if wall_clock and not measured:
        raise ExperimentError("Only a measured run can be paced by the wall clock: measure, or use the clock sim.")
    if measured:
        if stream_to is not None:
            raise ExperimentError("Only a prediction is written while it goes: measure without --stream.")
        check_measurable(chosen)
        check_ready(chosen.model, chosen.device)
        from .measure import Device

        return Device.of(chosen).measure(chosen, wall_clock=wall_clock)
    if loaded is None:
        raise ExperimentError(
            "A prediction needs a profile: write one with batchtwin calibrate and give it, or name a gpu for a first "
            "answer from its data sheet."
        )
    if stream_to is not None:
        from .spill import predict_to

        return predict_to(stream_to, chosen, loaded)
    return predict(chosen, loaded)


def _loaded(profile: Profile | str | Path | None, scenario: Scenario) -> Profile | RooflineProfile | None:
    if profile is not None:
        return open_profile(profile, scenario)
    return roofline_profile(scenario) if scenario.gpu is not None else None


def open_profile(profile: Profile | str | Path, scenario: Scenario) -> Profile:
    """``profile``, read if it is a path; of a folder of operator tables, those that ``scenario`` asks for. Raises
    ``ProfileError``.
    """
    if not isinstance(profile, str | Path):
        return profile
    degree = scenario.tensor_parallel_size
    return load_profile(
        profile,
        model=scenario.model,
        tensor_parallel=degree if degree > 1 else None,
        enforce_eager=scenario.enforce_eager,
    )


def roofline_profile(scenario: Scenario) -> RooflineProfile:
    """The roofline of the scenario's model on its GPU. Raises ``FactsError`` if either is unknown."""
    from ..sim.facts.roofline import RooflineProfile

    ask = ask_of(scenario)
    return RooflineProfile(ask.model, ask.device, ask.knobs.tensor_parallel_size, ask.knobs.kv_cache_dtype)


def predict(
    scenario: Scenario,
    profile: Profile | RooflineProfile,
    cost_model: CostModel | None = None,
    *,
    host: HostTerm | None = None,
    sink: Sink | None = None,
) -> Run:
    """Predict one scenario from ``profile``; ``cost_model`` replaces the fitted law (null baselines, which have no host
    term unless one is given). With a ``sink`` the records go there as they come. What operator tables lack, and how
    much of the run lies beyond them, stands in its provenance.
    """
    check_profile(profile, scenario)
    blocks = num_gpu_blocks(scenario, profile.model)
    model = cost_model or profile.cost_model_for(scenario.max_num_seqs, scenario.max_num_batched_tokens)
    own = profile.host if cost_model is None else HostTerm()
    backends = [CostModelBackend(model, own if host is None else host) for _ in range(scenario.num_replicas)]
    records = run_scenario(scenario, blocks, *backends, sink=sink)
    about: dict[str, Any] = provenance("simpy", "numpy") | {
        "profile": profile.hash(),
        "cost_model": model.name,
        "policy": policy_label(scenario.policy),
    }
    if cost_model is None and (notes := getattr(profile, "notes", None)) is not None:
        about["tables"] = [
            *notes,
            *_other_cache(scenario, profile.model.dtype),
            *([] if sink else [_beyond(profile, model, records)]),
        ]
    return Run(scenario, "predicted", records, blocks, about)


def _other_cache(scenario: Scenario, dtype: str) -> list[str]:
    asked = scenario.kv_cache_dtype
    if asked in ("auto", dtype):
        return []
    return [
        f"attention was measured with a KV cache in {dtype}: kv_cache_dtype={asked} changes the pool, not the times"
    ]


def _beyond(tables: Any, model: Any, records: Records) -> str:
    from ..sim.cost.features import features_of_columns
    from ..sim.cost.tables.composed import extrapolated

    return extrapolated(tables, model, features_of_columns(records.iterations))


def check_measurable(scenario: Scenario) -> None:
    """Raise ``ExperimentError`` if ``scenario`` can only be predicted."""
    if scenario.num_replicas > 1:
        raise ExperimentError(
            f"A device runs one replica, but num_replicas is {scenario.num_replicas}: predict it, or measure with one."
        )


def check_profile(profile: Profile | RooflineProfile, scenario: Scenario) -> None:
    """Raise ``ProfileError`` if ``profile`` was calibrated for something else than ``scenario`` asks for,
    ``ExperimentError`` if it asks for a KV cache of another dtype that would change nothing, and
    ``FactsError`` if its pool is a GPU's and that or the model is unknown.
    """
    s = scenario
    if s.gpu is not None:
        ask_of(s)
    if s.gpu is None and s.kv_cache_dtype not in ("auto", profile.model.dtype):
        raise ExperimentError(
            f"kv_cache_dtype is {s.kv_cache_dtype}, but the profile's times are of a cache in {profile.model.dtype}, "
            f"and only a pool derived from a GPU's memory would change: name the gpu too, or leave it at auto."
        )
    profile.check(model=s.model, dtype=s.dtype, device=s.device, threads=s.threads, block_size=s.block_size)
    check_context(s, profile.model)


def check_context(scenario: Scenario, model: ModelFacts) -> None:
    """Raise ``ExperimentError`` if ``scenario`` asks for more context than ``model`` has."""
    if scenario.max_model_len > model.max_model_len:
        raise ExperimentError(
            f"max_model_len is {scenario.max_model_len}, but {model.name} has a context of {model.max_model_len} "
            f"tokens: lower max_model_len."
        )

"""From the words of a command line to an import."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...sim.cost.profile import load_profile
from ..errors import ExperimentError
from ..options import parse_sets, parse_slo
from ..sweep import Progress
from .import_runs import Imported, Missing, check_runs, import_runs


def import_options(options: Mapping[str, Any], progress: Progress) -> Imported:
    """Import as the options say; check only if there is no folder. Raises ``ExperimentError``."""
    missing = Missing(**{name: options[name] for name in Missing.__dataclass_fields__})
    for name in Missing.__dataclass_fields__:
        value = getattr(missing, name)
        if value is not None and value < 1:
            raise ExperimentError(f"--{name.replace('_', '-')} is {value}, but it must be at least 1.")
    paths: list[Path] = options["sources"]
    if options["output"] is None:
        return check_runs(paths, missing)
    if options["profile"] is None:
        raise ExperimentError("A results folder needs predictions to lay beside: give the profile with -p.")
    fields = parse_sets(options["fields"] or ())
    if options["num_gpu_blocks"] is not None:
        fields["num_gpu_blocks"] = options["num_gpu_blocks"]
    if options["slo"]:
        fields["slo"] = parse_slo(options["slo"])
    profile = load_profile(options["profile"], model=fields.get("model"))
    return import_runs(
        paths, options["output"], profile, missing=missing, fields=fields, workers=options["workers"], progress=progress
    )

"""The predicted world: a cost model says how long a batch takes."""

from __future__ import annotations

from math import inf
from typing import NamedTuple, cast

from ..scheduler.batch import Batch
from .backend import Execution
from .cost.contexts import Contexts, Spread
from .cost.features import Features, features_of
from .cost.models import CostModel, HostTerm, SpreadModel

FEW_STEPS = 8
"""So many are computed sooner than it is found out how many would do."""


class Steady(NamedTuple):
    """A stretch of iterations that were run at once."""

    host_s: float
    devices_s: list[float]
    ends_s: list[float]


class CostModelBackend:
    """Keeps when the device is free, so that a step overlapped with the one before costs max(host, device)."""

    def __init__(self, cost_model: CostModel, host: HostTerm | None = None) -> None:
        self._cost_model = cost_model
        self._host = host or HostTerm()
        self._spread_model = cast(SpreadModel, cost_model) if getattr(cost_model, "needs_spread", False) else None
        self.needs_spread = self._spread_model is not None
        """Whether ``steady`` wants the contexts."""
        self.spread = Spread()
        self._device_free_s = 0.0

    def launch(self, batch: Batch, now_s: float) -> Execution:
        """The end is known at once."""
        features = features_of(batch)
        host_s = self._host.fixed_s + self._host.per_seq_s * features[-1]
        if self._spread_model is None:
            device_s = self._cost_model.duration_s(features)
        else:
            device_s = self._spread_model.duration_s(features, self.spread.of_batch(batch))
        start_s = now_s + host_s
        if start_s < self._device_free_s:
            start_s = self._device_free_s
        self._device_free_s = end_s = start_s + device_s
        return tuple.__new__(Execution, (start_s, end_s, host_s, device_s, None))

    def steady(
        self, features: Features, num_steps: int, now_s: float, until_s: float, contexts: Contexts | None = None
    ) -> Steady:
        """``num_steps`` iterations that differ in one more token for every decode, back to back from ``now_s``, as if
        launched one after the other; fewer, if they would go on long after ``until_s``. ``contexts`` are those of the
        first step, for a model that asks (``needs_spread``).
        """
        host_s = self._host.host_s(features)
        if until_s < inf and num_steps > FEW_STEPS:
            step_s = host_s + self._cost_model.duration_s(features)
            if step_s > 0:  # later steps are hardly ever shorter, and a leap may always be
                num_steps = min(num_steps, max(int((until_s - now_s) / step_s) + 1, 1))
        if self._spread_model is None:
            devices_s = self._cost_model.steady_s(features, num_steps)
        else:
            devices_s = self._spread_model.steady_s(features, num_steps, contexts)
        ends_s = []
        for device_s in devices_s:
            now_s = now_s + host_s + device_s
            ends_s.append(now_s)
        return tuple.__new__(Steady, (host_s, devices_s, ends_s))

    def skip_to(self, end_s: float) -> None:
        """A stretch of ``steady`` iterations has run until ``end_s``."""
        self._device_free_s = end_s

    def wait(self, ticket: Execution) -> Execution:
        """The execution that ``launch`` computed."""
        return ticket

    def host(self, seconds: float) -> None:
        """The host's part is the profile's here, whatever this machine took."""

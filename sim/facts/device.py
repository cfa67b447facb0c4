"""Devices by name: memory, bandwidth, arithmetic and links, from public data sheets (``devices.json``)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ..cost.profile import DeviceFacts
from .errors import FactsError
from .read import close_matches

DeviceClass = Literal["cpu", "gpu", "large_gpu", "huge_gpu"]
_TABLE = Path(__file__).with_name("devices.json")
_GIB = 2**30
_MAKERS = re.compile(r"^(nvidia|geforce|tesla|amd|instinct|radeon)+")


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One GPU. FLOP/s are dense; None where the device has no such arithmetic."""

    name: str
    aliases: tuple[str, ...]
    memory_bytes: int
    """Total as the driver reports it, which is less than the nominal size."""
    memory_bytes_per_s: float
    bf16_flops_per_s: float | None
    fp16_flops_per_s: float
    fp8_flops_per_s: float | None
    num_sms: int
    link_bytes_per_s: float
    """To the peers of a tensor-parallel group, both directions together."""
    link: str
    source: str
    """Data sheet of the figures."""
    memory_source: str

    @property
    def device_class(self) -> DeviceClass:
        """Whose defaults vLLM 0.33 takes (``experiments.grid.DEFAULTS``): by memory, but for the A100 and the GB10."""
        if self.memory_bytes >= 160 * _GIB:
            return "huge_gpu"
        large = self.memory_bytes >= 70 * _GIB and not self.name.startswith(("A100", "GB10"))
        return "large_gpu" if large else "gpu"

    def flops_per_s(self, dtype: str = "bfloat16") -> float:
        """Dense FLOP/s in ``dtype``; 16 bits stand in for a dtype that the device does not have (vLLM serves a
        bfloat16 model on a V100 or T4 in float16).
        """
        if dtype in ("float8_e4m3fn", "fp8") and self.fp8_flops_per_s is not None:
            return self.fp8_flops_per_s
        return self.fp16_flops_per_s if dtype == "float16" else self.bf16_flops_per_s or self.fp16_flops_per_s

    def facts(self, dtype: str = "bfloat16") -> DeviceFacts:
        """As a profile's device, with data-sheet peaks in place of measured ones."""
        return DeviceFacts(
            type="cuda",
            name=self.name,
            threads=1,
            memory_bytes_per_s=self.memory_bytes_per_s,
            flops_per_s=self.flops_per_s(dtype),
        )


def find_device(name: str) -> DeviceSpec:
    """The device of this name or alias, whatever its case, dashes and maker. Raises ``FactsError`` with close names."""
    found = _by_key().get(_key(name))
    if found is None:
        raise FactsError(f"There is no device {name!r} in the table: {close_matches(name, list(known_devices()))}")
    return found


def known_devices() -> dict[str, DeviceSpec]:
    """All devices by name, in the table's order."""
    return {device.name: device for device in _devices()}


@cache
def _devices() -> tuple[DeviceSpec, ...]:
    rows = json.loads(_TABLE.read_text(encoding="utf-8"))["devices"]
    return tuple(DeviceSpec(**{**row, "aliases": tuple(row["aliases"])}) for row in rows)


@cache
def _by_key() -> dict[str, DeviceSpec]:
    return {_key(name): device for device in _devices() for name in (device.name, *device.aliases)}


def _key(name: str) -> str:
    """Letters and digits alone, without the maker's name."""
    return _MAKERS.sub("", re.sub(r"[^a-z0-9]", "", name.lower()))

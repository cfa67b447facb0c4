"""The table of devices: figures of public data sheets, written down here a second time for some."""

from __future__ import annotations

import pytest

from batchtwin.sim.facts.device import DeviceSpec, find_device, known_devices
from batchtwin.sim.facts.errors import FactsError

ASKED = [
    *("A10", "A100-40GB", "A100-80GB", "A800", "H100", "H100-PCIe", "H200", "B200", "L4", "L40S", "RTX-3090"),
    *("RTX-4090", "RTX-5090", "RTX-PRO-6000", "V100", "T4", "MI300X", "MI325X", "GB10"),
]
GIB = 2**30


@pytest.mark.parametrize("name", ASKED)
def test_the_device_is_there_with_sources(name: str) -> None:
    device = find_device(name)
    assert device.source
    assert device.memory_source
    assert 10 * GIB < device.memory_bytes < 300 * GIB


@pytest.mark.parametrize("device", known_devices().values(), ids=known_devices().keys())
def test_figures_are_of_one_order(device: DeviceSpec) -> None:
    """FP8 is twice 16 bits where there is any, and a step over all memory takes 5 to 500 ms."""
    assert 0.005 < device.memory_bytes / device.memory_bytes_per_s < 0.5
    if device.fp8_flops_per_s:
        assert 1.9 < device.fp8_flops_per_s / device.flops_per_s("bfloat16") < 2.1


@pytest.mark.parametrize(
    ("name", "gb_per_s", "teraflops"),
    [
        ("A100-40GB", 1555, 312),
        ("A100", 2039, 312),
        ("H100", 3350, 989),
        ("H200", 4800, 989),
        ("L4", 300, 121),
        ("RTX 3090", 936, 71),
        ("MI300X", 5300, 1307),
    ],
)
def test_bandwidth_and_arithmetic_are_the_data_sheets(name: str, gb_per_s: float, teraflops: float) -> None:
    device = find_device(name)
    assert device.memory_bytes_per_s / 1e9 == pytest.approx(gb_per_s)
    assert device.flops_per_s("bfloat16") / 1e12 == pytest.approx(teraflops, rel=0.001)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("nvidia geforce rtx 4090", "RTX-4090"),
        ("RTXPRO6000", "RTX-PRO-6000"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("Tesla T4", "T4"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_names_are_found_as_drivers_write_them(written: str, name: str) -> None:
    assert find_device(written).name == name


def test_no_two_devices_share_a_name() -> None:
    names = [name.lower() for device in known_devices().values() for name in (device.name, *device.aliases)]
    assert len(names) == len(set(names))
    assert all(find_device(name).name == device.name for device in known_devices().values() for name in device.aliases)


def test_an_unknown_device_is_told_what_is_close() -> None:
    with pytest.raises(FactsError, match=r"no device 'H300'.*did you mean H\d00"):
        find_device("H300")


@pytest.mark.parametrize(
    ("name", "device_class"),
    [
        ("H100", "large_gpu"),
        ("H200", "large_gpu"),
        ("A100-80GB", "gpu"),
        ("A800", "large_gpu"),
        ("GB10", "gpu"),
        ("RTX-4090", "gpu"),
        ("B200", "huge_gpu"),
        ("MI300X", "huge_gpu"),
    ],
)
def test_the_class_decides_as_vllm_does(name: str, device_class: str) -> None:
    """vLLM 0.33 goes by total memory and by whether the name holds "a100" (an A800's does not)."""
    assert find_device(name).device_class == device_class


def test_a_device_without_bfloat16_computes_in_float16() -> None:
    assert find_device("T4").flops_per_s("bfloat16") == 65e12
    assert find_device("A100").flops_per_s("fp8") == 312e12

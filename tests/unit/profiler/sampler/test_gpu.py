"""GPUs, with a stand-in for NVIDIA's driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.profiler.sampler.gpu import Gpus
from headrace.runs.resource_files import NAMES


class NVMLError(Exception):
    """As pynvml's."""


def driver(**changes: Any) -> Any:
    """Return a stand-in for the module pynvml, of two GPUs."""

    def refuse(*_: Any) -> Any:
        raise NVMLError("Not Supported")

    values: dict[str, Any] = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=50, memory=25),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=7 << 30),
        "nvmlDeviceGetClockInfo": lambda *_: 1980,
        "nvmlDeviceGetPowerUsage": lambda _: 350_500,
        "nvmlDeviceGetTemperature": lambda *_: 61,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x4 | 0x40,
    }
    refused = dict.fromkeys(changes.pop("refused", ()), refuse)
    return SimpleNamespace(**(values | changes | refused))


def test_values_are_in_base_units() -> None:
    """Percent, megahertz and milliwatts become ratios, hertz and watts; each reason for a low clock has its own name."""
    gpus = Gpus(driver())
    measured = gpus.sample()
    assert set(measured) == {"gpu0", "gpu1"}
    assert measured["gpu0"] == {
        "utilization_ratio": 0.5,
        "memory_utilization_ratio": 0.25,
        "memory_bytes": 7 << 30,
        "sm_clock_hertz": 1.98e9,
        "power_watts": 350.5,
        "temperature_celsius": 61,
        "throttled_by_power": 1.0,
        "throttled_by_heat": 1.0,
        "throttled_by_hardware": 0.0,
    }
    assert set(measured["gpu0"]) <= set(NAMES)
    assert gpus.not_measured == {}


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    """A part of a GPU (MIG) tells no utilization: that is said, and the rest is there."""
    gpus = Gpus(driver(refused=["nvmlDeviceGetUtilizationRates"]))
    for _ in range(2):
        assert "utilization_ratio" not in gpus.sample()["gpu1"]
    assert gpus.not_measured == {"gpu0 utilization": "Not Supported", "gpu1 utilization": "Not Supported"}
    assert gpus.sample()["gpu0"]["power_watts"] == 350.5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"refused": ["nvmlInit"]}, "cannot be asked: Not Supported"),
        ({"refused": ["nvmlDeviceGetCount"]}, "cannot be asked: Not Supported"),
        ({"nvmlDeviceGetCount": lambda: 0}, "lists no GPU"),
    ],
)
def test_without_a_gpu_the_reason_is_told(changes: dict[str, Any], reason: str) -> None:
    """No driver, or none that answers, or no GPU: no values, and why."""
    gpus = Gpus(driver(**changes))
    assert gpus.sample() == {}
    assert reason in gpus.not_measured["gpu"]
    gpus.close()


@pytest.mark.gpu
def test_a_real_gpu_tells_its_memory() -> None:
    """On a machine with an NVIDIA GPU the driver answers."""
    gpus = Gpus()
    measured = gpus.sample()
    gpus.close()
    assert (measured["gpu0"]["memory_bytes"] or 0) > 0
    assert (measured["gpu0"]["power_watts"] or 0) > 0

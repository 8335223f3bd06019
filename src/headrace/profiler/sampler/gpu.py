"""What NVIDIA GPUs do, asked of the driver through nvidia-ml-py (module `pynvml`), where there is one.

References:
    NVIDIA Management Library API reference: nvmlUtilization_t, nvmlDeviceGetCurrentClocksEventReasons.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

#: Why a clock is held down: bits of nvmlClocksEventReasons.
_BY_POWER = 0x4  # SwPowerCap
_BY_HEAT = 0x20 | 0x40  # SwThermalSlowdown, HwThermalSlowdown
_BY_HARDWARE = 0x8 | 0x80  # HwSlowdown, HwPowerBrakeSlowdown


class Gpus:
    """Samples all GPUs that the driver lists; `close` it.

    Attributes:
        not_measured: {what: why}.
    """

    def __init__(self, nvml: Any = None) -> None:
        """Ask the driver which GPUs there are.

        Args:
            nvml: The module `pynvml`, or what stands for it.
        """
        self.not_measured: dict[str, str] = {}
        self._devices: list[tuple[str, Any]] = []
        self._nvml = nvml
        try:
            if nvml is None:
                self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
        except ImportError:
            self._nvml = None
            self.not_measured["gpu"] = "the package nvidia-ml-py is not installed"
            return
        except Exception as error:  # the driver's library is missing, or does not answer
            self._nvml = None
            self.not_measured["gpu"] = f"NVIDIA's driver cannot be asked: {error}"
            return
        for number in range(count):
            try:
                self._devices.append((f"gpu{number}", self._nvml.nvmlDeviceGetHandleByIndex(number)))
            except self._nvml.NVMLError as error:
                self.not_measured[f"gpu{number}"] = str(error)
        if not self._devices and not self.not_measured:
            self.not_measured["gpu"] = "NVIDIA's driver lists no GPU"

    def sample(self) -> dict[str, dict[str, float | None]]:
        """Return {scope: {name: value}} of each GPU; what a GPU does not tell is left out."""
        return {scope: self._sample(scope, device) for scope, device in self._devices}

    def close(self) -> None:
        """Let go of the driver."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None
            self._devices = []

    def _sample(self, scope: str, device: Any) -> dict[str, float | None]:
        nvml = self._nvml
        measured: dict[str, float | None] = {}
        self._ask(scope, "utilization", measured, lambda: _utilization(nvml.nvmlDeviceGetUtilizationRates(device)))
        self._ask(scope, "memory", measured, lambda: {"memory_bytes": nvml.nvmlDeviceGetMemoryInfo(device).used})
        self._ask(
            scope,
            "sm_clock",
            measured,
            lambda: {"sm_clock_hertz": nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM) * 1e6},
        )
        self._ask(scope, "power", measured, lambda: {"power_watts": nvml.nvmlDeviceGetPowerUsage(device) / 1e3})
        self._ask(
            scope,
            "temperature",
            measured,
            lambda: {"temperature_celsius": nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)},
        )
        self._ask(
            scope,
            "throttling",
            measured,
            lambda: _read_throttling(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)),
        )
        return measured

    def _ask(
        self, scope: str, what: str, measured: dict[str, float | None], question: Callable[[], dict[str, float]]
    ) -> None:
        """Add an answer; where this GPU gives none, say why once."""
        if (key := f"{scope} {what}") in self.not_measured:
            return
        try:
            measured |= question()
        except self._nvml.NVMLError as error:
            self.not_measured[key] = str(error)


def _utilization(rates: Any) -> dict[str, float]:
    return {"utilization_ratio": rates.gpu / 100, "memory_utilization_ratio": rates.memory / 100}


def _read_throttling(reasons: int) -> dict[str, float]:
    return {
        "throttled_by_power": float(bool(reasons & _BY_POWER)),
        "throttled_by_heat": float(bool(reasons & _BY_HEAT)),
        "throttled_by_hardware": float(bool(reasons & _BY_HARDWARE)),
    }

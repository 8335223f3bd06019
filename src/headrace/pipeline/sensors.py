"""What a run uses of its Plan's `[budget]`: memory, power and heat, as this machine tells them.

Another sensor is another class with `name`, `not_measured` and `read`.

References:
    Linux kernel: filesystems/proc.rst (`VmRSS`, `VmSwap`), accounting/psi.rst, admin-guide/cgroup-v2.rst (`memory.current`),
    power/powercap (`energy_uj`), hwmon/sysfs-interface.rst (`power1_input` in microwatts; INA219 and INA226 too),
    driver-api/thermal (`temp` in thousandths of a degree).
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from headrace.base.budget import BudgetPlan
from headrace.base.units import format_number, format_size
from headrace.runs.hardware import control_groups, memory_limit

#: `over`: the budget is exceeded; `clear`: well below it; `near`: between these.
State = Literal["over", "near", "clear"]

#: Shares of the memory at which it is short, and well below.
_OVER, _CLEAR = 0.9, 0.75
#: Share of the time in which tasks waited for memory; pages a second that had to be read again while less than this share of
#: the machine's memory was available.
_PRESSURE, _FAULTS_PER_SECOND, _AVAILABLE = 0.1, 20.0, 0.08
#: Rates are taken over so long.
_RATE_SECONDS = 1.0
#: Below this share of the watts, and so many degrees below the limit, it is clear.
_CLEAR_WATTS, _CLEAR_DEGREES = 0.8, 5.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What a sensor says."""

    state: State
    says: str
    """For people: `the run uses 470 MB of 512 MB`."""


class Sensor(Protocol):
    """Measures one thing that a budget bounds.

    Attributes:
        name: As in the Plan.
        not_measured: Why it cannot be measured here; empty: it can.
    """

    name: str
    not_measured: str

    def read(self, now: float) -> Reading | None:
        """Return what is so now, in seconds of a steady clock; None: it cannot be told (yet)."""
        ...


def open_sensors(budget: BudgetPlan, processes: Callable[[], Collection[int]], root: Path = Path("/")) -> list[Sensor]:
    """Return a sensor for each thing that the budget bounds.

    Args:
        budget: Of the Plan; its memory is this process's part.
        processes: Returns the ids of the run's other processes.
        root: Where `proc` and `sys` are mounted.
    """
    sensors: list[Sensor] = []
    if budget.memory_bytes is not None:
        sensors.append(MemorySensor(budget.memory_bytes, processes, root))
    if budget.watts is not None:
        sensors.append(PowerSensor(budget.watts, root))
    if budget.temperature is not None:
        sensors.append(TemperatureSensor(budget.temperature, root))
    return sensors


class MemorySensor:
    """Memory of the run's processes, of their control group, and whether the machine is short of it.

    Args:
        limit: Bytes.
        processes: Returns the ids of the run's other processes.
        root: Where `proc` and `sys` are mounted.
    """

    name = "memory"

    def __init__(self, limit: int, processes: Callable[[], Collection[int]] = tuple, root: Path = Path("/")) -> None:
        self.limit = limit
        self._processes = processes
        self._proc = root / "proc"
        groups = control_groups(root / "sys/fs/cgroup", _text(self._proc / "self/cgroup"))
        self._groups = [(group, most) for group in groups if (most := memory_limit(group)) is not None]
        self._pressure, self._faults = _Rate(), _Rate()
        self.not_measured = "" if _kilobytes(self._proc / "self/status") else "the kernel does not tell (no /proc)"

    def used_bytes(self) -> int:
        """Return the memory of the run's processes, with what was swapped out; pages that children share count once."""
        own = _kilobytes(self._proc / "self/status")
        total = own.get("VmRSS", 0) + own.get("VmSwap", 0)
        for process in set(self._processes()) - {os.getpid()}:
            child = _kilobytes(self._proc / str(process) / "status")
            total += child.get("RssAnon", 0) + child.get("VmSwap", 0)
        return total * 1024

    def read(self, now: float) -> Reading | None:
        """Return how much memory is used; see `Sensor.read`."""
        used = self.used_bytes()
        if not used:
            return None
        shortage = self._find_shortage(now)
        if shortage:
            return Reading("over", shortage)
        shares = {used / self.limit: f"the run uses {format_size(used)} of {format_size(self.limit)}"}
        for group, most in self._groups:
            of_group = _group_bytes(group)
            if of_group is not None:
                shares[of_group / most] = f"its control group uses {format_size(of_group)} of {format_size(most)}"
        share = max(shares)
        return Reading("over" if share >= _OVER else "clear" if share <= _CLEAR else "near", shares[share])

    def _find_shortage(self, now: float) -> str:
        """Return how the machine shows that memory is short; empty: it does not."""
        pressure = self._pressure.growth(_pressure_seconds(_text(self._proc / "pressure/memory")), now)
        if pressure is not None and pressure >= _PRESSURE:
            return f"tasks wait for memory for {pressure:.0%} of the time"
        faults = self._faults.growth(float(resource.getrusage(resource.RUSAGE_SELF).ru_majflt), now)
        machine = _kilobytes(self._proc / "meminfo")
        available = machine.get("MemAvailable", 1) / max(1, machine.get("MemTotal", 1))
        if faults is not None and faults >= _FAULTS_PER_SECOND and available < _AVAILABLE:
            return f"{faults:.0f} pages a second have to be read again"
        return ""


class PowerSensor:
    """Power of the machine: what the processor counts (RAPL), else what meters on the board say.

    Args:
        limit: Watts.
        root: Where `sys` is mounted.
    """

    name = "watts"

    def __init__(self, limit: float, root: Path = Path("/")) -> None:
        self._limit = limit
        packages = sorted((root / "sys/class/powercap").glob("intel-rapl:[0-9]*/energy_uj"))
        # Parts of a package (`intel-rapl:0:0`) are in its own counter.
        counters = [file for file in packages if file.parent.name.count(":") == 1 and _number(file) is not None]
        self._counters = {file: _Rate() for file in counters}
        meters = sorted((root / "sys/class/hwmon").glob("hwmon*/power*_input"))
        self._meters = [file for file in meters if _number(file) is not None]
        is_told = bool(self._counters or self._meters)
        self.not_measured = "" if is_told else "this machine has no meter that can be read (RAPL, hwmon, INA)"

    def read(self, now: float) -> Reading | None:
        """Return the power; see `Sensor.read`."""
        found: list[float | None]
        if self._counters:
            found = [
                None if energy is None else rate.growth(energy / 1e6, now)
                for file, rate in self._counters.items()
                for energy in [_number(file)]
            ]
        else:
            found = [None if power is None else power / 1e6 for file in self._meters for power in [_number(file)]]
        told = [watts for watts in found if watts is not None]
        if not told:
            return None
        watts, limit = sum(told), self._limit
        state: State = "over" if watts > limit else "clear" if watts <= _CLEAR_WATTS * limit else "near"
        return Reading(state, f"the machine takes {format_number(watts)} W of {format_number(limit)} W")


class TemperatureSensor:
    """The hottest part of the machine.

    Args:
        limit: Degrees Celsius.
        root: Where `sys` is mounted.
    """

    name = "temperature"

    def __init__(self, limit: float, root: Path = Path("/")) -> None:
        self._limit = limit
        zones = sorted((root / "sys/class/thermal").glob("thermal_zone*/temp"))
        others = sorted((root / "sys/class/hwmon").glob("hwmon*/temp*_input"))
        self._files = [file for file in (*zones, *others) if _number(file) is not None]
        self.not_measured = "" if self._files else "this machine has no sensor that can be read (thermal zones, hwmon)"

    def read(self, now: float) -> Reading | None:
        """Return the heat; see `Sensor.read`."""
        told = [thousandths / 1000 for file in self._files if (thousandths := _number(file)) is not None]
        if not told:
            return None
        degrees, limit = max(told), self._limit
        state: State = "over" if degrees >= limit else "clear" if degrees <= limit - _CLEAR_DEGREES else "near"
        return Reading(state, f"the machine is at {degrees:.0f} of {limit:g} degrees")


class _Rate:
    """How fast a counter grows, over about a second; one that falls began anew."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None
        self._last: float | None = None

    def growth(self, value: float | None, now: float) -> float | None:
        """Return the growth in a second; None where it cannot be told yet."""
        if value is None:
            return None
        if self._before is None or value < self._before[0]:
            self._before = (value, now)
            return self._last
        seconds = now - self._before[1]
        if seconds >= _RATE_SECONDS:
            self._last = (value - self._before[0]) / seconds
            self._before = (value, now)
        return self._last


def _group_bytes(group: Path) -> int | None:
    """Return what a control group (version 2 or 1) uses, without the files that the kernel keeps at hand and can drop."""
    for usage, prefix in (("memory.current", ""), ("memory.usage_in_bytes", "total_")):
        used = _number(group / usage)
        if used is not None:
            told = dict(_pairs(_text(group / "memory.stat")))
            return max(0, used - told.get(f"{prefix}inactive_file", 0) - told.get(f"{prefix}active_file", 0))
    return None


def _pairs(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdecimal():
            yield name, int(value)


def _pressure_seconds(text: str) -> float | None:
    """Return the seconds of `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`."""
    line = next((line for line in text.splitlines() if line.startswith("some ")), "")
    total = line.rpartition("total=")[2]
    return int(total) / 1e6 if total.isdecimal() else None


def _kilobytes(file: Path) -> dict[str, int]:
    """Return {name: kB} of a file such as /proc/meminfo; empty where it cannot be read."""
    found = {}
    for line in _text(file).splitlines():
        name, _, rest = line.partition(":")
        parts = rest.split()
        if len(parts) == 2 and parts[1] == "kB" and parts[0].isdecimal():
            found[name] = int(parts[0])
    return found


def _number(file: Path) -> int | None:
    with contextlib.suppress(ValueError):
        return int(_text(file))
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # gone, not ours to read, or a device that answers nothing now
        return ""

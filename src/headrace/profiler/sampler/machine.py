"""What the whole machine does: cores, pressure, memory, quota, disks, network. Names and units: `runs.resource_files`.

References:
    Linux kernel: Documentation/filesystems/proc.rst, accounting/psi.rst, admin-guide/cgroup-v2.rst (`cpu.stat`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from headrace.profiler.sampler.rates import Rates, number_of, table_of, text_of

Measured = dict[str, dict[str, float | None]]

#: Cores whose frequency is read: each reading asks the core.
_MAX_FREQUENCIES = 16


class MachineReader:
    """Samples the machine.

    Attributes:
        not_measured: {what: why}.
    """

    def __init__(self, process: int, root: Path = Path("/")) -> None:
        """Find out what this machine tells.

        Args:
            process: A process of the run, whose control group counts.
            root: Where `proc` and `sys` are mounted.
        """
        self.not_measured: dict[str, str] = {}
        self._rates = Rates()
        self._root = root
        self._proc = root / "proc"
        psutil.PROCFS_PATH = str(self._proc)
        self._groups = _find_throttled_groups(root / "sys/fs/cgroup", self._proc / str(process) / "cgroup")
        self._groups_seen: set[Path] = set()
        self._whole: dict[str, bool] = {}
        if not self._groups:
            self.not_measured["throttled_ratio"] = "no control group tells of a CPU quota (cpu.stat without nr_periods)"
        cores = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
        self._frequencies = sorted(cores)[:_MAX_FREQUENCIES]
        if not self._frequencies:
            self.not_measured["cpu_frequency_hertz"] = (
                "the kernel does not tell (no cpufreq; usual in virtual machines)"
            )

    def sample(self, now: float) -> Measured:
        """Return {scope: {name: value}}; None for what cannot be told (yet), and for rates the first time.

        Args:
            now: Seconds of the monotonic clock.
        """
        measured: Measured = {"machine": {}}
        for what, part in (
            ("cpu", self._cores),
            ("runnable", self._runnable),
            ("pressure", self._pressure),
            ("memory_available_bytes", self._memory),
            ("swap", self._swap),
            ("throttled_ratio", self._note_throttling),
            ("cpu_frequency_hertz", self._frequency),
            ("disks", self._disks),
            ("networks", self._networks),
        ):
            try:
                measured |= part(now, measured["machine"])
            except Exception as error:  # psutil raises whatever it meets in the kernel's files
                self.not_measured[what] = f"{type(error).__name__}: {error}"
        return measured

    def _cores(self, now: float, machine: dict[str, float | None]) -> Measured:
        measured: Measured = {}
        busy = steal = iowait = total = 0.0
        for number, times in enumerate(psutil.cpu_times(percpu=True)):
            core_busy = times.user + times.nice + times.system + times.irq + times.softirq
            core_total = core_busy + times.idle + times.iowait + times.steal
            measured[f"cpu{number}"] = {"busy_ratio": self._rates.growth(f"cpu{number}", core_busy, core_total)}
            busy, total = busy + core_busy, total + core_total
            steal, iowait = steal + times.steal, iowait + times.iowait
        if not measured:
            raise ValueError("the kernel does not tell (no cores in /proc/stat)")
        machine["cpu_busy_cores"] = self._rates.growth("busy", busy, now)
        machine["cpu_steal_ratio"] = self._rates.growth("steal", steal, total)
        machine["cpu_iowait_ratio"] = self._rates.growth("iowait", iowait, total)
        return measured

    def _runnable(self, _: float, machine: dict[str, float | None]) -> Measured:
        # "0.20 0.18 0.12 1/80 11206": running or runnable threads, of all. The sampler is one of them.
        running = (self._proc / "loadavg").read_text().partition("/")[0].split()[-1]
        machine["runnable"] = max(0, int(running) - 1)
        return {}

    def _pressure(self, now: float, machine: dict[str, float | None]) -> Measured:
        for what in ("cpu", "io", "memory"):
            name = f"{what}_pressure_ratio"
            microseconds = _pressure_total(text_of(self._proc / "pressure" / what))
            if microseconds is None:
                self.not_measured[name] = "the kernel does not tell (no /proc/pressure: CONFIG_PSI, or psi=1 at boot)"
                continue
            machine[name] = self._rates.growth(name, microseconds / 1e6, now)

        return {}

    def _memory(self, _now: float, machine: dict[str, float | None]) -> Measured:
        _, found, rest = (self._proc / "meminfo").read_text().partition("MemAvailable:")
        if not found:
            raise ValueError("the kernel does not tell (no MemAvailable in /proc/meminfo)")
        machine["memory_available_bytes"] = int(rest.split()[0]) * 1024
        return {}

    def _swap(self, now: float, machine: dict[str, float | None]) -> Measured:
        # Not by psutil: it tells 0 for swapping that the kernel does not tell.
        text = text_of(self._proc / "vmstat") or ""
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        for counter, name in (("pswpin", "swap_in_bytes_per_second"), ("pswpout", "swap_out_bytes_per_second")):
            _, found, rest = text.partition(f"\n{counter} ")  # one of 150 lines
            if found:
                machine[name] = self._rates.growth(name, int(rest.split(maxsplit=1)[0]) * page_bytes, now)
            else:
                self.not_measured[name] = f"the kernel does not tell (no {counter} in /proc/vmstat)"
        return {}

    def _note_throttling(self, now: float, machine: dict[str, float | None]) -> Measured:
        """Note in which share of the periods a quota bound, and on how many cores it stopped work, where it bound most."""
        shares, stopped = [], []
        for file in self._groups:
            table = table_of(file)
            if "nr_periods" in table:
                stopped.append(self._rates.growth((file, "stopped"), _read_stopped_seconds(table), now))
                periods, throttled = table["nr_periods"], table.get("nr_throttled", 0)
                grown = self._rates.growth(file, throttled, periods)
                # No period went by: nothing of the group ran, or it has no quota. Nothing was held back.
                if file in self._groups_seen:
                    shares.append(0.0 if grown is None else grown)
                self._groups_seen.add(file)
        machine["throttled_ratio"] = max(shares, default=None)
        machine["throttled_cpu_cores"] = max((one for one in stopped if one is not None), default=None)
        return {}

    def _frequency(self, _: float, machine: dict[str, float | None]) -> Measured:
        frequencies = [kilohertz for file in self._frequencies if (kilohertz := number_of(file)) is not None]
        machine["cpu_frequency_hertz"] = sum(frequencies) * 1000 / len(frequencies) if frequencies else None
        return {}

    def _disks(self, now: float, _: dict[str, float | None]) -> Measured:
        counters: dict[str, Any] = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        measured: Measured = {}
        for name, disk in counters.items():
            if disk.read_bytes + disk.write_bytes and self._is_whole(name):
                measured[f"disk:{name}"] = {
                    "read_bytes_per_second": self._rates.growth((name, "read"), disk.read_bytes, now),
                    "write_bytes_per_second": self._rates.growth((name, "write"), disk.write_bytes, now),
                    "busy_ratio": self._rates.growth((name, "busy"), disk.busy_time / 1e3, now),
                }
        if not measured:
            self.not_measured["disks"] = "the kernel lists no disk that was ever read or written"
        return measured

    def _is_whole(self, name: str) -> bool:
        """Return whether this is a disk and no part of one; asked once for each."""
        if name not in self._whole:
            self._whole[name] = (self._root / "sys/block" / name.replace("/", "!")).exists()
        return self._whole[name]

    def _networks(self, now: float, _: dict[str, float | None]) -> Measured:
        counters: dict[str, Any] = psutil.net_io_counters(pernic=True, nowrap=False) or {}
        return {
            f"network:{name}": {
                "receive_bytes_per_second": self._rates.growth((name, "receive"), card.bytes_recv, now),
                "send_bytes_per_second": self._rates.growth((name, "send"), card.bytes_sent, now),
            }
            for name, card in counters.items()
            if card.bytes_recv + card.bytes_sent
        }


def _read_stopped_seconds(table: Mapping[str, int]) -> float:
    """Return for how long a quota kept work from cores, summed over these, by a `cpu.stat` of version 2 or 1."""
    return table.get("throttled_usec", 0) / 1e6 + table.get("throttled_time", 0) / 1e9


def _pressure_total(text: str | None) -> int | None:
    """Return the microseconds of `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`."""
    for line in (text or "").splitlines():
        if line.startswith("some "):
            total = line.rpartition("total=")[2]
            return int(total) if total.isdecimal() else None
    return None


def _find_throttled_groups(base: Path, membership: Path) -> list[Path]:
    """Return the `cpu.stat` files that tell of a quota: of the process's control group and its parents, version 1 or 2."""
    files = [base / "cpu.stat", base / "cpu/cpu.stat"]
    for line in (text_of(membership) or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy != "0" and "cpu" not in controllers.split(","):
            continue
        folder = base if hierarchy == "0" else base / "cpu"
        for part in path.strip("/").split("/"):
            folder = folder / part
            files.append(folder / "cpu.stat")
    return [file for file in dict.fromkeys(files) if "nr_periods" in table_of(file)]

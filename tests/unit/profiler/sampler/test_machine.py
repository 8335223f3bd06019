"""The machine's resources, on made-up `/proc` and `/sys` whose rates are known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.profiler.sampler.machine import MachineReader
from headrace.runs.resource_files import NAMES

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def put(root: Path, **files: str) -> None:
    """Write files; `__` in a name stands for a slash, `DOT` for a dot, `DASH` for a dash."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("DOT", ".").replace("DASH", "-")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def stat(*cores: tuple[int, ...]) -> str:
    """Return /proc/stat of cores with (user, nice, system, idle, iowait, irq, softirq, steal), in seconds."""
    lines = [[f"cpu{number}", *[str(second * TICKS) for second in core], "0", "0"] for number, core in enumerate(cores)]
    total = ["cpu", *[str(sum(column) * TICKS) for column in zip(*cores, strict=True)], "0", "0"]
    return "\n".join(" ".join(line) for line in [total, *lines]) + "\nintr 5 1 2\nctxt 3\nprocs_running 3\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with two cores, a disk, a network card, a quota (version 2) and a frequency."""
    put(
        tmp_path,
        proc__stat=stat((10, 0, 5, 100, 2, 0, 0, 0), (20, 0, 5, 100, 2, 0, 0, 0)),
        proc__loadavg="0.20 0.18 0.12 4/80 11206\n",
        proc__pressure__cpu="some avg10=0.00 avg60=0.10 avg300=0.26 total=1000000\nfull avg10=0.00 total=7\n",
        proc__pressure__io="some avg10=0.00 avg60=0.10 avg300=0.26 total=0\nfull avg10=0.00 total=0\n",
        proc__pressure__memory="some avg10=0.00 avg60=0.10 avg300=0.26 total=0\nfull avg10=0.00 total=0\n",
        proc__meminfo="MemTotal:       100 kB\nMemFree:    7 kB\nMemAvailable:   50 kB\n",
        proc__vmstat="nr_free_pages 5\npswpin 10\npswpout 0\n",
        proc__diskstats="   8       0 sda 1 0 1000 0 1 0 2000 0 0 100 0 0 0 0 0 0 0\n"
        "   8       1 sda1 1 0 1000 0 1 0 2000 0 0 100 0 0 0 0 0 0 0\n"
        "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
        proc__net__dev="Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier\n"
        "  eth0: 5000 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0\n  idle0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
        proc__5__cgroup="0::/a/b\n",
        sys__block__sda__size="1",
        sys__block__loop0__size="1",
        sys__fs__cgroup__a__cpuDOTstat="usage_usec 5\nnr_periods 100\nnr_throttled 10\nthrottled_usec 9\n",
        sys__fs__cgroup__a__b__cpuDOTstat="usage_usec 5\nnr_periods 100\nnr_throttled 10\nthrottled_usec 9\n",
        sys__devices__system__cpu__cpu0__cpufreq__scaling_cur_freq="2000000\n",
        sys__devices__system__cpu__cpu1__cpufreq__scaling_cur_freq="3000000\n",
    )
    return tmp_path


def test_rates_are_differences_over_the_interval(root: Path) -> None:
    """Two samples two seconds apart give the rates that the counters were moved by."""
    machine = MachineReader(5, root)
    machine.sample(100.0)
    put(
        root,
        proc__stat=stat((11, 0, 5, 101, 2, 0, 0, 0), (21, 0, 5, 100, 2, 0, 0, 1)),
        proc__pressure__cpu="some avg10=0.00 avg60=0.10 avg300=0.26 total=1500000\n",
        proc__vmstat="nr_free_pages 5\npswpin 12\npswpout 0\n",
        proc__diskstats="   8       0 sda 1 0 1004 0 1 0 2008 0 0 1100 0 0 0 0 0 0 0\n",
        proc__net__dev="a\nb\n  eth0: 7000 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0\n",
        sys__fs__cgroup__a__cpuDOTstat="nr_periods 120\nnr_throttled 15\nthrottled_usec 1000009\n",
    )
    measured = machine.sample(102.0)
    assert measured["machine"] == {
        "cpu_busy_cores": 1.0,
        "cpu_steal_ratio": 0.25,
        "cpu_iowait_ratio": 0.0,
        "runnable": 3,
        "cpu_pressure_ratio": 0.25,
        "io_pressure_ratio": 0.0,
        "memory_pressure_ratio": 0.0,
        "memory_available_bytes": 50 * 1024,
        "swap_in_bytes_per_second": PAGE,
        "swap_out_bytes_per_second": 0.0,
        "throttled_ratio": 0.25,
        "throttled_cpu_cores": pytest.approx(0.5),
        "cpu_frequency_hertz": 2.5e9,
    }
    assert (measured["cpu0"], measured["cpu1"]) == ({"busy_ratio": 0.5}, {"busy_ratio": 0.5})
    assert measured["disk:sda"] == {
        "read_bytes_per_second": 1024.0,
        "write_bytes_per_second": 2048.0,
        "busy_ratio": 0.5,
    }
    assert measured["network:eth0"] == {"receive_bytes_per_second": 1000.0, "send_bytes_per_second": 0.0}
    assert set(measured) == {"machine", "cpu0", "cpu1", "disk:sda", "network:eth0"}
    assert machine.not_measured == {}


def test_every_name_is_in_the_table_of_units(root: Path) -> None:
    """What is sampled is described."""
    names = {name for values in MachineReader(5, root).sample(1.0).values() for name in values}
    assert names <= set(NAMES)


def test_the_first_sample_has_no_rates(root: Path) -> None:
    """Before a second look nothing is known of rates: None, not 0."""
    machine = MachineReader(5, root).sample(1.0)["machine"]
    assert machine["cpu_busy_cores"] is machine["cpu_pressure_ratio"] is machine["swap_in_bytes_per_second"] is None
    assert machine["throttled_ratio"] is None


def test_a_group_in_which_no_period_went_by_was_not_held_back(root: Path) -> None:
    """Without a quota the kernel counts no periods: from the second look on that is 0, and measured."""
    machine = MachineReader(5, root)
    machine.sample(1.0)
    assert machine.sample(2.0)["machine"]["throttled_ratio"] == 0.0


def test_a_quota_of_version_1(root: Path) -> None:
    """The controller `cpu` has a hierarchy of its own in version 1."""
    for file in (root / "sys/fs/cgroup").rglob("cpu.stat"):
        file.unlink()
    put(
        root,
        proc__5__cgroup="4:memory:/m\n1:cpu,cpuacct:/c\n0::/\n",
        sys__fs__cgroup__cpu__c__cpuDOTstat="nr_periods 10\nnr_throttled 0\nthrottled_time 0\n",
    )
    machine = MachineReader(5, root)
    machine.sample(1.0)
    put(root, sys__fs__cgroup__cpu__c__cpuDOTstat="nr_periods 20\nnr_throttled 10\nthrottled_time 700000000\n")
    measured = machine.sample(2.0)["machine"]
    assert measured["throttled_ratio"] == 1.0
    assert measured["throttled_cpu_cores"] == pytest.approx(0.7)


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    """Where files are missing the reasons stand in not_measured, and no value is made up."""
    machine = MachineReader(5, tmp_path)
    for time in (1.0, 2.0):
        measured = machine.sample(time)
        assert [value for values in measured.values() for value in values.values() if value is not None] == []
    assert set(machine.not_measured) == {
        "cpu",
        "disks",
        "networks",
        "memory_available_bytes",
        "throttled_ratio",
        "cpu_frequency_hertz",
        "cpu_pressure_ratio",
        "io_pressure_ratio",
        "memory_pressure_ratio",
        "runnable",
        "swap_in_bytes_per_second",
        "swap_out_bytes_per_second",
    }
    assert machine.not_measured["cpu_pressure_ratio"].startswith("the kernel does not tell")


def test_damaged_files_do_not_raise(root: Path) -> None:
    """Nonsense in the kernel's files is told, and the rest is still sampled."""
    put(
        root,
        proc__stat="cpu0 x y z\n",
        proc__loadavg="?\n",
        proc__meminfo="MemAvailable: lots kB\n",
        proc__pressure__cpu="some avg10=0.00 total=much\n",
        proc__diskstats="8 0 sda\n",
    )
    machine = MachineReader(5, root)
    machine.sample(1.0)
    measured = machine.sample(2.0)
    assert {"cpu", "disks", "cpu_pressure_ratio", "runnable", "memory_available_bytes"} <= set(machine.not_measured)
    assert measured["machine"]["io_pressure_ratio"] == 0.0

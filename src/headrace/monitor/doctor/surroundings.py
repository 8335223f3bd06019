"""Checks of kernel, container, clocks, and what else runs on the machine."""

from __future__ import annotations

import re

from headrace.monitor.doctor.check import Check
from headrace.monitor.doctor.comparing import exactly
from headrace.monitor.doctor.machine import CannotTell, Machine
from headrace.runs.formats.doctor import Value

_CONTAINERS = re.compile(r"docker|kubepods|containerd|lxc|libpod")


def _container(machine: Machine) -> Value:
    if machine.has(".dockerenv") or machine.has("run/.containerenv") or "container" in machine.environ:
        return True
    return bool(_CONTAINERS.search(machine.text("proc/1/cgroup")))


def _huge_pages(machine: Machine) -> Value:
    found = re.search(r"\[(\w+)\]", machine.text("sys/kernel/mm/transparent_hugepage/enabled"))
    if not found:
        raise CannotTell("/sys/kernel/mm/transparent_hugepage/enabled names no choice")
    return found[1]


def _pressure(machine: Machine) -> Value:
    found = re.search(r"^some .*avg60=([0-9.]+)", machine.text("proc/pressure/cpu"), re.MULTILINE)
    if not found:
        raise CannotTell("/proc/pressure/cpu has no avg60")
    return float(found[1]) / 100


def _steal(machine: Machine) -> Value:
    """Return the share of the time since the boot in which the hypervisor ran others."""
    words = machine.text("proc/stat").partition("\n")[0].split()
    numbers = [int(word) for word in words[1:9] if word.isdecimal()]
    if words[:1] != ["cpu"] or len(numbers) < 8 or not sum(numbers):
        raise CannotTell("/proc/stat does not tell")
    return numbers[7] / sum(numbers)


def _percent(ratio: float) -> str:
    return f"{ratio:.1%}"


CHECKS = (
    Check(
        name="kernel", title="kernel", weight=28, read=lambda machine: machine.hardware.kernel, compare=exactly("note"),
        why="another kernel schedules threads and charges mitigations otherwise", do="no need, unless the speed differs",
    ),
    Check(
        name="container", title="in a container", weight=25, read=_container, compare=exactly("note"),
        why="a container brings limits of its own, of processors, memory, /dev/shm and permissions",
        do="look at the limits above",
    ),
    Check(
        name="cpu_pressure_ratio", title="time in which somebody waited for a core, last minute", weight=55, read=_pressure,
        show=_percent, alone=lambda ratio: ("note", "10 % or less") if ratio > 0.1 else None,
        why="what is measured while others use the cores says little; headrace widens its intervals then",
        do="measure when the machine is quiet: `top` shows who is busy",
    ),
    Check(
        name="steal_ratio", title="time given to other virtual machines, since the boot", weight=54, read=_steal,
        show=_percent, alone=lambda ratio: ("note", "2 % or less") if ratio > 0.02 else None,
        why="the cores are promised to others as well: the same run is faster or slower by the hour",
        do="choose an instance type with cores of its own, if latencies must hold",
    ),
    Check(
        name="transparent_huge_pages", title="transparent huge pages", weight=26, read=_huge_pages, compare=exactly("note"),
        why="`always` makes models of large matrices faster and processes larger", do="set the same on both machines",
    ),
    Check(
        name="clock_synchronized", title="wall clock is synchronized", weight=42, read=lambda machine: machine.clock(),
        compare=exactly("note"), alone=lambda is_kept: None if is_kept else ("note", "yes"),
        why="signatures of callbacks and queue services are refused when the clock is minutes off, and others' deadlines are "
        "missed",
        do="run chronyd or systemd-timesyncd on the host; a virtual machine may also follow its host's clock unseen",
    ),
)  # fmt: skip

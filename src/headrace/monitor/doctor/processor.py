"""Checks of processor, cores, memory and accelerators."""

from __future__ import annotations

import re

from headrace.base.units import format_duration, format_size
from headrace.monitor.doctor.check import Check
from headrace.monitor.doctor.comparing import at_least, at_most, exactly, has_all, is_same_table
from headrace.monitor.doctor.machine import CannotTell, Machine
from headrace.runs.cpu_features import INT8_FLAGS
from headrace.runs.formats.doctor import Status, Value

#: Linux draws a clock from these without a system call. Others cost microseconds each, several times for each item.
_FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")


def _processor(machine: Machine) -> Value:
    found = {"model": machine.hardware.cpu_model or "", "id": machine.hardware.cpu_id}
    return {key: value for key, value in found.items() if value}


def _flags(machine: Machine) -> Value:
    if not machine.hardware.cpu_flags and not machine.text("proc/cpuinfo"):
        raise CannotTell("/proc/cpuinfo is empty")
    return list(machine.hardware.cpu_flags)


def _judge_flags(flags: list[str]) -> tuple[Status, str] | None:
    return None if set(flags) & set(INT8_FLAGS) else ("note", f"one of {', '.join(INT8_FLAGS)}, for int8")


def _memory(machine: Machine) -> Value:
    if machine.hardware.memory_bytes is None:
        raise CannotTell("/proc/meminfo does not tell")
    return machine.hardware.memory_bytes


def _available(machine: Machine) -> Value:
    if "MemAvailable" not in machine.meminfo:
        raise CannotTell("/proc/meminfo has no MemAvailable")
    return machine.meminfo["MemAvailable"]


def _judge_available(num_bytes: int) -> tuple[Status, str] | None:
    if num_bytes >= 2**30:
        return None
    return ("matters" if num_bytes < 200 * 2**20 else "note"), "1 GB or more"


def _swap(machine: Machine) -> Value:
    return machine.meminfo.get("SwapTotal", 0)


def _handoff(machine: Machine) -> Value:
    cost = machine.handoff().cpu_seconds
    if not cost:
        raise CannotTell("no thread could be started to measure it")
    return cost


def _driver(machine: Machine) -> Value:
    if not machine.has("proc/driver/nvidia/version"):
        return ""
    found = re.search(r"(\d+\.\d+(?:\.\d+)?)", machine.text("proc/driver/nvidia/version"))
    if not found:
        raise CannotTell("/proc/driver/nvidia/version names no version")
    return found[1]


def _governor(machine: Machine) -> Value:
    return machine.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip()


def _clock_source(machine: Machine) -> Value:
    return machine.text("sys/devices/system/clocksource/clocksource0/current_clocksource").strip()


CHECKS = (
    Check(
        name="accelerators", title="accelerators", weight=98,
        read=lambda machine: list(machine.hardware.accelerators), compare=has_all(more="note"),
        show=lambda names: ", ".join(names) or "none",
        why="a Plan for a GPU does not start without it, and its batches fit that GPU's memory and speed",
        do="give the process the GPU (container: --gpus all), or use a Plan that was proved on this machine",
    ),
    Check(
        name="nvidia_driver", title="NVIDIA driver", weight=80, read=_driver, compare=exactly(),
        why="the driver decides which CUDA and TensorRT libraries load, and which kernels they choose",
        do="install the driver that the Plan was proved with, or prove the Plan again: headrace tune",
    ),
    Check(
        name="num_cores", title="cores (affinity)", weight=96, read=lambda machine: machine.hardware.num_cores,
        compare=at_least(more="note"),
        why="workers and threads of a Plan are chosen for a number of cores: with fewer they wait for one another, with more "
        "some stay idle",
        do="give the process as many cores (taskset, --cpuset-cpus), or let `headrace tune` find the Plan for these",
    ),
    Check(
        name="cpu_quota", title="CPU quota", weight=95, read=lambda machine: machine.hardware.cpu_quota, compare=at_least(),
        show=lambda quota: "no limit" if quota is None else f"{quota:g} cores",
        why="a quota stops all threads for the rest of each period: items wait up to 100 ms for nothing",
        do="raise the limit (docker --cpus, Kubernetes limits.cpu), or tune under this one",
    ),
    Check(
        name="processor", title="processor", weight=90, read=_processor, compare=is_same_table,
        show=lambda found: found.get("model", "") + (f" ({found['id']})" if found.get("id") else ""),
        why="another processor has other speeds for every stage, so another Plan and another model variant may be best",
        do="prove the Plan here: headrace tune; and the variant: headrace ledger replay ATTEMPT",
    ),
    Check(
        name="cpu_flags", title="CPU flags", weight=92, read=_flags, compare=has_all(more="note"), alone=_judge_flags,
        why="int8, bfloat16 and wide vectors are fast only where the processor has instructions for them, and int8 may round "
        "otherwise without",
        do="choose an instance type that has them, or find the best variant for this one: headrace optimize",
    ),
    Check(
        name="memory_bytes", title="memory, or the limit of the control group", weight=88, read=_memory,
        compare=at_least(0.9), show=format_size,
        why="batches, queues and workers that fit there may not fit here, and the kernel kills what does not fit",
        do="raise the limit, or lower queue_bytes, workers and batch",
    ),
    Check(
        name="memory_available_bytes", title="memory that is free now", weight=60, read=_available, show=format_size,
        alone=_judge_available,
        why="what does not fit is swapped out or killed", do="stop what else uses it: `ps aux --sort -rss | head`",
    ),
    Check(
        name="swap_bytes", title="swap", weight=20, read=_swap, compare=exactly("note"), show=format_size,
        why="with swap a shortage of memory shows as slow items, without it as killed processes",
        do="no need, unless the latencies differ",
    ),
    Check(
        name="handoff_seconds", title="waking a thread (CPU time)", weight=40, read=_handoff, compare=at_most(3.0),
        show=format_duration,
        alone=lambda cost: ("note", "50 us or less") if cost > 100e-6 else None,
        why="each item wakes several threads; where that is dear, small items are better fused and batched",
        do="nothing by hand: headrace measures it and wakes fewer; tune on this machine",
    ),
    Check(
        name="governor", title="frequency governor", weight=50, read=_governor, compare=exactly("matters"),
        alone=lambda name: ("note", "performance") if name == "powersave" else None,
        why="a governor that saves power lowers the clock between items, which costs latency and makes measurements noisy",
        do="sudo cpupower frequency-set -g performance",
    ),
    Check(
        name="clock_source", title="clock source", weight=45, read=_clock_source, compare=exactly("note"),
        alone=lambda name: None if name in _FAST_CLOCKS else ("note", f"one of {', '.join(_FAST_CLOCKS)}"),
        why="each stage of each item reads the clock four times; a slow source costs microseconds each time",
        do="echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource, where it is available",
    ),
)  # fmt: skip

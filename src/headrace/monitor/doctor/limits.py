"""Checks of what the system lets this process have: files, processes, disk, shared memory, permissions."""

from __future__ import annotations

from headrace.base.units import format_size
from headrace.monitor.doctor.check import Check, Judge
from headrace.monitor.doctor.comparing import at_least, exactly
from headrace.monitor.doctor.machine import CannotTell, Machine
from headrace.runs.formats.doctor import Status, Value

#: What Docker gives a container unless told otherwise, in bytes.
USUAL_SHM_BYTES = 64 * 2**20


def judge_least(enough: int, needed: int, unit: str) -> Judge:
    """Return what judges a number by what is enough, and by what is needed for most pipelines to run at all."""

    def judge(value: int | None) -> tuple[Status, str] | None:
        if value is None or value >= enough:
            return None
        return ("matters" if value < needed else "note"), f"{enough:,}{unit} or more"

    return judge


def _processes(machine: Machine) -> Value:
    """Return the least of the user's limit and the control group's."""
    limits = [machine.limit("Max processes")]
    for file in ("sys/fs/cgroup/pids.max", "sys/fs/cgroup/pids/pids.max"):
        if machine.has(file):
            text = machine.text(file).strip()
            limits.append(int(text) if text.isdecimal() else None)
    return min((limit for limit in limits if limit is not None), default=None)


def _judge_disk(num_bytes: int) -> tuple[Status, str] | None:
    if num_bytes >= 10**9:
        return None
    return ("matters" if num_bytes < 10**8 else "note"), "1 GB or more"


def _shm(machine: Machine) -> Value:
    if not machine.has("dev/shm"):
        raise CannotTell("this system has no /dev/shm")
    return machine.disk(machine.root / "dev/shm")[1]


def _ptrace_scope(machine: Machine) -> Value:
    """Return Yama's setting; 0, no restriction, for a kernel without Yama."""
    path = "proc/sys/kernel/yama"
    return machine.number(f"{path}/ptrace_scope") if machine.has(path) or not machine.has("proc/sys/kernel") else 0


CHECKS = (
    Check(
        name="open_files", title="open files (ulimit -n)", weight=85, read=lambda machine: machine.limit("Max open files"),
        compare=at_least(), alone=judge_least(1024, 256, ""),
        why="each download, callback and client is an open file; at the limit jobs go back to the queue, and nothing gets done",
        do="ulimit -n {enough} before the command, LimitNOFILE={enough} in its systemd unit, docker --ulimit nofile={enough}",
        enough=65536,
    ),
    Check(
        name="processes", title="processes and threads (ulimit -u, pids.max)", weight=84, read=_processes, compare=at_least(),
        alone=judge_least(512, 64, ""),
        why="each worker, each thread of the model and each download is one; at the limit a run does not start",
        do="ulimit -u {enough}, or docker --pids-limit {enough}", enough=4096,
    ),
    Check(
        name="shm_bytes", title="shared memory (/dev/shm)", weight=70, read=_shm, compare=at_least(0.9), show=format_size,
        alone=lambda size: ("note", f"more than {format_size(USUAL_SHM_BYTES)}") if size < USUAL_SHM_BYTES else None,
        why="stages that run in processes hand arrays on in shared memory; where it is full, items fail with bus errors",
        do="docker --shm-size {enough}b; in Kubernetes an emptyDir with medium: Memory at /dev/shm", enough=2**30,
    ),
    Check(
        name="disk_free_bytes", title="free disk where runs are written", weight=75,
        read=lambda machine: machine.disk(machine.folder)[0], show=format_size, alone=_judge_disk,
        why="spans, results and the ledger need room; a full disk loses measurements, and results wait",
        do="remove old run folders, or name another folder with -o",
    ),
    Check(
        name="ptrace_scope", title="ptrace scope", weight=15,
        read=_ptrace_scope, compare=exactly("note"),
        alone=lambda scope: ("note", "0 or 1") if scope > 1 else None,
        why="`headrace profile` tells waiting for the GIL from other waits only where it may look into a process",
        do="sudo sysctl kernel.yama.ptrace_scope=0 while profiling; in a container --cap-add SYS_PTRACE",
    ),
    Check(
        name="perf_event_paranoid", title="perf_event_paranoid", weight=10,
        read=lambda machine: machine.number("proc/sys/kernel/perf_event_paranoid"), compare=exactly("note"),
        why="hardware counters of `perf` are for root alone above 2; headrace does not need them",
        do="sudo sysctl kernel.perf_event_paranoid=2, if you use perf beside headrace",
    ),
)  # fmt: skip

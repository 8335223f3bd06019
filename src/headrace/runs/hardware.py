"""What a run had to work with, found without importing anything heavy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import msgspec

#: Distributions whose version can change what a run measures. Only those that are installed are recorded.
RELEVANT = (
    "av",
    "boto3",
    "msgspec",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "opencv-python",
    "opencv-python-headless",
    "openvino",
    "pillow",
    "pyarrow",
    "pycurl",
    "ray",
    "redis",
    "simplejpeg",
    "tensorrt",
    "torch",
    "torchvision",
)


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The machine as this process may use it; None where it does not tell."""

    cpu_model: str | None = None
    num_cores: int = 1
    """Cores that the process may run on (affinity)."""
    cpu_quota: float | None = None
    """Cores' worth of time that the control group allows; None for no limit."""
    memory_bytes: int | None = None
    """Memory of the machine, or the control group's limit where that is less."""
    kernel: str = ""
    python: str = ""
    accelerators: tuple[str, ...] = ()
    """NVIDIA GPUs that the driver lists."""


def find_hardware(root: Path = Path("/")) -> Hardware:
    """Return what this process may use of the machine.

    Args:
        root: Where `proc` and `sys` are mounted.
    """
    proc, cgroup = root / "proc", root / "sys/fs/cgroup"
    groups = _control_groups(cgroup, proc / "self/cgroup")
    limits = [limit for group in groups if (limit := _memory_limit(group)) is not None]
    total = _meminfo_total(_text(proc / "meminfo"))
    return Hardware(
        cpu_model=_cpu_model(_text(proc / "cpuinfo")) or platform.machine() or None,
        num_cores=len(os.sched_getaffinity(0)),
        cpu_quota=cpu_quota(cgroup, proc / "self/cgroup"),
        memory_bytes=min([*limits, *([total] if total is not None else [])], default=None),
        kernel=platform.release(),
        python=platform.python_version(),
        accelerators=_nvidia_gpus(proc / "driver/nvidia/gpus"),
    )


def find_versions() -> dict[str, str]:
    """Return {distribution: version} of installed packages that can change what a run measures; imports none of them."""
    versions = {}
    for name in RELEVANT:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpu_model(cpuinfo: str) -> str | None:
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return None


def _meminfo_total(meminfo: str) -> int | None:
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def cpu_quota(cgroup: Path, membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return how many cores' worth of time this process may use, or None without a limit.

    Args:
        cgroup: Where the control groups are mounted (version 1 or 2).
        membership: The file that names this process's groups.

    References:
        Linux kernel documentation: cgroup-v2 `cpu.max`; cgroup-v1 `cpu.cfs_quota_us` and `cpu.cfs_period_us`.
    """
    quotas = [_cpu_quota(group) for group in _control_groups(cgroup, membership)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _control_groups(base: Path, membership: Path) -> list[Path]:
    """Return the folders of this process's control group and its parents (version 2), and of version 1's controllers.

    Every level counts: a limit on a parent binds its children. Inside a container the own group is usually the root.
    """
    groups = [base, base / "cpu", base / "memory"]
    for line in _text(membership).splitlines():
        _, _, place = line.partition(":")
        controllers, _, path = place.partition(":")
        names = [name for name in controllers.split(",") if name in ("cpu", "memory")] if controllers else [""]
        for name in names:
            folder = base / name
            for part in path.strip("/").split("/"):
                folder = folder / part
                groups.append(folder)
    return groups


def _cpu_quota(group: Path) -> float | None:
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = _text(group / "cpu.cfs_quota_us").strip(), _text(group / "cpu.cfs_period_us").strip()
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", no such file, or nonsense
        return None
    return cores if cores > 0 else None


def _memory_limit(group: Path) -> int | None:
    text = _text(group / "memory.max") or _text(group / "memory.limit_in_bytes")
    try:
        limit = int(text)
    except ValueError:
        return None
    return limit if limit < 2**60 else None  # version 1 writes a huge number for no limit


def _nvidia_gpus(folder: Path) -> tuple[str, ...]:
    names = []
    for information in sorted(folder.glob("*/information")):
        for line in _text(information).splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                names.append(value.strip())
    return tuple(names)

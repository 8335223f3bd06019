"""What a run had to work with, found without importing anything heavy."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from headrace.base.formatting import pluralize
from headrace.base.registry import installed_packages
from headrace.runs.cpu_features import cpu_flags

#: Distributions whose version can change what a run measures. Recorded: those installed, and packages that bring parts.
RELEVANT = (
    "av",
    "boto3",
    "h5py",
    "msgspec",
    "numpy",
    "obstore",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "opencv-python",
    "opencv-python-headless",
    "openvino",
    "pillow",
    "psycopg",
    "pyarrow",
    "pycurl",
    "ray",
    "redis",
    "simplejpeg",
    "sqlalchemy",
    "tensorrt",
    "tokenizers",
    "torch",
    "torchvision",
)

#: Flags of /proc/cpuinfo that decide how fast a model runs, and in which precision an engine computes: vector widths, and the
#: instructions of oneDNN's and MLAS's int8, bfloat16 and float16 kernels. Others come and go with the kernel.
DECIDING_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx_vnni_int8", "avx_ne_convert",
    "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
    "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip

#: Names of /proc/cpuinfo that tell one processor from another: on x86, and on Arm, which has no "model name".
_IDENTITIES = (
    ("vendor_id", "cpu family", "model", "stepping"),
    ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),
)


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The machine as this process may use it; None where it does not tell."""

    cpu_model: str | None = None
    cpu_id: str = ""
    """Vendor, family, model and stepping as `AuthenticAMD 26/2/1`: clouds call processors of several generations by one name.
    Empty where the system does not tell, and in files that were written before it was kept."""
    cpu_flags: tuple[str, ...] = ()
    """Those of `DECIDING_FLAGS` that it has, in that order."""
    num_cores: Annotated[int, msgspec.Meta(ge=1)] = 1
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
    groups = control_groups(cgroup, _text(proc / "self/cgroup"))
    limits = [limit for group in groups if (limit := memory_limit(group)) is not None]
    total, cpu = _meminfo_total(_text(proc / "meminfo")), _first_cpu(_text(proc / "cpuinfo"))
    flags = cpu_flags(root)
    return Hardware(
        cpu_model=cpu.get("model name") or platform.machine() or None,
        cpu_id=_identity(cpu),
        cpu_flags=tuple(flag for flag in DECIDING_FLAGS if flag in flags),
        num_cores=len(os.sched_getaffinity(0)),
        cpu_quota=cpu_quota(cgroup, proc / "self/cgroup"),
        memory_bytes=min([*limits, *([total] if total is not None else [])], default=None),
        kernel=platform.release(),
        python=platform.python_version(),
        accelerators=_nvidia_gpus(proc / "driver/nvidia/gpus"),
    )


def machine_in_words(hardware: Hardware) -> str:
    """Return a machine in words: `AMD EPYC (AuthenticAMD 26/2/1; avx2 fma avx512_vnni), 2 cores, 16 GiB`."""
    cpu = "; ".join(part for part in (hardware.cpu_id, " ".join(hardware.cpu_flags)) if part)
    parts = [
        (hardware.cpu_model or "a processor") + (f" ({cpu})" if cpu else ""),
        pluralize(hardware.num_cores, "core"),
    ]
    parts += [] if hardware.cpu_quota is None else [f"at most {hardware.cpu_quota:g} of them at once"]
    parts += [] if hardware.memory_bytes is None else [f"{whole_gib(hardware.memory_bytes)} GiB"]
    return ", ".join([*parts, *hardware.accelerators])


def whole_gib(num_bytes: int) -> int:
    """Return GiB, rounded up: what a kernel keeps for itself changes with its version, the memory that is built in does not."""
    return math.ceil(num_bytes / 2**30)


def find_versions(also: Iterable[str] = ()) -> dict[str, str]:
    """Return {distribution: version} of installed packages that can change what a run measures; imports none of them.

    Args:
        also: Other distributions to look for.
    """
    versions = {}
    for name in sorted({*RELEVANT, *installed_packages(), *also}):
        try:
            version = importlib.metadata.version(name)
        except Exception:  # not installed; or half removed, and its metadata cannot be read
            continue
        if version:  # None: its metadata says none
            versions[name] = version
    return versions


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _first_cpu(cpuinfo: str) -> dict[str, str]:
    """Return what /proc/cpuinfo says of the first processor."""
    lines = (line.partition(":") for line in cpuinfo.strip().split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def _identity(cpu: Mapping[str, str]) -> str:
    for maker, *rest in _IDENTITIES:
        if maker in cpu:
            return f"{cpu[maker]} {'/'.join(cpu.get(name, '?') for name in rest)}"
    return ""


def _meminfo_total(meminfo: str) -> int | None:
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


#: Of version 2, and of version 1.
_QUOTA_FILES = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many cores this process may use, >= 1: the least of affinity, CPU quota (rounded down) and HEADRACE_CORES.

    The variable is for what shares a machine out without telling the kernel, as Ray does.

    Args:
        cgroup: Where the control groups are mounted (v1 or v2).
    """
    affinity = len(os.sched_getaffinity(0))
    quota = cpu_quota(cgroup)
    share = os.environ.get("HEADRACE_CORES", "")
    limits = [affinity, *([] if quota is None else [int(quota)]), *([int(share)] if share.isdecimal() else [])]
    return max(1, min(limits))


def cpu_quota(cgroup: Path, membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return how many cores' worth of time this process may use, or None without a limit.

    Args:
        cgroup: Where the control groups are mounted (version 1 or 2).
        membership: The file that names this process's groups.

    References:
        Linux kernel documentation: cgroup-v2 `cpu.max`; cgroup-v1 `cpu.cfs_quota_us` and `cpu.cfs_period_us`.
    """
    return CpuQuota(cgroup, membership).read()


class CpuQuota:
    """Reads the same again and again: most control groups have no file that tells, and to look for them costs most.

    Args:
        cgroup: As `cpu_quota` takes it.
        membership: As `cpu_quota` takes it.
    """

    def __init__(self, cgroup: Path, membership: Path = Path("/proc/self/cgroup")) -> None:
        self._cgroup, self._membership = cgroup, membership
        self._groups_of = ""
        self._groups: list[Path] = []

    def read(self) -> float | None:
        """Return how many cores' worth of time this process may use now, or None without a limit."""
        memberships = _text(self._membership)
        if memberships != self._groups_of or not memberships:
            self._groups_of = memberships
            groups = control_groups(self._cgroup, memberships)
            self._groups = [group for group in groups if any((group / name).exists() for name in _QUOTA_FILES)]
        quotas = [quota for group in self._groups if (quota := _cpu_quota(group)) is not None]
        return min(quotas, default=None)


def control_groups(base: Path, memberships: str) -> list[Path]:
    """Return the folders of this process's control group and its parents (version 2), and of version 1's controllers.

    Every level counts: a limit on a parent binds its children. Inside a container the own group is usually the root.
    """
    groups = [base, base / "cpu", base / "memory"]
    for line in memberships.splitlines():
        _, _, place = line.partition(":")
        controllers, _, path = place.partition(":")
        names = [name for name in controllers.split(",") if name in ("cpu", "memory")] if controllers else [""]
        for name in names:
            folder = base / name
            for part in path.strip("/").split("/"):
                folder = folder / part
                groups.append(folder)
    return list(dict.fromkeys(groups))


def _cpu_quota(group: Path) -> float | None:
    whole, *parts = _QUOTA_FILES
    quota, _, period = _text(group / whole).strip().partition(" ")
    if not quota:
        quota, period = (_text(group / name).strip() for name in parts)
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", no such file, or nonsense
        return None
    return cores if cores > 0 else None


def memory_limit(group: Path) -> int | None:
    """Return the bytes that a control group (version 1 or 2) may use; None without a limit."""
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

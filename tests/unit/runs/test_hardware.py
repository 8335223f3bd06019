"""What a run had to work with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.runs.hardware import find_hardware, find_versions, machine_in_words


def make(root: Path, files: dict[str, str]) -> Path:
    """Write files under a folder that stands for the machine's root."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_limits_of_a_version_2_control_group(tmp_path: Path) -> None:
    """The tightest limit on the way down to the own group counts."""
    root = make(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:       16000 kB\n",
            "proc/cpuinfo": "model name\t: Fast 9000\n",
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/box/memory.max": "1048576\n",
        },
    )
    hardware = find_hardware(root)
    assert (hardware.cpu_model, hardware.cpu_quota, hardware.memory_bytes) == ("Fast 9000", 1.5, 1048576)


def test_limits_of_a_version_1_control_group(tmp_path: Path) -> None:
    """The older control groups are understood, with their numbers for no limit."""
    root = make(
        tmp_path,
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    hardware = find_hardware(root)
    assert (hardware.cpu_quota, hardware.memory_bytes) == (None, None)


def test_a_nested_version_1_control_group_counts(tmp_path: Path) -> None:
    """The own group of each controller, and its parents; other controllers have no such limits."""
    root = make(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/box\n3:cpuset:/\n2:cpu,cpuacct:/pod/box\n1:name=systemd:/\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/pod/box/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/pod/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "2097152\n",
        },
    )
    hardware = find_hardware(root)
    assert (hardware.cpu_quota, hardware.memory_bytes) == (0.5, 2097152)


def test_gpus_that_the_driver_lists(tmp_path: Path) -> None:
    """GPUs are named without a library of theirs."""
    root = make(tmp_path, {"proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t NVIDIA T4\nIRQ: 1\n"})
    assert find_hardware(root).accelerators == ("NVIDIA T4",)


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    """Missing files give None, not an error."""
    assert find_hardware(tmp_path).memory_bytes is None


def test_versions_import_nothing_heavy() -> None:
    """Looking up versions does not import the libraries."""
    program = (
        "import sys; from headrace.runs.hardware import find_versions; find_versions(); "
        "print([name for name in ('onnxruntime', 'cv2', 'torch', 'boto3') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_versions_name_installed_packages_alone() -> None:
    """Every version found is text, and packages that are not installed are absent."""
    assert "numpy" in find_versions()
    assert all(find_versions().values())


X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: {family}
model\t\t: 2
model name\t: AMD EPYC
stepping\t: 1
microcode\t: 0x{microcode}
flags\t\t: fpu {flags} avx2

processor\t: 1
vendor_id\t: GenuineIntel
"""


def test_processors_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """By family, model and stepping, and by the flags that decide in which precision an engine computes; not by microcode."""
    texts = {
        "old": X86.format(family=25, microcode="a1", flags="avx512_vnni"),
        "new": X86.format(family=26, microcode="a1", flags="avx512_vnni avx_vnni"),
        "updated": X86.format(family=26, microcode="b2", flags="avx_vnni rdpid avx512_vnni"),
    }
    found = {name: find_hardware(make(tmp_path / name, {"proc/cpuinfo": text})) for name, text in texts.items()}
    assert found["old"].cpu_id == "AuthenticAMD 25/2/1"
    assert found["new"].cpu_flags == ("avx2", "avx_vnni", "avx512_vnni")
    assert found["new"] == found["updated"] != found["old"]
    assert "AMD EPYC (AuthenticAMD 26/2/1; avx2 avx_vnni avx512_vnni), " in machine_in_words(found["new"])


def test_arm_processors_are_told_by_their_part(tmp_path: Path) -> None:
    """They have no model name."""
    identity = (
        "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40\nCPU revision\t: 1\n"
    )
    text = f"processor\t: 0\nFeatures\t: asimd asimddp i8mm\n{identity}"
    hardware = find_hardware(make(tmp_path, {"proc/cpuinfo": text}))
    assert (hardware.cpu_id, hardware.cpu_flags) == ("0x41 8/0x1/0xd40/1", ("asimd", "asimddp", "i8mm"))

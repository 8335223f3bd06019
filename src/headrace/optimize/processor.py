"""What this machine's processor computes in fast, as Linux tells it."""

from __future__ import annotations

from pathlib import Path

#: Flags of /proc/cpuinfo that decide which precision is worth trying.
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
INT8_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni", "i8mm", "asimddp")


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """Return the processor's flags; none where the system does not tell.

    Args:
        root: Where `proc` is mounted.
    """
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return frozenset()
    lines = (line.partition(":") for line in text.splitlines())
    return frozenset(
        flag for name, _, flags in lines if name.strip() in ("flags", "Features") for flag in flags.split()
    )

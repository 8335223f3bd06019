"""What this machine's processor computes in fast, as Linux tells it."""

from __future__ import annotations

from pathlib import Path

#: Flags of /proc/cpuinfo that decide which precision is worth trying.
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
FLOAT16_FLAGS = ("amx_fp16", "avx512_fp16", "fphp")
INT8_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni", "i8mm", "asimddp")
_FLAGS = {"bf16": BFLOAT16_FLAGS, "f16": FLOAT16_FLAGS}
_NAMES = {"bf16": "bfloat16", "f16": "half precision"}


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


def explain_slowness(precision: str, flags: frozenset[str]) -> str | None:
    """Return why a precision is no gain on a processor; None if it may be one, or the system tells no flags.

    Args:
        precision: As an engine's option: `f32`, `bf16`, `f16`.
        flags: Of the processor.
    """
    wanted = _FLAGS.get(precision, ())
    if not wanted or not flags or flags.intersection(wanted):
        return None
    return f"this processor does not compute in {_NAMES[precision]} (none of {', '.join(wanted)} among its flags)"

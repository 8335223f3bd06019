"""What this machine's processor computes in fast; it stands in `headrace.runs.processor`, which gates may import too."""

from headrace.runs.processor import BFLOAT16_FLAGS, INT8_FLAGS, cpu_flags

__all__ = ["BFLOAT16_FLAGS", "INT8_FLAGS", "cpu_flags"]

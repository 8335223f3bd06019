"""Kept for `benchmarks/trained_models.py` alone, whose text is part of its cache's keys; see `headrace.runs.processor`."""

from headrace.runs.processor import BFLOAT16_FLAGS, cpu_flags

__all__ = ["BFLOAT16_FLAGS", "cpu_flags"]

"""Memory of a training, for a terminal of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, wrap_lines
from headrace.base.units import format_size

if TYPE_CHECKING:
    from headrace.runs.formats.training_memory import MemoryProfile


def memory_text(memory: MemoryProfile | None) -> list[str]:
    """Return the paragraph: the peak, what the model and its optimizer hold, and what is resident in each phase."""
    if memory is None:
        return []
    lines = wrap_lines([_head(memory)])
    if memory.owned is not None:
        owned = memory.owned
        rows = [
            (name, format_size(count))
            for name, count in (
                ("parameters", owned.parameters),
                ("gradients", owned.gradients),
                ("buffers", owned.buffers),
                ("optimizer state", owned.optimizer),
            )
            if count
        ]
        lines += [f"  {line}" for line in align_columns(rows)]
    if memory.resident_bytes:
        phases = ", ".join(f"{phase} {format_size(count)}" for phase, count in memory.resident_bytes.items())
        lines += wrap_lines([f"Resident in the middle of the samples: {phases}"])
    return lines


def _head(memory: MemoryProfile) -> str:
    text = f"Memory: at most {format_size(memory.peak_bytes)} resident"
    if memory.limit_bytes is not None:
        text += f" of {format_size(memory.limit_bytes)}"
    if memory.device_peak_bytes is not None:
        text += f", {format_size(memory.device_peak_bytes)} on the device"
    if memory.swapped_bytes:
        text += f", {format_size(memory.swapped_bytes)} in swap"
    return text

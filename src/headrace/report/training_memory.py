"""The part of a training's page on memory."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.report.markup import Html, note, table
from headrace.report.numbers import size
from headrace.report.section import Section
from headrace.runs.formats.training_memory import MemoryProfile


def memory_section(memory: MemoryProfile | None) -> Section | None:
    """Return what is held by whom, and what was resident in each phase; None where memory was not sampled."""
    if memory is None:
        return None
    rows: list[Sequence[str | Html | None]] = [["peak of the process", size(memory.peak_bytes)]]
    if memory.owned is not None:
        rows += [
            [name, size(held)]
            for name, held in (
                ("parameters", memory.owned.parameters),
                ("gradients", memory.owned.gradients),
                ("buffers", memory.owned.buffers),
                ("optimizer state", memory.owned.optimizer),
            )
            if held
        ]
    rows += [[f"resident in {phase}", size(held)] for phase, held in memory.resident_bytes.items()]
    if memory.swapped_bytes:
        rows.append(["most in swap", size(memory.swapped_bytes)])
    if memory.device_peak_bytes is not None:
        rows.append(["peak on the device", size(memory.device_peak_bytes)])
    says = "Counted from tensors; what is resident in a phase is the middle of its samples, libraries included."
    return Section(anchor="memory", title="Memory", parts=[note(says), table(["what", "size"], rows, caption="Memory")])

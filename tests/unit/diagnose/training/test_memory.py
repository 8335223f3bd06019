"""Memory of trainings that never were: samples of which every number is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.cli.training_text import profile_text
from headrace.diagnose.training.memory import growth
from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training
from headrace.runs.formats.diagnosis import DiagnosisDocument
from headrace.runs.formats.training_memory import MemoryRecord, OwnedBytes
from headrace.runs.reader import read_run
from headrace.runs.training_phases import Phase
from tests.unit.diagnose.training.made_runs import MadeRun

MB = 10**6
MODEL = {Phase.WAIT: 0.1, Phase.FORWARD: 3.0, Phase.BACKWARD: 6.0, Phase.OPTIMIZER: 0.5, Phase.AFTER: 0.1}


def record(
    *, faults: int = 0, stalled: float | None = 0.0, swapped: int = 0, grows: int = 0, count: int = 41
) -> dict[str, Any]:
    """Return samples of ten seconds.

    Args:
        faults: Major faults a second.
        stalled: Share of the time stalled for memory; None: not counted.
        swapped: Bytes in swap.
        grows: Bytes between two samples.
        count: Samples.
    """
    quarters = range(count)
    found = MemoryRecord(
        at_ns=tuple(one * 250_000_000 for one in quarters),
        steps=tuple(one * 2 for one in quarters),
        phases=tuple("backward" if one % 2 else "forward" for one in quarters),
        resident_bytes=tuple((600 if one % 2 else 500) * MB + one * grows for one in quarters),
        swapped_bytes=(swapped,) * count,
        major_faults=tuple(7 + one * faults // 4 for one in quarters),
        stalled_us=None if stalled is None else tuple(9 + int(one * stalled * 250_000) for one in quarters),
        owned=OwnedBytes(parameters=40 * MB, gradients=40 * MB, buffers=0, optimizer=80 * MB),
        peak_bytes=700 * MB,
    )
    converted: dict[str, Any] = msgspec.to_builtins(found)
    return converted


def analyse(path: Path, memory: object, *, blocked: float = 0.0) -> tuple[TrainingAnalysis, DiagnosisDocument]:
    """Return what is found in 80 steps of 9.7 ms whose phases are blocked for this share."""
    run = MadeRun(path / "run")
    for _ in range(80):
        run.stretch(MODEL, cpu_share=1 - blocked)
    analysis = TrainingAnalysis(read_run(run.finish(memory=memory)))
    return analysis, diagnose_training(analysis)


def test_waiting_for_pages_is_memory_pressure(tmp_path: Path) -> None:
    """Half of each step is blocked, the kernel counts 30 % of stalls: these are what would be saved at most."""
    memory = record(faults=400, stalled=0.3, swapped=90 * MB)
    found = analyse(tmp_path, memory, blocked=0.5)[1].first
    assert found.title == "MEMORY_PRESSURE (swapping)"
    assert found.gain == pytest.approx(1 / (1 - 0.3), rel=0.02)  # the first step is not counted
    assert {line.name: line.value for line in found.evidence}["major_faults"] == 400.0
    assert found.remedies


@pytest.mark.parametrize(
    ("memory", "blocked"),
    [
        (record(faults=400, stalled=0.3), 0.0),
        (record(faults=400, stalled=0.01), 0.5),
        (record(faults=8, stalled=0.3), 0.5),
        (record(faults=400, stalled=None), 0.5),
        (None, 0.5),
    ],
    ids=["nothing is blocked", "no stalls", "few faults", "stalls not counted", "not sampled"],
)
def test_pressure_needs_all_that_shows_it(tmp_path: Path, memory: object, blocked: float) -> None:
    """Stalls may be those of another program, faults those of a mapped file, and blocked time that of other threads."""
    assert analyse(tmp_path, memory, blocked=blocked)[1].first.verdict != "MEMORY_PRESSURE"


def test_the_profile_says_who_holds_memory(tmp_path: Path) -> None:
    """What tensors hold, the middle of the samples of each phase, and the peak."""
    analysis, _ = analyse(tmp_path, record())
    memory = analysis.document.ranks[0].memory
    assert memory is not None
    assert memory.resident_bytes == {"forward": 500 * MB, "backward": 600 * MB}
    text = profile_text(analysis.document)
    assert "Memory: at most 700 MB resident" in text
    assert [line.split() for line in text.splitlines() if "optimizer state" in line] == [
        ["optimizer", "state", "80.0", "MB"]
    ]


def test_memory_that_grows_is_a_warning(tmp_path: Path) -> None:
    """A step adds 10 MB, whatever phase a sample is taken in."""
    analysis, found = analyse(tmp_path, record(grows=20 * MB))
    memory = analysis.document.ranks[0].memory
    assert memory is not None
    assert memory.growth_bytes_per_step == pytest.approx(10 * MB, rel=0.01)
    assert any("memory grows by 10.0 MB a step" in text for text in found.warnings)


def test_memory_that_is_filled_once_does_not_grow(tmp_path: Path) -> None:
    """An allocator that takes 300 MB in the first steps, single peaks, and what stays as it is."""
    steps = np.arange(40.0)
    filled = 500e6 + np.where(steps < 8, 0.0, 300e6)
    peaks = 500e6 + np.where(steps % 7 == 0, 400e6, 0.0)
    assert growth(steps, filled) is None
    assert growth(steps, peaks) is None
    assert growth(steps[:10], 500e6 + steps[:10] * 50e6) is None
    assert not any("memory grows" in text for text in analyse(tmp_path, record())[1].warnings)


def test_samples_that_contradict_themselves_are_none(tmp_path: Path) -> None:
    """A file that another program wrote, or with columns of different length, leaves memory out."""
    for name, memory in {"text": "much", "short": record() | {"steps": [1, 2]}, "empty": record(count=0)}.items():
        assert analyse(tmp_path / name, memory)[0].document.ranks[0].memory is None

"""Samples of the memory of a process, from files that are given and from the process itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.runs.training_phases import Phase
from headrace.train import memory_sampler
from headrace.train.line_sampler import LineSampler
from headrace.train.memory_sampler import MemorySampler


def made_proc(folder: Path, *, pressure: bool = True) -> Path:
    """Return a /proc of one process whose name is as bad as can be."""
    (folder / "self").mkdir(parents=True)
    (folder / "self/status").write_text("VmHWM:\t 900 kB\nVmRSS:\t 800 kB\nVmSwap:\t 30 kB\n")
    (folder / "self/stat").write_text("7 (a) b (c)) R 1 7 7 0 -1 4194304 100 0 42 0 5 6\n")
    if pressure:
        (folder / "pressure").mkdir()
        (folder / "pressure/memory").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=341611\nfull total=2\n")
    return folder


def sample(proc: Path) -> MemorySampler:
    """Return a sampler that was closed at once."""
    sampler = MemorySampler(lambda: (3, Phase.BACKWARD), proc=proc)
    sampler.close()
    return sampler


def test_what_the_kernel_tells_is_kept(tmp_path: Path) -> None:
    """Kilobytes of three lines, the major faults, stalls; each sample with the step and the phase."""
    record = sample(made_proc(tmp_path)).describe()
    assert record is not None
    assert set(zip(record.resident_bytes, record.swapped_bytes, record.major_faults, strict=True)) == {
        (800 * 1024, 30 * 1024, 42)
    }
    assert record.stalled_us is not None
    assert set(record.stalled_us) == {341611}
    assert record.peak_bytes == 900 * 1024
    assert set(zip(record.steps, record.phases, strict=True)) == {(3, "backward")}


def test_a_kernel_without_psi_or_proc_leaves_out_what_it_does_not_tell(tmp_path: Path) -> None:
    """Stalls are then not known; without /proc nothing is."""
    record = sample(made_proc(tmp_path / "old", pressure=False)).describe()
    assert record is not None
    assert record.stalled_us is None
    assert sample(tmp_path / "none").describe() is None


def test_a_long_training_has_as_many_samples_as_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the most, every second one is dropped, and they come half as often."""
    monkeypatch.setattr(memory_sampler, "MOST_SAMPLES", 8)
    monkeypatch.setattr(memory_sampler, "PAUSE_SECONDS", 0.0001)
    steps = iter(range(10**9))
    sampler = MemorySampler(lambda: (next(steps), Phase.WAIT), proc=made_proc(tmp_path))
    _wait_until(lambda: (record := sampler.describe()) is not None and record.steps[-1] >= 40)
    sampler.close()
    record = sampler.describe()
    assert record is not None
    assert len(record.steps) < 8
    assert record.steps[0] == 0
    assert record.steps == tuple(sorted(record.steps))


def test_memory_that_is_not_the_trainings_is_not_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While allocations are noted there are no samples, so that their slow steps do not outnumber the others; the last is."""
    monkeypatch.setattr(memory_sampler, "PAUSE_SECONDS", 0.0001)
    asked: list[None] = []

    def is_disturbed() -> bool:
        asked.append(None)
        return len(asked) > 5

    sampler = MemorySampler(lambda: (len(asked), Phase.WAIT), proc=made_proc(tmp_path), is_disturbed=is_disturbed)
    _wait_until(lambda: len(asked) > 50)
    sampler.close()
    record = sampler.describe()
    assert record is not None
    assert record.steps[:5] == (1, 2, 3, 4, 5)
    assert len(record.steps) == 6
    assert record.steps[5] == len(asked)


def _wait_until(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.001)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_script_that_replaces_what_threads_are_built_on_ends_the_sampling_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread writes no traceback; the same holds for the one that samples lines."""
    ours, wait = {"headrace-memory", "headrace-lines"}, threading.Event.wait

    def refuse(event: threading.Event, seconds: float | None = None) -> bool:
        if threading.current_thread().name in ours:
            raise RuntimeError("replaced")
        return wait(event, seconds)

    samplers = (
        MemorySampler(lambda: (3, Phase.WAIT), proc=made_proc(tmp_path)),
        LineSampler(lambda: Phase.WAIT, threading.get_ident),
    )
    monkeypatch.setattr(threading.Event, "wait", refuse)
    _wait_until(lambda: not ours & {one.name for one in threading.enumerate()})
    for sampler in samplers:
        sampler.close()
    assert not ours & {one.name for one in threading.enumerate()}

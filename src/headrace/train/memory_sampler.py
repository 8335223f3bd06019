"""Samples the memory of the process that trains, and what the kernel says of a lack of memory. Linux only.

How this works: a daemon thread reads four files of /proc a few times a second, which takes some 100 us; the thread that trains
does nothing for it. Once there are `MOST_SAMPLES`, every second one is dropped, and the pause doubles: a training of days has
as many samples as one of minutes. It is started at the first step and ended by `close`; a forked child has no such thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace.diagnose.training.memory import FEWEST_WITH_GROWTH, growth
from headrace.runs.formats.training_memory import MemoryRecord
from headrace.runs.training_phases import Phase

PAUSE_SECONDS = 0.25
MOST_SAMPLES = 800
_PROC = Path("/proc")
_now = time.monotonic_ns  # a script may replace it

#: (clock, steps, phase, resident, swapped, major faults, stalled)
Sample = tuple[int, int, str, int, int, int, int | None]


class MemorySampler:
    """Samples from its making until `close`."""

    def __init__(
        self,
        progress: Callable[[], tuple[int, Phase]],
        *,
        on_growth: Callable[[], None] = lambda: None,
        is_disturbed: Callable[[], bool] = lambda: False,
        proc: Path = _PROC,
    ) -> None:
        """Start.

        Args:
            progress: Returns the steps that have ended, and the phase that the training thread is in.
            on_growth: Called in the sampling thread, once, when memory has grown with the steps.
            is_disturbed: Returns whether memory is not the training's alone just now; nothing is sampled then.
            proc: Where the kernel tells of processes.
        """
        self._progress, self._proc, self._on_growth, self._is_disturbed = progress, proc, on_growth, is_disturbed
        self._samples: list[Sample] = []
        #: Samples at which growth is next looked for; None: it was found.
        self._look_at: int | None = FEWEST_WITH_GROWTH
        self._pause = PAUSE_SECONDS
        self._peak: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-memory", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take a last sample and stop."""
        self._ended.set()
        self._thread.join()

    def describe(self) -> MemoryRecord | None:
        """Return what was sampled; None where nothing was."""
        samples = list(self._samples)
        if not samples:
            return None
        at, steps, phases, resident, swapped, faults, stalled = zip(*samples, strict=True)
        return MemoryRecord(
            at_ns=at,
            steps=steps,
            phases=phases,
            resident_bytes=resident,
            swapped_bytes=swapped,
            major_faults=faults,
            stalled_us=None if None in stalled else stalled,
            peak_bytes=self._peak,
        )

    def _run(self) -> None:
        # No Linux, a sandbox without /proc, or a script that replaces what this is built on (`Event.wait`): memory is not
        # measured from then on, and the program's stderr is not for that.
        with contextlib.suppress(Exception):
            self._sample()

    def _sample(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(self._pause if self._samples else 0.0)
            if self._is_disturbed() and not is_last:
                continue
            self._samples.append(self._take())
            if len(self._samples) == self._look_at:
                self._look_for_growth()
            self._thin_out()

    def _look_for_growth(self) -> None:
        _, steps, _, resident, *_ = zip(*self._samples, strict=True)
        if growth(np.asarray(steps, np.float64), np.asarray(resident, np.float64)) is None:
            self._look_at = 2 * len(self._samples)
        else:
            self._look_at = None
            self._on_growth()

    def _thin_out(self) -> None:
        if len(self._samples) >= MOST_SAMPLES:
            self._samples = self._samples[::2]
            self._pause *= 2

    def _take(self) -> Sample:
        steps, phase = self._progress()
        status = (self._proc / "self/status").read_text()
        # After the name, which may hold blanks and parentheses; major faults are field 12 of stat(5).
        faults = (self._proc / "self/stat").read_text().rpartition(")")[2].split()[9]
        self._peak = _kilobytes(status, "VmHWM")
        resident, swapped = _kilobytes(status, "VmRSS"), _kilobytes(status, "VmSwap")
        return _now(), steps, str(phase), resident or 0, swapped or 0, int(faults), self._stalled()

    def _stalled(self) -> int | None:
        """Return microseconds of stalls for memory; None where the kernel does not count them."""
        try:
            some = (self._proc / "pressure/memory").read_text().splitlines()[0]
            return int(some.rpartition("total=")[2])
        except (OSError, IndexError, ValueError):
            return None


def _kilobytes(status: str, name: str) -> int | None:
    """Return a line of /proc/PID/status, bytes; None where there is none."""
    found = next((line for line in status.splitlines() if line.startswith(f"{name}:")), None)
    return None if found is None else int(found.split()[1]) * 1024

"""How many cores were busy for programs that a benchmark has not started.

A benchmark may start programs that are nobody's children: an image server, neighbours on purpose. How this works: whatever is
started within the `with` block inherits a mark in its environment. A thread looks twice a second which processes bear it and
how much CPU time they have used, because one that has ended cannot be asked; what a process used after the last look, half a
second at most, counts as foreign.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from pathlib import Path
from types import TracebackType

from benchmarks.measure import TICKS_PER_SECOND, machine_cpu_seconds

MARK = "HEADRACE_BENCHMARKMARK"
_LOOK_SECONDS = 0.5


class ForeignLoad:
    """Measures the length of a `with` block.

    Attributes:
        cores: Busy on average for programs that are not ours; set on leaving.
    """

    def __init__(self) -> None:
        self.cores = 0.0
        self._mark = secrets.token_hex(8)
        self._ours: dict[int, float] = {}
        self._looked_at: set[int] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="foreign-load", daemon=True)

    def __enter__(self) -> ForeignLoad:
        os.environ[MARK] = self._mark
        self._looked_at = _processes()  # those that are there already are not ours
        self._own = time.process_time()
        self._busy = machine_cpu_seconds()[0]
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._look()
        seconds = time.monotonic() - self._began
        ours = time.process_time() - self._own + sum(self._ours.values())
        self.cores = max(0.0, (machine_cpu_seconds()[0] - self._busy - ours) / seconds)
        os.environ.pop(MARK, None)

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        there = _processes()
        for process in there - self._looked_at:
            if _bears(process, f"{MARK}={self._mark}"):
                self._ours[process] = 0.0
        self._looked_at |= there
        for process in self._ours.keys() & there:
            self._ours[process] = _cpu_seconds(process) or self._ours[process]


def _processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _bears(process: int, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _cpu_seconds(process: int) -> float | None:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold spaces and parentheses
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

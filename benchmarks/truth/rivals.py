"""How many cores other programs used at our expense: those that run at our priority or above.

Where a benchmark runs at a higher priority than everything else (`chrt -r 10`), what others use is what it left over. How this
works: a thread looks once a second at all processes that are not ours; a process is ours if it, or one of its parents, is this
one, or if it was started meanwhile with the mark of `benchmarks.foreign_load`, which marks the environment.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import TracebackType

from benchmarks.foreign_load import MARK
from benchmarks.measure import TICKS_PER_SECOND

_LOOK_SECONDS = 1.0
_PARENT, _USER, _SYSTEM, _PRIORITY = 1, 11, 12, 15


class Rivals:
    """Measures the length of a `with` block; to be entered within a `ForeignLoad`.

    Attributes:
        cores: Used on average; set on leaving.
    """

    def __init__(self) -> None:
        self.cores = 0.0
        self._used: dict[int, tuple[float, float]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rivals", daemon=True)

    def __enter__(self) -> Rivals:
        self._mark = f"{MARK}={os.environ.get(MARK, '')}".encode()
        self._priority = _stat(os.getpid())[_PRIORITY]
        self._ours: set[int] = {os.getpid()}
        self._began = time.monotonic()
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._look()
        used = sum(last - first for first, last in self._used.values())
        self.cores = used / (time.monotonic() - self._began)

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            process = int(name)
            fields = _stat(process)
            if not fields or fields[_PRIORITY] > self._priority or self._is_ours(process, fields[_PARENT]):
                continue
            seconds = (fields[_USER] + fields[_SYSTEM]) / TICKS_PER_SECOND
            first, _ = self._used.get(process, (seconds, seconds))
            self._used[process] = first, seconds

    def _is_ours(self, process: int, parent: int) -> bool:
        if process in self._ours or process in self._used:
            return process in self._ours
        if parent in self._ours or self._mark in _environment(process):
            self._ours.add(process)
            return True
        return False


def _environment(process: int) -> list[bytes]:
    try:
        return Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _stat(process: int) -> list[int]:
    """Return the numbers of `/proc/PID/stat` from the state on (its place holds 0); empty if there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold spaces and parentheses
    return [0, *map(int, fields[1:])]

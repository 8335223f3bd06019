"""Samples at which line of the user's code the training thread is, in each phase of the step.

How this works: a daemon thread looks about 20 times a second at the stack of the training thread and counts the innermost line
that is neither of the standard library, nor of an installed package, nor of headrace. It reads only: the training thread is
not stopped, and no generator of random numbers but its own is used. It is started at the first step and ended by `close`; a
forked child has no such thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import sysconfig
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

from headrace.runs.training_phases import Phase

#: Mean seconds between two looks: 50 us each, so a thousandth of a core. They vary by half: a step of a fixed length would
#: otherwise always be met at the same place.
MEAN_SECONDS = 0.05
#: Lines of a phase that are kept, and samples below which they say nothing.
MOST_LINES, FEWEST_SAMPLES = 5, 5
#: Frames that are looked through, from the innermost.
MOST_FRAMES = 200
_HEADRACE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = tuple(
    {os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class LineSampler:
    """Counts the lines of one thread."""

    def __init__(self, phase: Callable[[], Phase], thread: Callable[[], int | None]) -> None:
        """Start.

        Args:
            phase: Returns the phase that the thread is in.
            thread: Returns `threading.get_ident()` of the thread that trains; None: none does.
        """
        self._phase, self._thread = phase, thread
        self._counts: defaultdict[Phase, Counter[str]] = defaultdict(Counter)
        self._random = random.Random(0)
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._run, name="headrace-lines", daemon=True)
        self._sampler.start()

    def close(self) -> None:
        """Stop; what was counted stays."""
        self._ended.set()
        self._sampler.join()

    def describe(self) -> dict[str, list[list[str | float]]]:
        """Return {phase: [[`FILE:LINE`, share of the samples in this phase], ...]}, of phases with samples enough."""
        found: dict[str, list[list[str | float]]] = {}
        for phase, counts in list(self._counts.items()):
            total = counts.total()
            if total >= FEWEST_SAMPLES:
                found[str(phase)] = [[line, count / total] for line, count in counts.most_common(MOST_LINES)]
        return found

    def _run(self) -> None:
        # A script may replace what this is built on, such as `Event.wait`; its stderr is not for that.
        with contextlib.suppress(Exception):
            self._look()

    def _look(self) -> None:
        while not self._ended.wait(MEAN_SECONDS * self._random.uniform(0.5, 1.5)):
            frame = sys._current_frames().get(self._thread() or 0)  # noqa: SLF001
            if frame is None:
                continue  # the thread ended; another may train yet
            line = find_line(frame)
            del frame  # it would keep the locals of the training alive
            if line is not None:
                self._counts[self._phase()][line] += 1


def find_line(frame: FrameType) -> str | None:
    """Return the innermost line of the user's own code on a stack, `FILE:LINE`; None where there is none."""
    return find_user_line(_walk(frame))


def find_user_line(frames: Iterable[tuple[str, int]]) -> str | None:
    """Return the first of these files and lines that is the user's own, `FILE:LINE`; None where none is."""
    for name, line in frames:
        if not name.startswith(("<", _HEADRACE, *_INSTALLED)):
            return f"{_shorten(name)}:{line}"
    return None


def is_own(name: str) -> bool:
    """Return whether a file is headrace's."""
    return name.startswith(_HEADRACE)


def _walk(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    for _ in range(MOST_FRAMES):
        if frame is None:
            return
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def _shorten(name: str) -> str:
    """Return a path from the working folder, if the file lies below it."""
    try:
        return name.removeprefix(os.getcwd() + os.sep)
    except OSError:  # the folder is gone
        return name

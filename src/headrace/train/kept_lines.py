"""Finds the lines of the user's code that make what is kept, where memory grows with the steps.

How this works: the thread that samples memory says that it grows. Then Python's `tracemalloc` follows two windows of steps,
and looks after each which objects that were made in them are still there. A line of which the second look finds more than the
first, by as many as there were steps, makes what is kept: a loss with its graph, say. These steps are slower, and set apart.
Memory that no Python object stands for is not seen. A program that traces allocations itself is left alone.
"""

from __future__ import annotations

import gc
import logging
import os
import tracemalloc
from collections import Counter
from collections.abc import Sequence

from headrace.runs.training_phases import Kind
from headrace.train.line_sampler import find_user_line, is_own
from headrace.train.recorder import Recorder

logger = logging.getLogger("headrace")

#: Steps of a window, and lines that are told.
STEPS, _MOST_LINES = 8, 3
#: Frames that are kept of each allocation: PyTorch allocates far below the user's line.
_MOST_FRAMES = 25
#: A line is told if of so many steps each one left an object.
_NEARLY_ALL = 0.75


class KeptLines:
    """Looks for them once, when it is asked to.

    Attributes:
        is_wanted: Memory grows; set in any thread.
        is_tracing: What this notes of allocations takes memory itself just now.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Wait until it is wanted.

        Args:
            recorder: Whose steps these are.
        """
        self.is_wanted = False
        self._recorder = recorder
        self._steps = 0
        self.is_tracing = self._is_over = False
        self._before: tracemalloc.Snapshot | None = None
        self._found: list[list[str | float]] = []

    def step(self) -> None:
        """A step ended, and the next one has begun; called in the training thread."""
        if not self.is_wanted or self._is_over:
            return
        try:
            self._step()
        except Exception as error:  # The training goes on, whatever becomes of this.
            logger.debug("what is kept is not found: %s", error)
            self.close()

    def _step(self) -> None:
        if not self.is_tracing:
            self._begin()
            return
        self._recorder.set_kind(Kind.PROFILED)
        self._steps += 1
        if self._steps == STEPS:
            self._before = tracemalloc.take_snapshot()
        elif self._steps == 2 * STEPS:
            before, after = self._before, tracemalloc.take_snapshot()
            self.close()  # counting allocates too, and each allocation that is traced takes a thousand times as long
            self._before = None
            if before is not None:
                self._found = _grown(_count(before), _count(after))

    def close(self) -> None:
        """Trace no more."""
        if self.is_tracing:
            tracemalloc.stop()
        self.is_tracing, self._is_over = False, True

    def describe(self) -> list[list[str | float]]:
        """Return [`FILE:LINE`, objects that each step leaves], most first; empty where none were found, or not looked for."""
        return self._found

    def _begin(self) -> None:
        if tracemalloc.is_tracing():
            self._is_over = True
            return
        os.register_at_fork(after_in_child=self.close)  # loader workers would be slower for ever
        gc.collect()  # empties the interpreter's free lists: objects made of what was allocated before would not be seen
        tracemalloc.start(_MOST_FRAMES)
        self.is_tracing = True
        self._recorder.set_kind(Kind.PROFILED)


def _count(snapshot: tracemalloc.Snapshot) -> Counter[str]:
    """Return how many objects each line of the user's has made that are there."""
    return Counter(
        line
        for trace in snapshot.traces
        if (line := _line([(one.filename, one.lineno) for one in reversed(trace.traceback)])) is not None
    )


def _line(frames: Sequence[tuple[str, int]]) -> str | None:
    """Return the innermost line of the user's own code; None where there is none, or where headrace or an import allocated.

    Args:
        frames: Files and lines, the innermost first.
    """
    if is_own(frames[0][0]) or any(name == __file__ or name.startswith("<frozen importlib") for name, _ in frames):
        return None
    return find_user_line(frames)


def _grown(before: Counter[str], after: Counter[str]) -> list[list[str | float]]:
    more = {line: (count - before[line]) / STEPS for line, count in after.items()}
    found = sorted(((line, each) for line, each in more.items() if each >= _NEARLY_ALL), key=lambda one: -one[1])
    return [[line, each] for line, each in found[:_MOST_LINES]]

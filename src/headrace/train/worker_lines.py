"""Samples at which line of the user's code the workers of a loader are.

How this works: in each worker a daemon thread looks about 20 times a second at the stack of the thread that loads. Only what is
called from `WatchedFetcher.fetch` counts: a worker that has nothing to do waits elsewhere, and below that the stack of a forked
worker is that of the training. The most frequent lines are left in the memory that the worker shares with the process that
trains (`SharedRecords`), which adds those of all workers up when it drops their iterator, or ends.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections import Counter
from types import CodeType, FrameType

from headrace.train.line_sampler import FEWEST_SAMPLES, MEAN_SECONDS, MOST_FRAMES, MOST_LINES, find_user_line
from headrace.train.loader_clock import WatchedFetcher
from headrace.train.loader_record import SharedRecords

_FETCH: CodeType = WatchedFetcher.fetch.__code__
#: What counts where a batch is made, and none of it is the user's own code.
_NOBODY = "-"


def sample_lines(worker: int, records: SharedRecords) -> None:
    """Count the lines of the calling thread, a worker's, from now on and for as long as somebody reads.

    Args:
        worker: Its number.
        records: Where the counts are left.
    """
    args = (worker, records, threading.get_ident())
    threading.Thread(target=_run, args=args, name="headrace-lines", daemon=True).start()


def _run(worker: int, records: SharedRecords, thread: int) -> None:
    counts: Counter[str] = Counter()
    own = random.Random(0)
    ended = threading.Event()
    # A data set may replace what this is built on, such as `Event.wait`; its stderr is not for that.
    with contextlib.suppress(Exception):
        while not records.is_over:
            ended.wait(MEAN_SECONDS * own.uniform(0.5, 1.5))
            frame = sys._current_frames().get(thread)  # noqa: SLF001
            line = None if frame is None else find_batch_line(frame)
            del frame  # it would keep the locals of the data set alive
            if line is not None:
                counts[line] += 1
                records.write_lines(
                    worker, "\n".join(f"{count} {name}" for name, count in counts.most_common(MOST_LINES))
                )


def find_batch_line(frame: FrameType) -> str | None:
    """Return the innermost line of user code that makes a batch, `-` if none of it is the user's; None: no batch is made."""
    inner: list[tuple[str, int]] = []
    at: FrameType | None = frame
    while at is not None and len(inner) < MOST_FRAMES:
        if at.f_code is _FETCH:
            return find_user_line(inner) or _NOBODY
        inner.append((at.f_code.co_filename, at.f_lineno))
        at = at.f_back
    return None


class WorkerLines:
    """Adds up what the workers of all loaders have left."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, records: SharedRecords) -> None:
        """Take what the workers of one iterator have left."""
        for text in records.read_lines():
            for row in text.splitlines():
                count, _, line = row.partition(" ")
                if count.isdecimal() and line:
                    self._counts[line] += int(count)

    def describe(self) -> list[list[str | float]]:
        """Return [[`FILE:LINE`, share of the samples in which a batch was made], ...]; empty of too few samples."""
        total = self._counts.total()
        if total < FEWEST_SAMPLES:
            return []
        own = [(line, count) for line, count in self._counts.most_common() if line != _NOBODY]
        return [[line, count / total] for line, count in own[:MOST_LINES]]

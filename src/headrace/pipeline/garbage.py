"""When Python's cyclic garbage collector runs while a pipeline does.

A full collection walks every object of every imported library while it holds the GIL: tens of milliseconds, in which a device
that has finished waits for its next batch. So it runs rarely, and over what was made since the start. But it counts objects
and not bytes: cycles of users' code that hold large arrays would fill the memory before there are enough of them. So resident
memory is looked at too, and growth calls for a collection.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.base.freed_memory import trim

#: Objects made before the collector looks again, and how many looks at the young go before one at the older.
_THRESHOLDS = (50_000, 20, 100)
_LOOK_SECONDS = 0.1
#: Growth that calls for a collection: so many bytes, and this share of what there was after the last one.
_GROWTH_BYTES, _GROWTH_SHARE = 128 * 2**20, 0.25
#: After one that gave little back the next is so much later, and at most this share of the time goes into such ones.
_IN_VAIN_SECONDS, _MOST_SHARE = 1.0, 0.05

#: Frozen objects that are nobody's choice: Python 3.12 starts with some hundred.
_FROZEN_BY_PYTHON = 1000

_lock = threading.Lock()
_num_users = 0
_before = (0, 0, 0)
_has_frozen = False


@contextlib.contextmanager
def calm_garbage_collector() -> Iterator[None]:
    """Let the collector run rarely, and over what is made from now on only.

    Items are freed by reference count; cycles in users' code are still collected, later. Several runs in one process share
    this: the first sets it, and the last one brings the settings of before back. Where the program itself froze its objects
    before that, nothing is frozen beside them, for the collector cannot thaw a part; what is frozen during a run is thawed at
    its end.
    """
    global _num_users, _before, _has_frozen
    with _lock:
        _num_users += 1
        if _num_users == 1:
            _before = gc.get_threshold()
            _has_frozen = gc.get_freeze_count() > _FROZEN_BY_PYTHON
            gc.collect()
            if not _has_frozen:
                gc.freeze()
            gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        with _lock:
            _num_users -= 1
            if _num_users == 0:
                gc.set_threshold(*_before)
                if not _has_frozen:
                    gc.unfreeze()


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def collect() -> None:
    """Collect all cycles, and give what they held back to the system: the C library would keep it, and memory look as full."""
    if gc.collect():
        trim()


class GrowthWatch:
    """Collects cycles where memory grows; used by one thread.

    Args:
        read_bytes: Returns the resident memory.
        collect: Collects all cycles and gives back what they held.
        now: Seconds of a steady clock.
    """

    def __init__(
        self,
        read_bytes: Callable[[], int] = resident_bytes,
        collect: Callable[[], object] = collect,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_bytes = read_bytes
        self._collect = collect
        self._now = now
        self._least: int | None = None
        self._next_look = 0.0

    def look(self) -> None:
        """Look, and collect where there is reason to; may be called at any time."""
        began = self._now()
        if began < self._next_look:
            return
        self._next_look = began + _LOOK_SECONDS
        with contextlib.suppress(OSError):  # no file handle for it now: memory grows no faster unseen for once
            self._look(began)

    def _look(self, began: float) -> None:
        before = self._read_bytes()
        self._least = before if self._least is None else min(before, self._least)
        growth = before - self._least
        if growth < max(_GROWTH_BYTES, _GROWTH_SHARE * self._least):
            return
        self._collect()
        ended, after = self._now(), self._read_bytes()
        self._least = after
        # What grows for other reasons, such as queues that fill, is not to be walked again and again.
        is_in_vain = before - after < growth / 4
        self._next_look = ended + (
            max(_IN_VAIN_SECONDS, (ended - began) / _MOST_SHARE) if is_in_vain else _LOOK_SECONDS
        )

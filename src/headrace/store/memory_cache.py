"""A cache in the memory of this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from headrace.store.admission import Admission
from headrace.store.cache_key import is_of_other_work
from headrace.store.single_flight import SingleFlight

#: What an entry costs beyond its content.
_ENTRY_BYTES = 400


def size_of(value: Any) -> int | None:
    """Return the bytes of a value that a cache can keep; None: it is of another kind."""
    if isinstance(value, bytes):
        return len(value)
    if type(value) is np.ndarray and not value.dtype.hasobject and _is_said_by_name(value.dtype):
        return value.nbytes
    return None


def _is_said_by_name(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype can be written down; those with fields, and those of other packages, read back as another one."""
    try:
        return np.dtype(dtype.str) == dtype
    except TypeError:
        return False


class MemoryCache:
    """Keeps values, up to a number of bytes; any thread.

    Args:
        limit_bytes: Of all entries together, their own cost included.

    Attributes:
        num_bytes: Of the entries now.
        flights: Who makes what is missing.
        is_off: Always False: memory does not fill up behind its back.
    """

    is_off = False
    is_slow = False

    def __init__(self, limit_bytes: int) -> None:
        self.flights = SingleFlight()
        self.num_bytes = 0
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._run = 0
        self._has_stale = False
        self._entries: OrderedDict[bytes, tuple[Any, Any, int, int]] = OrderedDict()
        self._admission = Admission(limit_bytes)

    def begin(self) -> None:
        """Begin another run: entries of other work that it does not use may go."""
        with self._lock:
            self._run += 1
            self._has_stale = True

    def get(self, key: bytes) -> tuple[Any, Any] | None:
        """Return a value, which is the caller's own, and what was noted with it; None if it is not there."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries[key] = (*found[:3], self._run)
            self._entries.move_to_end(key)
            self._admission.follow(key, found[2])
        value = found[0]
        return (value.copy() if isinstance(value, np.ndarray) else value), found[1]

    def put(self, key: bytes, value: Any, note: Any) -> bool:
        """Keep a value that was looked up in vain, if there is room for it; return whether it is kept."""
        size = size_of(value)
        if size is None:
            return False
        size += _ENTRY_BYTES
        with self._lock:
            self._admission.follow(key, size)
            if key in self._entries:
                return True
            if size > self._limit:
                return False
            while self.num_bytes + size > self._limit:
                if not self._let_go(key):
                    return False
            self.num_bytes += size
        # Copied outside of the lock: it may be in a buffer that its stage uses again.
        kept = np.array(value, order="C") if isinstance(value, np.ndarray) else value
        with self._lock:
            if key in self._entries:
                self.num_bytes -= size
            else:
                self._entries[key] = (kept, note, size, self._run)
        return True

    def _let_go(self, key: bytes) -> bool:
        """Remove what makes room for a key; return whether there was something."""
        going = None
        if self._has_stale:  # what an edit of the program left behind goes first, whatever the policy
            entries = self._entries.items()
            going = next((one for one, entry in entries if entry[3] != self._run and is_of_other_work(one, key)), None)
            self._has_stale = going is not None
        if going is None and self._admission.evicts:
            going = next(iter(self._entries), None)
        if going is None:
            return False
        self.num_bytes -= self._entries.pop(going)[2]
        return True

"""A small piece of work that is always the same, to tell a slower machine from slower stages.

It compresses, hashes and copies: code of the system's libraries, so that another Python or another package leaves it as it is.
It takes less than a millisecond, and is done where a run's items are counted, every two seconds while items come.
"""

from __future__ import annotations

import hashlib
import random
import time
import zlib

import numpy as np

from headrace.monitor.history.moments import make_rows, sum_rows
from headrace.runs.formats.history import StageWindow

_PACKED_BYTES, _HASHED_BYTES, _COPIED_BYTES = 1 << 13, 1 << 16, 1 << 20
#: Compresses to half of its size: matches, literals, and branches that no processor foresees.
_TEXT = bytes(random.Random(0).choices(range(16), k=_PACKED_BYTES))
_BLOCK = bytes(range(256)) * (_COPIED_BYTES // 256)


def measure_yardstick() -> StageWindow:
    """Do the work once; return the CPU time that it took this thread, as of a stage with one item."""
    began = time.thread_time_ns()
    zlib.compress(_TEXT, 6)
    hashlib.sha256(memoryview(_BLOCK)[:_HASHED_BYTES]).digest()
    bytearray(_BLOCK)
    took = time.thread_time_ns() - began
    nothing, one = np.zeros(1), np.ones(1)
    return sum_rows(make_rows(nothing, nothing, one, np.array([float(took)])), one)

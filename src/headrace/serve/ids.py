"""Ids of requests that name none: 128 random bits each, fetched from the kernel for many at once.

A fetch gives other threads the GIL, and taking it back costs the front's thread more than all else about an id.
"""

from __future__ import annotations

import os
from collections import deque

_BYTES, _AT_ONCE = 16, 256
_ids: deque[str] = deque()


def make_id() -> str:
    """Return an id that nobody can guess, 32 hexadecimal digits; any thread."""
    try:
        return _ids.popleft()
    except IndexError:
        digits, length = os.urandom(_BYTES * _AT_ONCE).hex(), 2 * _BYTES
        fresh = [digits[place : place + length] for place in range(0, len(digits), length)]
        _ids.extend(fresh[1:])
        return fresh[0]


os.register_at_fork(after_in_child=_ids.clear)

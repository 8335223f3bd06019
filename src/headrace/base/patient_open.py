"""Opens a file where the machine, not the file, keeps it from being opened: what is refused is not tried again."""

from __future__ import annotations

import errno
import itertools
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from headrace.base.shortage import shortage_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: While no file handle is free a file is tried again after each such pause; where its disk or server does not answer, so often.
_PAUSE_SECONDS, _MOST_TRIES = 0.5, 10
_AWAY = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN)


def open_patiently(
    opening: Callable[[], T], name: str, own: tuple[type[Exception], ...] = (), *, holds_others: bool = False
) -> T:
    """Return what a call returns that opens a file; wait and call it again where no handle is free or the disk is away.

    Args:
        opening: Is called until it says something else.
        name: For the log.
        own: Errors of a library that gives damage the same numbers as a disk that is away.
        holds_others: Whether the caller keeps files open, and would wait without end for handles that are its own.

    Raises:
        OSError: Of the file itself, or of a disk or server that stays away for some five seconds; so long it waits for a handle
            too, if it holds others.
    """
    for num_tries in itertools.count(1):
        try:
            return opening()
        except OSError as error:
            is_away = error.errno in _AWAY and not isinstance(error, own)
            is_short = shortage_of(error) == "shortage.files"
            is_over = num_tries >= _MOST_TRIES and (holds_others or not is_short)
            if is_over or not (is_away or is_short):
                raise
            if num_tries == 1:
                logger.warning("%s waits to be opened: %s", name, error.strerror or error)
            time.sleep(_PAUSE_SECONDS)
    raise AssertionError("unreachable")

"""Reads what others may have put into a queue: each message inside a guard of its own.

What cannot be read becomes a message all the same, marked as malformed: it is lent, counted, rejected with a code and
dead-lettered like a message that is no job, and the good ones beside it go on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

Raw = TypeVar("Raw")
Read = TypeVar("Read")

#: Characters of an error's text that go into a reason.
_LONGEST_TEXT = 200


def read_guarded(raw: Raw, read: Callable[[Raw], Read], read_malformed: Callable[[Raw, str], Read]) -> Read:
    """Return what `read` makes of something found in a queue, else what `read_malformed` makes of it and the reason.

    Args:
        raw: As the service gave it.
        read: May raise anything.
        read_malformed: Gets the reason as well, which begins with `message.malformed: `; must not raise.
    """
    try:
        return read(raw)
    except Exception as error:
        return read_malformed(raw, f"message.malformed: it cannot be read from the queue: {described(error)}")


def described(error: Exception) -> str:
    """Return an error's type and text, cut; also where its text cannot be had."""
    try:
        text = str(error)
    except Exception:  # a stranger's class
        text = "its text cannot be had"
    return f"{type(error).__name__}: {text:.{_LONGEST_TEXT}}"


def as_bytes(found: Any) -> bytes:
    """Return whatever was found as bytes that are UTF-8 and not empty: text as it is, anything else as JSON with escapes."""
    if isinstance(found, bytes):
        found = found.decode("utf-8", "backslashreplace")
    if not isinstance(found, str):
        found = json.dumps(found, default=_as_text, skipkeys=True)
    return found.encode("utf-8", "backslashreplace") or b"(empty)"


def _as_text(found: object) -> str:
    return found.decode("utf-8", "backslashreplace") if isinstance(found, bytes) else repr(found)

"""Reads messages that other programs wrote into a queue: an error in one message affects only that message.

An unreadable entry becomes a message that is marked as malformed: it is lent, counted, rejected with a code and dead-lettered
like any message that is not a job, and the good messages beside it are processed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.base.redaction import hide_secrets_in_text

Raw = TypeVar("Raw")
Read = TypeVar("Read")

#: Characters of an error's text that go into a reason.
_LONGEST_TEXT = 200


def read_guarded(raw: Raw, read: Callable[[Raw], Read], read_malformed: Callable[[Raw, str], Read]) -> Read:
    """Return the result of `read` for an entry of a queue; if it raises, that of `read_malformed`.

    Args:
        raw: The entry as the service returned it.
        read: May raise anything.
        read_malformed: Gets the reason as well, which begins with `message.malformed: `; must not raise.
    """
    try:
        return read(raw)
    except Exception as error:
        return read_malformed(raw, f"message.malformed: it cannot be read from the queue: {describe_error(error)}")


def describe_error(error: BaseException) -> str:
    """Return type and text of an error, shortened; works even if `str(error)` raises."""
    try:
        text = str(error)
    except Exception:  # a stranger's class
        text = "its text cannot be had"
    return f"{type(error).__name__}: {hide_secrets_in_text(text):.{_LONGEST_TEXT}}"


def encode_entry(found: Any) -> bytes:
    """Return an entry as UTF-8 bytes that are not empty: text unchanged, anything else as JSON with escapes."""
    if isinstance(found, bytes):
        found = found.decode("utf-8", "backslashreplace")
    if not isinstance(found, str):
        found = json.dumps(found, default=_decode_text, skipkeys=True)
    return found.encode("utf-8", "backslashreplace") or b"(empty)"


def _decode_text(found: object) -> str:
    return found.decode("utf-8", "backslashreplace") if isinstance(found, bytes) else repr(found)

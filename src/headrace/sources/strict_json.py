"""Refuses JSON in which a key stands twice: another reader of the same message may take the other one."""

from __future__ import annotations

import json
from typing import Any

from headrace.base.errors import BadMessage


def refuse_duplicates(body: bytes) -> None:
    """Raise BadMessage if a key stands twice in one object, or Python reads the JSON otherwise than msgspec does."""
    try:
        _strict.decode(body.decode())
    except (ValueError, RecursionError) as error:  # what msgspec took and the stricter reader does not
        raise BadMessage(f"message.json: the message is not a job: {error!s:.200}") from None


def reject_duplicates(pairs: list[tuple[str, Any]]) -> None:
    """Raise BadMessage if two pairs of an object have one key."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise BadMessage(f"message.duplicate: the key {key[:60]!r} stands twice in one object")
        seen.add(key)


# Numbers are not looked at: Python refuses those of more than 4,300 digits.
_strict = json.JSONDecoder(object_pairs_hook=reject_duplicates, parse_int=len)

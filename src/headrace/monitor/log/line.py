"""One event as one line of JSON: in a fixed order, without secrets and control characters, and short.

A pipe takes up to 4,096 bytes as one piece (PIPE_BUF), so lines of several processes never run into one another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from headrace.base.formatting import escape_controls
from headrace.base.log_events import FIELDS
from headrace.base.redaction import hide_secrets_in_text

#: Bytes of a line.
MOST_BYTES = 4_096
#: Bytes of JSON of one value, with its quotes; all together, with the names, are fewer than those of a line.
_MOST_MESSAGE, _MOST_VALUE = 900, 110
_MOST_OF = {"job": 400, "traceback": 1_300}
_CUT = " ... "
_LINE_SEPARATORS = {0x2028: "\\u2028", 0x2029: "\\u2029"}


def make_line(unix_seconds: float, level: str, event: str, message: str, fields: Mapping[str, Any]) -> bytes:
    """Return a line with its end; fields that are not in `FIELDS` are left out."""
    time = datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    values = {
        "time": f'"{time}"',
        "level": f'"{level}"',
        "event": f'"{event}"',
        "message": _text(message, _MOST_MESSAGE),
    }
    for name in FIELDS:
        value = fields.get(name)
        if value is not None:
            values[name] = _value(value, _MOST_OF.get(name, _MOST_VALUE))
    line = ", ".join(f'"{name}": {value}' for name, value in values.items())
    return f"{{{line}}}\n".encode()


def _value(value: Any, most_bytes: int) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return str(value)
    return _text(str(value), most_bytes)


def _text(text: str, most_bytes: int) -> str:
    """Return a string as JSON of at most so many bytes; what is too long loses its middle."""
    text = hide_secrets_in_text(text)
    encoded, kept = _encode(text), len(text)
    while len(encoded.encode()) > most_bytes:
        kept = min(kept - 1, int(kept * most_bytes / len(encoded.encode()) * 0.9))
        head = kept // 3
        encoded = _encode(f"{text[:head]}{_CUT}{text[len(text) - (kept - head) :]}")
    return encoded


def _encode(text: str) -> str:
    encoded = escape_controls(json.dumps(text, ensure_ascii=False)).translate(_LINE_SEPARATORS)
    return encoded.encode("utf-8", "backslashreplace").decode()  # a lone surrogate

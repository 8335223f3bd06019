"""Forms with a file: multipart/form-data, as browsers and `curl -F` send it (RFC 7578)."""

from __future__ import annotations

import re

from headrace.base.errors import BadMessage

_BOUNDARY = re.compile(r'boundary="?([0-9A-Za-z\'()+_,./:=? -]{1,70})"?', re.IGNORECASE)
_NAME = re.compile(r'[; ]name="([^"]*)"', re.IGNORECASE)
_FILE = re.compile(r"[; ]filename\*?=", re.IGNORECASE)
_MOST_PARTS = 50
_LONGEST_FIELD = 8_192


def read_form(content_type: str, body: bytes) -> tuple[dict[str, str], bytes]:
    """Return the fields of a form, and the bytes of its one file.

    Raises:
        BadMessage: If it is no form, or has no file, or several.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise BadMessage("message.form: Content-Type names no boundary; let your client write this header")
    fields: dict[str, str] = {}
    files: list[bytes] = []
    for head, content in _parts(body, b"--" + found[1].strip().encode()):
        name = _NAME.search(head)
        if name is None:
            raise BadMessage("message.form: a part of the form has no name")
        if _FILE.search(head):
            files.append(content)
        else:
            fields[name[1]] = _text(name[1], content)
    if len(files) != 1:
        raise BadMessage(
            f"message.form: the form has {len(files)} files; expected one, such as `curl -F image=@photo.jpg`"
        )
    return fields, files[0]


def _parts(body: bytes, boundary: bytes) -> list[tuple[str, bytes]]:
    """Return header and content of each part."""
    pieces = (b"\r\n" + body).split(b"\r\n" + boundary, _MOST_PARTS + 2)
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise BadMessage(
            f"message.form: the form is cut off, or has more than {_MOST_PARTS} parts; expected parts between boundaries"
        )
    parts = []
    for piece in pieces[1:-1]:
        head, separator, content = piece.partition(b"\r\n\r\n")
        if not separator:
            raise BadMessage("message.form: a part of the form has no empty line after its header")
        if len(head) > _LONGEST_FIELD:
            raise BadMessage(
                f"message.form: the header of a part has {len(head):,} bytes, at most {_LONGEST_FIELD:,} are read"
            )
        parts.append((head.decode("utf-8", "replace"), content))
    return parts


def _text(name: str, content: bytes) -> str:
    if len(content) > _LONGEST_FIELD:
        raise BadMessage(f"message.form: field {name!r:.60} has {len(content):,} bytes, at most {_LONGEST_FIELD:,}")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadMessage(f"message.form: field {name!r:.60} is not UTF-8") from None

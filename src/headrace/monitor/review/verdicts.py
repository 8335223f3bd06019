"""What people said of items: `verdicts.jsonl`, a line each, the last of an item counts."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import RunFolderError
from headrace.base.in_flight import read_regular
from headrace.runs.formats.review import VerdictLine

_FILE = "verdicts.jsonl"


def append_verdicts(folder: Path, lines: Iterable[VerdictLine]) -> None:
    """Write lines so that they are on disk when this returns.

    Raises:
        RunFolderError: If they cannot be written.
    """
    content = b"".join(encode_document(line) + b"\n" for line in lines)
    path = folder / _FILE
    try:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # of another reviewer
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":  # a line that a full disk cut off
                content = b"\n" + content
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}; the last verdicts are not kept") from None


def read_verdicts(folder: Path) -> tuple[dict[str, VerdictLine], list[str]]:
    """Return {item: what was said last}, and what is wrong with the file."""
    path = folder / _FILE
    try:
        content = read_regular(path, 1 << 30, follow=True)
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from None
    found: dict[str, VerdictLine] = {}
    damaged = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            said = decode_document(line, VerdictLine)
        except msgspec.DecodeError as error:
            damaged.append(f"{path}, line {number} is no verdict ({error!s:.120}); it is left out")
            continue
        found[said.item] = said
        if said.verdict == "none":
            del found[said.item]
    return found, damaged

"""Reads files that people name. One may be a pipe, as of `<(pip freeze)` in a shell; one that nobody writes to is an error."""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path

#: How long a pipe may give nothing.
_PATIENCE_SECONDS = 10.0
_CHUNK_BYTES = 65_536


def read_given_file(path: Path, most_bytes: int, *, patience_seconds: float = _PATIENCE_SECONDS) -> bytes:
    """Return the content of a file or pipe, at most so many bytes of it.

    Raises:
        OSError: If it cannot be read, is a folder, or is a pipe that gives nothing for `patience_seconds`.
    """
    # Without this flag opening a pipe waits until somebody writes to it.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISREG(mode):
            return file.read(most_bytes)
        if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        return _read_pipe(file.fileno(), path, most_bytes, patience_seconds)


def _read_pipe(descriptor: int, path: Path, most_bytes: int, patience_seconds: float) -> bytes:
    found = b""
    while len(found) < most_bytes:
        if not select.select([descriptor], [], [], patience_seconds)[0]:
            says = f"it is a pipe that gave nothing for {patience_seconds:g} s"
            raise OSError(errno.ETIMEDOUT, says, str(path))
        part = os.read(descriptor, min(_CHUNK_BYTES, most_bytes - len(found)))
        if not part:
            break
        found += part
    return found

"""Appends to files of lines, whose last one may have been cut off by a kill or a full disk."""

from __future__ import annotations

import os
from pathlib import Path


def append_line(path: Path, line: bytes) -> None:
    """Append a line, on a line of its own whatever the file ends with; raises OSError.

    Args:
        path: The file; created if missing.
        line: Without its end.
    """
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        is_cut_off = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write((b"\n" if is_cut_off else b"") + line + b"\n")

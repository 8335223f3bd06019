"""Rates from counters that only grow, and the few lines that reading the kernel's small files takes."""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path

#: Of one reading: more than nearly all of the kernel's small files have.
_READ_BYTES = 16_384


class Rates:
    """Remembers counters, and returns how fast they grew since they were read last."""

    def __init__(self) -> None:
        self._before: dict[Hashable, tuple[float, float]] = {}

    def growth(self, key: Hashable, count: float, base: float) -> float | None:
        """Return by how much a counter grew over how much something else did: time in seconds, or another counter.

        Args:
            key: Names the counter.
            count: What it says now.
            base: Time, or the other counter, now.

        Returns:
            None the first time, when `base` did not grow, and when the counter began anew.
        """
        before = self._before.get(key)
        self._before[key] = count, base
        if before is None or base <= before[1] or count < before[0]:
            return None
        return (count - before[0]) / (base - before[1])


def text_of(path: Path | str) -> str | None:
    """Return a small file's content, or None if it cannot be read.

    Some thirty of the kernel's files are read each second, which Python's own file objects make three times as dear.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = [os.read(file, _READ_BYTES)]
        while parts[-1]:
            parts.append(os.read(file, _READ_BYTES))
    except OSError:
        return None
    finally:
        os.close(file)
    return b"".join(parts).decode("utf-8", "replace")


def number_of(path: Path) -> int | None:
    """Return the whole number that a file holds, or None if it holds none."""
    try:
        return int(text_of(path) or "")
    except ValueError:
        return None


def table_of(path: Path) -> dict[str, int]:
    """Return {word: number} of a file with `word number` lines; empty if it cannot be read."""
    words = (line.split() for line in (text_of(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdecimal()}

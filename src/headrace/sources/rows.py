"""What a reader of a file of rows is given, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

#: In place of a column: each data set of a group is an item.
EVERY = "*"


class DamagedFile(Exception):
    """A file cannot be read, or not to its end; the message says why."""


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """In place of a row that cannot be read."""

    reason: str
    """With a code in front."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read of a file."""

    choose: Callable[[Mapping[str, str]], list[str]]
    """Returns the columns to read, given {column: type} in Arrow's words."""
    table: str | None = None
    """Of formats that have several: the table, group or named database; None: the only one."""
    column: str | None = None
    """What the user named as the payload; None: nothing."""


Rows = Generator[Mapping[str, Any] | DamagedRow, None, None]

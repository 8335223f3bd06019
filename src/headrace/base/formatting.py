"""Numbers, sentences and tables as people read them in a terminal."""

from __future__ import annotations

import re
import shlex
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

#: Columns of a terminal in which sentences fit.
COLUMNS = 80
#: What moves the cursor, changes colours or the direction of writing; line ends and tabs stay.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def counted(number: int, what: str) -> str:
    """Return a number of things: `1 item`, `1,200 items`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def showable(text: object) -> str:
    """Return text without what a terminal would obey: names in a run folder are whatever its maker wrote."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(text))


def escaped(text: str) -> str:
    """Return JSON or TOML without what a terminal would obey: as escapes that both read as the same characters."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def quoted(argument: object) -> str:
    """Return an argument as a shell takes it, for commands that people copy: `'my plan.toml'`."""
    return shlex.quote(str(argument))


def wrapped(lines: Iterable[str]) -> list[str]:
    """Return lines of at most 80 columns; what is cut off goes on in the next one, further in. Words stay whole."""
    found: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()))
        parts = textwrap.wrap(
            line.strip(),
            COLUMNS,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        found += parts or [""]
    return found


def aligned(rows: Sequence[Sequence[str]], *, num_left: int = 1) -> list[str]:
    """Return rows as lines, the first columns to the left and the others to the right."""
    widths = [max(map(_num_cells, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        rooms = [" " * (width - _num_cells(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [
            cell + room if column < num_left else room + cell
            for column, (cell, room) in enumerate(zip(row, rooms, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _num_cells(text: str) -> int:
    """Return how many columns a terminal draws a text in: Chinese letters take two, accents of their own none."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )

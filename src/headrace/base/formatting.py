"""Numbers, sentences and tables as people read them in a terminal."""

from __future__ import annotations

import re
import shlex
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

#: Columns of a terminal in which sentences fit.
COLUMNS = 80
_MOST_BAR_COLUMNS = 24
#: What moves the cursor, changes colours or the direction of writing; line ends and tabs stay.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def pluralize(number: int, what: str) -> str:
    """Return a number of things: `1 item`, `1,200 items`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def showable(text: object) -> str:
    """Return text without what a terminal would obey: names in a run folder are whatever its maker wrote."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(text))


def escape_controls(text: str) -> str:
    """Return JSON or TOML without what a terminal would obey: as escapes that both read as the same characters."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def quote_arg(argument: object) -> str:
    """Return an argument as a shell takes it, for commands that people copy: `'my plan.toml'`."""
    return shlex.quote(str(argument))


def wrap_lines(lines: Iterable[str]) -> list[str]:
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


def align_columns(table: Iterable[Sequence[str | None]], *, num_left: int = 1) -> list[str]:
    """Return rows as lines, the first columns to the left and the others to the right; None, not measured, becomes `-`."""
    rows = [["-" if cell is None else cell for cell in row] for row in table]
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


def with_bars(lines: Sequence[str], values: Sequence[float | None]) -> list[str]:
    """Return a table's lines, each but the heading with a bar in the columns that are left.

    Args:
        lines: As `align_columns` returns them.
        values: One for each line below the heading, as long as its bar; None: no bar.
    """
    width = max(map(len, lines))
    room, most = min(_MOST_BAR_COLUMNS, COLUMNS - 2 - width), max((value or 0.0 for value in values), default=0.0)
    bars = ["", *("#" * max(1, round(room * value / most)) if value and room > 0 else "" for value in values)]
    return [f"{line:<{width}}  {bar}".rstrip() for line, bar in zip(lines, bars, strict=True)]


def _num_cells(text: str) -> int:
    """Return how many columns a terminal draws a text in: Chinese letters take two, accents of their own none."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def encodable(text: str) -> str:
    """Return text that UTF-8 can hold: names of files need not be Unicode, and Python then reads them as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text

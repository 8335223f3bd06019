"""TOML -> tables, in a time that its size bounds: a Plan may come with a run folder or a ledger of somebody else."""

from __future__ import annotations

import re
import tomllib
from typing import Any

#: Dots of a line outside of its texts. Python's reader takes 11 s for one key of 20,000 parts, and 10 ms for one of so many.
MOST_DOTS = 500
_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML document.

    Raises:
        ValueError: If it is none, or has a key of very many parts; says what and in which line.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > MOST_DOTS and _TEXT.sub("", line).count(".") > MOST_DOTS:
            raise ValueError(f"line {number} has a key of more than {MOST_DOTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None

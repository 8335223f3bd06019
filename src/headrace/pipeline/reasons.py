"""Why jobs ended badly, counted by the code that their reasons begin with; in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.runs.run_folder import encodable

#: Codes are ours, stages' and users': what comes after so many different ones is counted as `other`.
MOST_CODES = 100
#: Characters of the example that is kept of each.
EXAMPLE_CHARACTERS = 300
#: Shown to people; the document has all.
NUM_SHOWN = 3

_AFTER_ITEM = re.compile(r"(?:/[0-9]+)*: (.*)", re.DOTALL)
_CODED = re.compile(r"([a-z]+\.[a-z_]+): (.*)", re.DOTALL)
_OTHER = "other"


def parse_reason(reason: str, job_id: str) -> tuple[str, str]:
    """Return the code of a reason (without one, the stage it happened in), and what it says after that, cut.

    Args:
        reason: Of an outcome, `STAGE: item ID: CODE: what happened`, each part but the last only where there is one.
        job_id: With which the item's id begins. A sender chooses it, and could write into it what looks like a code.
    """
    stage, _, rest = reason.partition(f": item {job_id}")
    located = _AFTER_ITEM.fullmatch(rest)
    stage, what = (stage, located[1]) if located else (_OTHER, reason)
    coded = _CODED.fullmatch(what)
    code, what = coded.groups() if coded else (stage, what)
    return code, what[:EXAMPLE_CHARACTERS]


class Reasons:
    """Counts reasons by code, each with its first as an example. Not thread-safe."""

    def __init__(self) -> None:
        self._found: dict[str, list[Any]] = {}

    def add(self, code: str, example: str, count: int = 1) -> None:
        """Count one, or several of which the example is the first."""
        if code not in self._found and len(self._found) >= MOST_CODES:
            code = _OTHER
        self._found.setdefault(code, [0, example])[0] += count

    def as_list(self) -> list[dict[str, Any]]:
        """Return `code`, `count` and `example` of each, the most frequent first."""
        rows = sorted(self._found.items(), key=lambda row: -row[1][0])
        return [
            {"code": encodable(code), "count": count, "example": encodable(example)} for code, (count, example) in rows
        ]


def merged_reasons(lists: Iterable[Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the reasons of several workers, given as `as_list` returns them, as those of one."""
    merged = Reasons()
    for row in (row for rows in lists for row in rows):
        merged.add(row["code"], row["example"], row["count"])
    return merged.as_list()


def shown_reasons(reasons: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the most frequent reasons for people, a line each."""
    rows = list(reasons)
    lines = []
    for row in rows[:NUM_SHOWN]:
        example = row["example"]
        # It quotes strangers: nothing in it may steer the terminal.
        lines.append(f"{row['count']:,} {row['code']}: {example if example.isprintable() else ascii(example)}")
    rest = rows[NUM_SHOWN:]
    if rest:
        lines.append(f"{sum(row['count'] for row in rest):,} for {len(rest)} other reasons")
    return lines

"""Why deliveries of jobs failed, counted by the code that their reasons begin with and the user's line; in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.base.error_origin import Origin
from headrace.base.formatting import encodable
from headrace.base.records import Job, Outcome, OutcomeKind

#: Codes are ours, stages' and users': what comes after so many different ones is counted as `other`.
MOST_CODES = 100
#: Characters of the example that is kept of each.
EXAMPLE_CHARACTERS = 300
#: Shown to people; the document has all.
NUM_SHOWN = 3

_AFTER_ITEM = re.compile(r"(?:/[0-9]+)*: (.*)", re.DOTALL)
_CODED = re.compile(r"([a-z]+\.[a-z_]+): (.*)", re.DOTALL)
_TYPE = re.compile(r"[A-Z]\w+(?=: )")
_OTHER = "other"
#: In which of a row's numbers an outcome counts.
_NUMBERS = {
    OutcomeKind.REJECTED: "count",
    OutcomeKind.DEAD_LETTERED: "count",
    OutcomeKind.RETRY: "retried",
    OutcomeKind.RETURNED: "returned",
}
_IN_WORDS = {"retried": "to be tried again", "returned": "given back"}


class Failure(NamedTuple):
    """One delivery of a job that failed."""

    code: str
    example: str
    number: str
    """`count` for one that was rejected or dead-lettered, `retried`, or `returned` where it does not count against the job."""
    item: str
    origin: Origin | None

    @property
    def key(self) -> tuple[str, Any]:
        """What failures for one reason have in common."""
        return self.code, _place_or_type(self.example, None if self.origin is None else self.origin.key)


def _place_or_type(example: str, place: tuple[str, str, int] | None) -> Any:
    """Return the place of an error; of one without (a builtin's, a C function's) its type, where the text begins with it."""
    return place or (found[0] if (found := _TYPE.match(example)) else None)


def failure_of(job: Job, outcome: Outcome) -> Failure | None:
    """Return why a delivery failed; None if it did not, or was given back because the run stopped or to wait for its turn."""
    number = _NUMBERS.get(outcome.kind)
    if number is None or (outcome.kind is OutcomeKind.RETURNED and not outcome.excused):
        return None
    return Failure(*parse_reason(outcome.reason, job.id), number, job.id, outcome.origin)


def parse_reason(reason: str, job_id: str) -> tuple[str, str]:
    """Return the code of a reason (without one, the stage it happened in), and what it says after that, cut.

    Args:
        reason: Of an outcome, `STAGE: item ID: CODE: what happened`, each part but the last only where there is one.
        job_id: With which the item's id begins. A sender chooses it, and could write into it what looks like a code.
    """
    stage, code, what = locate_reason(reason, job_id)
    return code or stage or _OTHER, what[:EXAMPLE_CHARACTERS]


def locate_reason(reason: str, job_id: str) -> tuple[str, str, str]:
    """Return the stage of a reason, its code (each empty without one), and what it says after that; see `parse_reason`."""
    stage, _, rest = reason.partition(f": item {job_id}")
    located = _AFTER_ITEM.fullmatch(rest)
    stage, what = (stage, located[1]) if located else ("", reason)
    coded = _CODED.fullmatch(what)
    code, what = coded.groups() if coded else ("", what)
    return stage, code, what


class Reasons:
    """Counts failures by code and place, each with its first as an example. Not thread-safe."""

    def __init__(self) -> None:
        self._found: dict[Any, dict[str, Any]] = {}

    def add(self, failure: Failure) -> None:
        """Count one."""
        origin = failure.origin and msgspec.to_builtins(failure.origin)
        row = self._row(failure.key, failure.code, failure.example, failure.item, origin)
        row[failure.number] += 1

    def merge(self, row: Mapping[str, Any]) -> None:
        """Count what a row of another's `as_list` says."""
        origin = row.get("origin")
        place = origin and (origin["error"], origin["file"], origin["line"])
        key = row["code"], _place_or_type(row["example"], place)
        found = self._row(key, row["code"], row["example"], row.get("first_item", ""), origin)
        for number in ("count", "retried", "returned"):
            found[number] += row.get(number, 0)

    def _row(self, key: Any, code: str, example: str, item: str, origin: Any) -> dict[str, Any]:
        if key not in self._found and len(self._found) >= MOST_CODES:
            key, code, origin = _OTHER, _OTHER, None
        return self._found.setdefault(
            key,
            {
                "code": encodable(code),
                "count": 0,
                "retried": 0,
                "returned": 0,
                "example": encodable(example),
                "first_item": encodable(item),
                "origin": origin,
            },
        )

    def as_list(self) -> list[dict[str, Any]]:
        """Return a row for each, as `pipeline.summary` describes them, the most frequent first."""
        return sorted((dict(row) for row in self._found.values()), key=lambda row: -num_failed(row))


def num_failed(row: Mapping[str, Any]) -> int:
    """Return how many deliveries failed for one reason, however they ended."""
    return int(row["count"] + row.get("retried", 0) + row.get("returned", 0))


def merge_reasons(lists: Iterable[Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the reasons of several workers, given as `as_list` returns them, as those of one."""
    merged = Reasons()
    for row in (row for rows in lists for row in rows):
        merged.merge(row)
    return merged.as_list()


def show_reasons(reasons: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the most frequent reasons for people, a line each."""
    rows = list(reasons)
    # They quote strangers: nothing in them may steer the terminal.
    lines = [
        f"{num_failed(row):,} {row['code']}: {printable(row['example'])}{printable(_ends(row))}"
        for row in rows[:NUM_SHOWN]
    ]
    rest = rows[NUM_SHOWN:]
    if rest:
        lines.append(f"{sum(map(num_failed, rest)):,} for {len(rest)} other reasons")
    return lines


def printable(text: str) -> str:
    """Return text of strangers as one line that steers no terminal."""
    return text if text.isprintable() else ascii(text)


def _ends(row: Mapping[str, Any]) -> str:
    """Return which item was the first, and how many of the deliveries are not the last of their jobs."""
    notes = [f"first {row['first_item']}"] if row.get("first_item") else []
    notes += [f"{row[number]:,} {words}" for number, words in _IN_WORDS.items() if row.get(number)]
    return f" [{'; '.join(notes)}]" if notes else ""

"""One entry of the table of checks: how a fact is read, shown and judged, why it matters, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.monitor.doctor.comparing import Compare
from headrace.monitor.doctor.machine import Machine
from headrace.runs.formats.doctor import Finding, Status, Value

Judge = Callable[[Any], tuple[Status, str] | None]
"""Takes a value of this machine alone and returns how bad it is and what is expected; None: it is good."""


def show(value: Value) -> str:
    """Return a value as people read it."""
    if value is None:
        return "no limit"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items()) or "none"
    if isinstance(value, list):
        return " ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else value or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A fact about a machine, and what is made of it."""

    name: str
    """As fingerprints have it: never renamed."""
    title: str
    weight: int
    """Place in the order of what is found: the largest first."""
    read: Callable[[Machine], Value]
    """Raises CannotTell where it is not known."""
    why: str
    do: str
    """`{enough}` stands for what a reference has, or for `enough` without one."""
    enough: int = 0
    compare: Compare | None = None
    """None: two machines may differ in it."""
    alone: Judge = lambda value: None
    """What any machine that runs headrace should have."""
    show: Callable[[Any], str] = show
    names_all: bool = True
    """Of a table: whether what is seen and not expected is a difference."""

    def judge_alone(self, value: Value) -> Finding:
        """Return what is to be said of this machine by itself."""
        judged = self.alone(value)
        if judged is None:
            return Finding(name=self.name, title=self.title, status="ok", seen=self.show(value))
        status, expected = judged
        return self._finding(status, self.show(value), expected, "", self.enough)

    def judge_against(self, value: Value, expected: Value, reference: str) -> Finding:
        """Return what is to be said of this machine, compared with a reference's value."""
        status: Status = "ok" if self.compare is None else self.compare(value, expected)
        if status != "ok" and self.show is show and isinstance(value, dict) and isinstance(expected, dict):
            value, expected = _differing(value, expected, self.names_all)
        if status != "ok" and self.show is show and isinstance(value, list) and isinstance(expected, list):
            return self._finding(status, *_missing_and_more(value, expected), reference, self.enough)
        enough = expected if isinstance(expected, int) else self.enough
        return self._finding(status, self.show(value), self.show(expected), reference, enough)

    def _finding(self, status: Status, seen: str, expected: str, reference: str, enough: int) -> Finding:
        return Finding(
            name=self.name, title=self.title, status=status, seen=seen, expected=expected, compared_with=reference,
            why=self.why, do=self.do.replace("{enough}", str(enough)),
        )  # fmt: skip


def _missing_and_more(seen: list[str], expected: list[str]) -> tuple[str, str]:
    """Return what is seen and what is expected of two lists, without what they share."""
    missing, more = ([one for one in a if one not in b] for a, b in ((expected, seen), (seen, expected)))
    parts = [f"without {' '.join(missing)}" if missing else "", f"also {' '.join(more)}" if more else ""]
    return ", ".join(part for part in parts if part), "with them" if missing else "without"


def _differing(seen: dict[str, str], expected: dict[str, str], names_all: bool) -> tuple[Value, Value]:
    """Return the entries in which two tables differ; what one of them lacks is said."""
    named = {*expected, *(seen if names_all else ())}
    names = [name for name in sorted(named) if seen.get(name) != expected.get(name)]
    absent = "not there"
    return {name: seen.get(name, absent) for name in names}, {name: expected.get(name, absent) for name in names}

"""Reads `supervised.json`: what those who watched over a run's members counted, and of what members died."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.base.documents import decode_document
from headrace.base.formatting import pluralize
from headrace.runs.contained_files import own_file
from headrace.runs.file_names import SUPERVISED_FILE

#: Causes of deaths that are told.
_MOST_CAUSES = 4


class Death(msgspec.Struct, frozen=True):
    """One death of a member."""

    worker: int
    life: int
    cause: str

    @property
    def member(self) -> str:
        """Name of its run folder."""
        return f"worker-{self.worker}-{self.life}"


class Supervision(msgspec.Struct, frozen=True):
    """What was counted, dead members included."""

    outcomes: dict[str, int]
    deaths: int = 0
    last_deaths: tuple[Death, ...] = ()

    @property
    def delivered(self) -> int:
        """Jobs that were delivered."""
        return self.outcomes.get("delivered", 0)

    def causes(self) -> Mapping[str, str]:
        """Return {member: of what it died}."""
        return {death.member: death.cause for death in self.last_deaths}

    def describe_deaths(self) -> str:
        """Return how many died of what, the most frequent cause first; empty: none died."""
        if not self.deaths:
            return ""
        groups: dict[str, list[str]] = {}
        for death in self.last_deaths:
            groups.setdefault(death.cause.partition(":")[0], []).append(death.cause)
        ordered = sorted(groups.values(), key=len, reverse=True)
        told = [f"{len(causes)} of {_shared(causes)}" for causes in ordered[:_MOST_CAUSES]]
        told += [f"{sum(map(len, ordered[_MOST_CAUSES:]))} of others"] if len(ordered) > _MOST_CAUSES else []
        left_out = f"; of the last {len(self.last_deaths)}" if self.deaths > len(self.last_deaths) else ""
        return (
            f"{pluralize(self.deaths, 'death')}{left_out}: {', '.join(told)}"
            if told
            else pluralize(self.deaths, "death")
        )


def read_supervision(folder: Path) -> Supervision | None:
    """Return what `supervised.json` of a folder says; None: there is none, or it is damaged."""
    try:
        return decode_document(own_file(folder, folder / SUPERVISED_FILE).read_bytes(), Supervision)
    except (OSError, msgspec.DecodeError):
        return None


def _shared(causes: list[str]) -> str:
    """Return the cause that several have, or where they differ in its second half, the last one's."""
    first, _, rest = causes[-1].partition(": ")
    return causes[-1] if len(set(causes)) == 1 else f"{first} (the last: {rest})"

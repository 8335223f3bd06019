"""What happened beside attempts and decisions: techniques that were not tried, validations, replays, measured pipelines."""

from __future__ import annotations

from typing import get_args

from headrace.ledger.entries import Entries
from headrace.runs.formats.events import Event, EventKind


class Events(Entries[Event]):
    """The events of a ledger; `Ledger.events` is one."""

    kind, table, letter = Event, "events", "e"

    def write(self, event: Event) -> Event:
        """Write an event down, for good, and return it with its id such as `e12`."""
        return self._write(
            event,
            {"kind": event.kind, "attempt": event.attempt, "technique": event.technique, "golden": event.golden_sha256},
        )

    def events(
        self,
        kind: EventKind | None = None,
        *,
        technique: str | None = None,
        attempt: str | None = None,
        last: int | None = None,
    ) -> list[Event]:
        """Return events, the newest first.

        Args:
            kind: Only such; None: all.
            technique: Only of techniques that begin so.
            attempt: Only about this attempt.
            last: At most so many; None for all.
        """
        return self._read(
            "WHERE (?1 IS NULL OR kind = ?1) AND (?2 IS NULL OR substr(technique, 1, length(?2)) = ?2)"
            " AND (?3 IS NULL OR attempt = ?3) ORDER BY number DESC LIMIT ?4",
            (kind, technique, attempt, -1 if last is None else last),
        )

    def count(self) -> dict[EventKind, int]:
        """Return how many there are of each kind of which there is one."""
        with self._using():
            query = "SELECT kind, count(*) FROM events GROUP BY kind"
            found: dict[EventKind, int] = dict(self._connection.execute(query).fetchall())
        return {kind: found[kind] for kind in get_args(EventKind) if kind in found}

"""Variants that were tried, whatever came of them, and what was decided: which Plan took whose place, and who said so."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec

from headrace.base.errors import LedgerError
from headrace.ledger import database
from headrace.ledger.entries import Entries
from headrace.ledger.events import Events
from headrace.runs.formats.decisions import Decision
from headrace.runs.formats.events import Event
from headrace.runs.formats.optimization import Attempt
from headrace.runs.run_folder import headrace_version, replace_file

_LAST = "ORDER BY number DESC LIMIT ?"


class Attempts(Entries[Attempt]):
    """The attempts and decisions of a ledger, and its events; `Ledger.attempts` is one."""

    kind, table, letter = Attempt, "attempts", "a"

    @cached_property
    def events(self) -> Events:
        """The events of the same ledger."""
        return Events(self._connection, self._using, self._clock, self._path)

    # --- attempts

    def write_attempt(self, attempt: Attempt) -> Attempt:
        """Write an attempt down, for good, and return it with its id such as `a12`."""
        columns = {
            "model": attempt.model, "technique": attempt.technique, "candidate": attempt.candidate,
            "artifact": attempt.artifact.sha256, "verdict": attempt.verdict, "gate": attempt.gate, "says": attempt.says,
            "golden": attempt.validation.golden_sha256 if attempt.drop is not None else "", "hardware": attempt.hardware,
            "key": attempt.key,
        }  # fmt: skip
        return self._write(msgspec.structs.replace(attempt, is_recalled=False), columns)

    def write_event(self, event: Event) -> Event:
        """Write an event down; see `Events.write`."""
        return self.events.write(event)

    def recall(self, key: str) -> Attempt | None:
        """Return the newest attempt with this key."""
        found = self._read("WHERE key = ? ORDER BY number DESC LIMIT 1", (key,))
        return found[0] if found else None

    def golden_uses(self, golden_sha256: str) -> int:
        """Return how often a golden set was used: by attempts of a search, validations and replays."""
        with self._using():
            (number,) = self._connection.execute(
                "SELECT (SELECT count(*) FROM attempts WHERE golden = ?1) + (SELECT count(*) FROM events WHERE golden = ?1)",
                (golden_sha256,),
            ).fetchone()
        return int(number)

    def attempts(self, *, last: int | None = None, technique: str | None = None) -> list[Attempt]:
        """Return attempts, the newest first.

        Args:
            last: At most so many; None for all.
            technique: Only those whose technique begins so; None: of all.
        """
        most = -1 if last is None else last
        if technique is None:
            return self._read(_LAST, (most,))
        return self._read(f"WHERE substr(technique, 1, length(?1)) = ?1 {_LAST.replace('?', '?2')}", (technique, most))

    def attempt(self, attempt_id: str) -> Attempt:
        """Return one attempt.

        Raises:
            LedgerError: If there is no such attempt.
        """
        found = self._read("WHERE number = ?", (_number(attempt_id),))
        if not found:
            raise LedgerError(f"the ledger {self._path} has no attempt {attempt_id}: look with `headrace ledger list`")
        return found[0]

    # --- decisions

    def accept(
        self, plan: Path, text: str, *, attempt_id: str | None = None, why: str, unless_exists: bool = False
    ) -> Decision:
        """Put a Plan in the place of the one in a file, and write down what was there.

        Args:
            plan: The file; made if it is missing.
            text: The Plan as TOML.
            attempt_id: Of the attempt that proved it.
            why: In words.
            unless_exists: Leave a file alone that somebody has made meanwhile.

        Raises:
            LedgerError: If the file cannot be written, or is there and must not be.
        """
        attempt = None if attempt_id is None else _number(attempt_id)

        def choose() -> _Choice:
            before = _text_of(plan)
            if before is not None and unless_exists:
                raise LedgerError(
                    f"{plan} was made by somebody else meanwhile; name another, or replace it with --force"
                )
            return _Choice("accept", before, text, attempt, why)

        return self._decide(plan, choose)

    def rollback(self, plan: Path, *, why: str = "", force: bool = False) -> Decision:
        """Put back what was in a Plan's file before the newest decision that stands.

        Decisions are a stack: each rollback takes back the newest one that was not taken back yet.

        Args:
            plan: The file.
            why: In words.
            force: Even if somebody has changed the file since.

        Raises:
            LedgerError: If nothing was decided about it, all is taken back already, or the file was changed since.
        """

        def choose() -> _Choice:
            standing = self._list_standing(plan)
            if not standing:
                raise LedgerError(
                    f"there is nothing to take back: the ledger {self._path} holds no decision about {plan} that still "
                    "stands; `headrace ledger list` shows them"
                )
            newest, now = standing[-1], _text_of(plan)
            if now != newest.after and not force:
                raise LedgerError(
                    f"{plan} was changed since decision d{newest.number}, and that change would be lost; keep a copy, then "
                    "add --force"
                )
            return _Choice("rollback", now, newest.before, newest.attempt, why or f"takes back d{newest.number}")

        return self._decide(plan, choose)

    def decisions(self, *, plan: Path | None = None, last: int | None = None) -> list[Decision]:
        """Return decisions, the newest first.

        Args:
            plan: Only about this file.
            last: At most so many; None for all.
        """
        with self._using():
            return self._decisions(plan, last)

    def decision(self, decision_id: str) -> Decision:
        """Return one decision, such as `d1`.

        Raises:
            LedgerError: If there is no such decision.
        """
        digits = decision_id.removeprefix("d")
        known = self.decisions() if decision_id.startswith("d") and digits.isdecimal() else []
        found = next((one for one in known if one.number == int(digits)), None)
        if found is None:
            raise LedgerError(
                f"the ledger {self._path} has no decision {decision_id}: look with `headrace ledger list`"
            )
        return found

    def find_in_force(self, plan: Path) -> Decision | None:
        """Return the newest decision about a Plan's file that was not taken back; None: there is none."""
        with self._using():
            standing = self._list_standing(plan)
        return standing[-1] if standing else None

    def _decisions(self, plan: Path | None, last: int | None = None) -> list[Decision]:
        condition, values = ("", []) if plan is None else ("WHERE plan = ?", [_place(plan)])
        rows = self._connection.execute(
            f"SELECT number, created, plan, action, attempt, who, why, before, after FROM decisions {condition} {_LAST}",
            (*values, -1 if last is None else last),
        ).fetchall()
        return [Decision(*row) for row in rows]

    def _list_standing(self, plan: Path) -> list[Decision]:
        """Return the decisions that were not taken back, the oldest first."""
        stack: list[Decision] = []
        for decision in reversed(self._decisions(plan)):
            if decision.action == "accept":
                stack.append(decision)
            elif stack:
                stack.pop()
        return stack

    def _decide(self, plan: Path, choose: Callable[[], _Choice]) -> Decision:
        """Write a decision and the file in one transaction: two who decide at once do so one after the other.

        The file is replaced before the decision is committed: one that cannot be written leaves no decision behind.
        """
        place, who = _place(plan), _user()
        with self._using(), database.transaction(self._connection):
            choice = choose()
            created = self._clock.unix_seconds()
            cursor = self._connection.execute(
                "INSERT INTO decisions (created, plan, action, attempt, who, why, before, after, headrace_version)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    created, place, choice.action, choice.attempt, who, choice.why, choice.before, choice.after,
                    headrace_version(),
                ),
            )  # fmt: skip
            with _translate_write_errors(plan):
                if choice.after is None:
                    plan.unlink(missing_ok=True)
                else:
                    replace_file(plan, choice.after.encode())
            number = int(cursor.lastrowid or 0)
        return Decision(
            number, created, place, choice.action, choice.attempt, who, choice.why, choice.before, choice.after
        )


@dataclass(frozen=True, slots=True)
class _Choice:
    """What is to be decided."""

    action: Literal["accept", "rollback"]
    before: str | None
    after: str | None
    attempt: int | None
    why: str


def _place(plan: Path) -> str:
    """Return the one name of a file, from whichever folder and however it is written; a link stays a link."""
    return str(plan.absolute().parent.resolve() / plan.name)


def _number(attempt_id: str) -> int:
    digits = attempt_id.removeprefix("a")
    if not attempt_id.startswith("a") or not digits.isdecimal():
        raise LedgerError(f"{attempt_id!r} is no attempt; expected an id such as a12")
    return int(digits)


def _text_of(plan: Path) -> str | None:
    if not plan.exists():
        return None
    with _translate_write_errors(plan):
        return plan.read_text()


@contextmanager
def _translate_write_errors(plan: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"the Plan's file {plan} cannot be read or written: {error}") from error


def _user() -> str:
    with suppress(Exception):  # no such user, no environment: containers
        return getpass.getuser()
    return str(os.getuid())

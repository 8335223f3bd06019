"""What lets a run over a folder or a list be resumed after any end: nothing done twice, nothing left out.

How this works. What was delivered is read back from the results themselves, so there is no second record that could
disagree with them: a line that is there is done, one that is not will be. Beside the results lies a folder:

    OUT.checkpoint/
      journal.jsonl   what the run is about; items that ended without a result, and why; how each start of the run ended
      in_hand         which items the workers took last: the suspects after a crash; see `runs.in_flight_file`

Records of the journal, after its header:

    {"began": SECONDS, "pid": N, "host": NAME}      a process started on what was left; of a portion with `listed`: how many
                                                    items the whole had then
    {"models": [...]}                               models as opened there
    {"parts": {ID: {...}}}                          what tells whether a file of many jobs, such as a clip, is the same; of
                                                    those that are new there, or changed and forced upon the run
    {"done": ID, "as": KIND, "reason": TEXT}        rejected, given_up, or delivered where results cannot be read back
    {"alone": ID or null}                           a suspect was given out alone; null: the last one is through
    {"stopping": true}                              a signal came: being killed now is nobody's fault
    {"crashed": [ID, ...], "alone": BOOL}           found at the next start: the process ended while these were in hand
    {"ended": "finished" | "interrupted" | "failed" | "stalled", "all": BOOL}   all: every job had been given out

The order that makes it right: the result is durable, then the job is settled, and only then may a journal say so. Killed
between any two of these, an item is either in the results, or is done again. Nothing is synced to disk item by item: a killed
process loses nothing that was written, and after a power cut what the disk did not get is done again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.base.errors import CheckpointError
from headrace.base.policies.suspects import Suspects
from headrace.base.records import Outcome, OutcomeKind
from headrace.runs.in_flight_file import InFlightFile, read_in_flight
from headrace.runs.journal import Journal
from headrace.sources.finite import Entry, WorkList

logger = logging.getLogger("headrace")

#: Version of the journal. 1: 2026-11, first.
VERSION = 1
JOURNAL = "journal.jsonl"
IN_HAND = "in_hand"
#: What a person can do who knows better.
FORCE = "or go on all the same with --force (force=True)"
_KIND = {OutcomeKind.DELIVERED: "delivered", OutcomeKind.REJECTED: "rejected"}


@dataclass(frozen=True, slots=True)
class Before:
    """How far a run was when this start of it began."""

    total: int | None
    """Entries of the source, with those done before; None: the source cannot list them."""
    delivered: int
    rejected: int
    given_up: int
    left: int | None
    """Entries for this start; None: the source cannot list them."""
    given_up_now: Mapping[str, str]
    """{item: reason} of those that this start gives up before it begins: they ended the process too often."""

    @property
    def done(self) -> int:
        """Entries that ended before."""
        return self.delivered + self.rejected + self.given_up


@dataclass(slots=True)
class Past:
    """What a journal tells."""

    done: dict[str, str] = field(default_factory=dict)
    """{item: rejected | given_up | delivered}."""
    suspects: Suspects = field(default_factory=Suspects)
    models: list[Any] | None = None
    parts: dict[str, Any] = field(default_factory=dict)
    is_cut_off: bool = False
    """The last start did not come to its end."""
    has_more: bool = False
    """It came to its end, but was not to do all of it."""
    crashed: bool = False
    """Nobody knows how it ended, and nobody had asked it to."""
    alone: str | None = None
    num_listed: int | None = None
    """Items of the whole when this portion of it was last begun; None: it is no portion, or nobody noted it."""

    def read(self, record: Mapping[str, Any]) -> None:
        """Take in the next record."""
        match record:
            case {"began": _}:
                self.num_listed = record.get("listed")
                self.is_cut_off, self.crashed, self.alone = True, True, None
            case {"models": list(models)}:
                self.models = models
            case {"parts": dict(parts)}:
                self.parts |= parts
            case {"done": str(item), "as": str(kind)}:
                self.done[item] = kind
            case {"crashed": list(items), "alone": alone}:
                self.suspects.note_crash(items, alone=bool(alone))
                self.crashed = False
            case {"alone": alone}:
                self.alone = alone
            case {"stopping": _}:
                self.crashed = False
            case {"ended": ended}:
                # What hangs where nobody can go on without it is as good as a crash.
                self.is_cut_off, self.crashed = ended != "finished", ended == "stalled"
                self.has_more = not record.get("all", True)


class Checkpoint:
    """The checkpoint of a run in progress; holds its lock. Made by `resuming.open_checkpoint`.

    Attributes:
        before: How far the run was; None when it is new.
        left: Entries to do; of a source that cannot list them, those that are given out alone.
        num_left: How many there are to do; None: the source cannot list them.
        observer: Notes which items are in hand.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        past: Past,
        entries: Sequence[Entry],
        delivered: set[str],
        *,
        max_crashes: int,
        notes_delivered: bool,
        resumed: bool,
        num_listed: int | None = None,
        earlier: tuple[dict[str, Any], Sequence[dict[str, Any]]] | None = None,
        is_job: Callable[[str], bool] | None = None,
    ) -> None:
        self._journal = journal
        self._earlier = earlier
        """Header and records of the run whose place this one takes: put back if this one begins nothing."""
        self._past = past
        self._notes_delivered = notes_delivered
        self._noted_stopping = False
        self._is_stopping: Callable[[], bool] = bool
        ids = {entry.id for entry in entries}
        self._blame(folder, delivered, is_job or ids.__contains__)
        self.observer = InFlightFile(folder / IN_HAND)
        if is_job is not None:
            self._note_parts(entries)
        began = {"began": time.time(), "pid": os.getpid(), "host": socket.gethostname()}
        journal.must_append(began if num_listed is None else {**began, "listed": num_listed})
        given_up = self._give_up_guilty(delivered, max_crashes)
        self._ended: set[str] = set() if is_job is None else delivered | past.done.keys()
        # Where the jobs are not listed, only suspects are known by now; the source knows what comes after them.
        known = entries if is_job is None else [Entry(item, b"") for item in past.suspects.crashes if is_job(item)]
        todo = {entry.id: entry for entry in known if entry.id not in delivered and entry.id not in past.done}
        first = past.suspects.sort_suspects(todo)
        self.num_alone = len(first)
        self.left = [*(todo.pop(item) for item in first), *todo.values()]
        self.num_left = len(self.left) if is_job is None else None
        self.before: Before | None = None
        if resumed:
            kinds = list(past.done.values())
            self.before = Before(
                len(ids | delivered | past.done.keys()) if is_job is None else None,
                len(delivered | {item for item, kind in past.done.items() if kind == "delivered"}),
                kinds.count("rejected"),
                kinds.count("given_up") - len(given_up),
                self.num_left,
                given_up,
            )

    @property
    def num_done(self) -> int:
        """Entries that ended before this start of the run, or with it."""
        return 0 if self.before is None else self.before.done + len(self.before.given_up_now)

    def make_work_list(self, is_stopping: Callable[[], bool]) -> WorkList:
        """Return what the source is to follow.

        Args:
            is_stopping: Whether the run was asked to stop.
        """
        self._is_stopping = is_stopping
        return WorkList(self.left, self.num_alone, self._note_given_alone, self._note_settled, self._tend, self._ended)

    def check_models(self, variants: Sequence[Mapping[str, Any]], force: bool) -> None:
        """Note which models were opened; the answers of others must not stand beside those that are there.

        Raises:
            CheckpointError: If they are others than before, and `force` is not given.
        """
        models = sorted((str(one.get("artifact")), str(one["sha256"])) for one in variants if one.get("sha256"))
        noted = [list(model) for model in models]
        if self._past.models is not None and noted != self._past.models and not force:
            raise CheckpointError(
                f"the run was begun with the models {_name(self._past.models)} and would be resumed with {_name(noted)}: "
                f"their answers would be mixed; bring back the file, write to another output, {FORCE}"
            )
        if noted:
            self._journal.append({"models": noted})

    def close(self, ended: str, *, is_all: bool = True, discard: bool = False) -> None:
        """Note how the run ended and let others have the checkpoint.

        Args:
            ended: finished, interrupted, failed or stalled.
            is_all: Every job had been given out.
            discard: Nothing was begun: leave no trace, so that the next start need not say how it relates to this one.
        """
        if discard and self._earlier is not None:
            self.observer.close()
            self._journal.begin(*self._earlier)
            self._journal.close()
            return
        self._journal.append({"ended": ended, "all": is_all})
        self.observer.close()
        if discard:
            self._journal.path.unlink(missing_ok=True)
            self._journal.path.with_name(IN_HAND).unlink(missing_ok=True)
        self._journal.close()
        if discard:
            with contextlib.suppress(OSError):  # a folder in which others keep files stays
                self._journal.path.parent.rmdir()

    def _note_parts(self, entries: Sequence[Entry]) -> None:
        """Note what tells later whether these parts of the source are the same."""
        was = self._past.parts
        parts = {
            one.id: dict(one.attributes) for one in entries if one.attributes and was.get(one.id) != one.attributes
        }
        if parts:
            self._journal.must_append({"parts": parts})

    def _blame(self, folder: Path, delivered: set[str], is_known: Callable[[str], bool]) -> None:
        """Note who was in hand when the process before this one ended without a word."""
        past = self._past
        if not past.crashed:
            return
        in_hand = (
            [past.alone] if past.alone else [_entry_of(item, is_known) for item in read_in_flight(folder / IN_HAND)]
        )
        crashed = sorted(
            {item for item in in_hand if is_known(item) and item not in delivered and item not in past.done}
        )
        record = {"crashed": crashed, "alone": past.alone is not None}
        self._journal.must_append(record)
        past.read(record)

    def _give_up_guilty(self, delivered: set[str], max_crashes: int) -> dict[str, str]:
        suspects, done = self._past.suspects, self._past.done
        guilty: dict[str, str] = {}
        for item, crashes in suspects.crashes.items():
            if item in done or item in delivered or not suspects.is_guilty(item, max_crashes):
                continue
            guilty[item] = (
                f"the process ended {crashes} times while working on it, the last time on nothing else; limit: {max_crashes} "
                "(source.max_receives)"
            )
            logger.warning("%s is given up: %s", item, guilty[item])
            self._note(item, "given_up", guilty[item])
        return guilty

    def _note_given_alone(self, item: str | None) -> None:
        self._journal.append({"alone": item})

    def _note_settled(self, item: str, outcome: Outcome) -> None:
        kind = _KIND.get(outcome.kind, "given_up")
        # One that could not be delivered is left for the next start: the disk may have room by then.
        if not outcome.undelivered and (kind != "delivered" or self._notes_delivered):
            self._note(item, kind, outcome.reason)

    def _note(self, item: str, kind: str, reason: str) -> None:
        self._past.done[item] = kind
        self._journal.append({"done": item, "as": kind, **({"reason": reason[:2000]} if reason else {})})

    def _tend(self) -> None:
        if not self._noted_stopping and self._is_stopping():
            self._noted_stopping = True
            self._journal.append({"stopping": True})


def _entry_of(item: str, is_known: Callable[[str], bool]) -> str:
    """Return the entry that a child was cut from: its id is the entry's, with numbers behind."""
    while not is_known(item) and "/" in item:
        parent, _, number = item.rpartition("/")
        if not number.isdecimal():
            break
        item = parent
    return item


def _name(models: Sequence[Sequence[str]]) -> str:
    return ", ".join(f"{name} ({digest[:12]})" for name, digest in models) or "none"

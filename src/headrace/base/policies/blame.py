"""Which job killed a worker: what is known about messages that were in flight when a worker process died.

A process that dies takes all its messages with it, the one that killed it and those that were merely there. The rules:

- Messages in work when a worker crashed are suspects, and a suspect is run with nothing beside it.
- A message that was the only one in work when a worker crashed, and at least for the second time there when one did, is
  blamed: it is dead-lettered with the reason and run no more.
- A SIGKILL that the kernel's out-of-memory killer did not send came from outside and blames nobody. Still, a message that
  met two of them in work is run alone, for there are killers that want to free memory and count nowhere.
- A delivery that ended with the death of a worker in which others were in work too does not count against the number of
  deliveries allowed. One that ended alone in work does: so the count ends what nobody can explain.
- A message that merely waited is a suspect too where nothing was in work: after several deaths, or after one crash of a worker
  that had nothing else. Something kills before a stage works on it, or after one did: a signal that a process sends itself
  goes to any of its threads, and an accelerator fails when it comes to it. A suspect is in work from when it is handed out,
  alone, so that its count ends it. `MOST_EXCUSED` is for what even that does not find.

Machines of a fleet tell one another their records of suspects. A message is lent to one of them at a time, so the record that
counts most is the newest one; a record is never added to another that may have come of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

#: Kills from outside after which a message is suspected.
SUSPICIOUS_KILLS = 2
#: The same for deaths at which nothing was in work.
SUSPICIOUS_WAITS = 3
#: Crashes after which a message is blamed, the last of them alone.
BLAMED_CRASHES = 2
#: Deliveries of one message that are excused at most, so that whatever happens its deliveries come to an end.
MOST_EXCUSED = 100
#: The most messages that are remembered: those of some hundred deaths with full buffers.
NUM_REMEMBERED = 50_000


class Death(msgspec.Struct, frozen=True, tag=True):
    """One death of a worker process."""

    cause: str
    """Such as `SIGSEGV` or `exit code 3`."""
    crashed: bool
    """The worker crashed by itself; False: it was killed from outside."""
    in_work: Sequence[str]
    """Ids of the messages that a stage worked on."""
    waiting: Sequence[str]
    """Ids of those that were merely lent to it."""
    in_work_elsewhere: int = 0
    """How many more were worked on, which another part of the same death names."""
    waiting_elsewhere: int = 0
    """The same for those that were merely lent."""

    def parts(self, most: int) -> list[Death]:
        """Return parts that name so many waiting messages at most; noting each of them is noting the whole."""
        num_waiting = len(self.waiting)
        if num_waiting <= most:
            return [self]
        portions = [self.waiting[first : first + most] for first in range(0, num_waiting, most)]
        return [
            Death(
                self.cause,
                self.crashed,
                () if number else self.in_work,
                portion,
                len(self.in_work) if number else 0,
                num_waiting - len(portion),
            )
            for number, portion in enumerate(portions)
        ]


class Redriven(msgspec.Struct, frozen=True, tag=True):
    """A message came with a lower count of deliveries: somebody redrove it, and its record is forgotten."""

    id: str
    times: int = 1
    """How often that is known to have happened."""


@dataclass(slots=True)
class Record:
    """The known deaths of workers with one message in flight."""

    deaths: int = 0
    """Workers that died with it, whatever it did."""
    crashes: int = 0
    """Crashes while it was in work, or all that there was."""
    kills: int = 0
    """Kills from outside while it was in work."""
    excused: int = 0
    """Deliveries that are not to count against it."""
    unexplained: int = 0
    """Deaths at which it waited and nothing was in work."""
    blamed: bool = False
    cause: str = ""
    """Of the last death that it was in work at."""
    redriven: int = 0
    """How often it was redriven, which makes all that was known before void."""

    def excuse(self) -> None:
        """Let a delivery not count, as long as there were not too many of those."""
        self.excused = min(self.excused + 1, MOST_EXCUSED)

    def add(self, other: Record) -> None:
        """Add the record of another process."""
        self.deaths += other.deaths
        self.crashes += other.crashes
        self.kills += other.kills
        self.excused = min(self.excused + other.excused, MOST_EXCUSED)
        self.unexplained += other.unexplained
        self.blamed = self.blamed or other.blamed
        self.cause = other.cause or self.cause
        self.redriven = max(self.redriven, other.redriven)

    def newest(self, other: Record) -> Record:
        """Return what this record and another machine's of the same message say together; the same if it is done again."""
        if self.redriven != other.redriven:
            return max(self, other, key=lambda record: record.redriven)
        return Record(
            deaths=max(self.deaths, other.deaths),
            crashes=max(self.crashes, other.crashes),
            kills=max(self.kills, other.kills),
            excused=max(self.excused, other.excused),
            unexplained=max(self.unexplained, other.unexplained),
            blamed=self.blamed or other.blamed,
            cause=max(self.cause, other.cause),
            redriven=self.redriven,
        )

    @property
    def is_news(self) -> bool:
        """Whether other machines are to know it: those that merely waited beside what was in work are no suspects."""
        return bool(self.crashes or self.kills or self.unexplained or self.redriven)

    @property
    def is_suspect(self) -> bool:
        """Whether it is to run alone."""
        return self.crashes > 0 or self.kills >= SUSPICIOUS_KILLS or self.unexplained >= SUSPICIOUS_WAITS

    @property
    def was_alone(self) -> bool:
        """Whether a delivery ended with a death that is not excused: it was alone in work."""
        return self.deaths > self.excused

    @property
    def reason(self) -> str:
        """Why it is blamed."""
        return (
            f"killed its worker {self.crashes} times ({self.cause}), the last time with nothing else in work: a crash in "
            "native code or too little memory are the usual causes"
        )


class Known(msgspec.Struct, frozen=True, tag=True):
    """Records of the messages that dead processes had in flight, by id."""

    records: dict[str, Record]


class Elsewhere(msgspec.Struct, frozen=True, tag=True):
    """Records that other machines told of, by id: to be joined with what is known, and not added to it."""

    records: dict[str, Record]


class BlameBook:
    """Records of messages that were in flight when workers died. Not thread-safe.

    Args:
        num_remembered: The oldest records beyond that are forgotten.
    """

    def __init__(self, num_remembered: int = NUM_REMEMBERED) -> None:
        self._num_remembered = num_remembered
        self._records: OrderedDict[str, Record] = OrderedDict()

    def note_death(self, death: Death) -> None:
        """Note a death."""
        alone = len(death.in_work) == 1
        is_unexplained = not death.in_work and not death.in_work_elsewhere
        is_all = is_unexplained and len(death.waiting) + death.waiting_elsewhere == 1
        for message_id in death.waiting:
            record = self._record(message_id)
            record.deaths += 1
            record.unexplained += is_unexplained
            record.crashes += is_all and death.crashed  # suspected, never blamed: it may have come just then
            record.excuse()
        for message_id in death.in_work:
            record = self._record(message_id)
            record.deaths += 1
            record.cause = death.cause
            if not alone:
                record.excuse()
            if death.crashed:
                record.crashes += 1
                record.blamed = record.blamed or (alone and record.crashes >= BLAMED_CRASHES)
            else:
                record.kills += 1
        self._forget_oldest()

    def learn(self, records: Mapping[str, Record]) -> None:
        """Add the records of a dead process."""
        for message_id, record in records.items():
            self._record(message_id).add(record)
        self._forget_oldest()

    @property
    def records(self) -> Mapping[str, Record]:
        """All that is known, the oldest first."""
        return self._records

    def join(self, records: Mapping[str, Record]) -> dict[str, Record]:
        """Take note of what another machine knows, and return what was new of it."""
        new = {}
        for message_id, record in records.items():
            known = self._records.get(message_id, Record())
            if (joined := known.newest(record)) != known:
                self._records[message_id] = new[message_id] = joined
        self._forget_oldest()
        return new

    def news(self, most: int) -> dict[str, Record]:
        """Return what other machines are to know, so many of the newest records at most."""
        found = [(message_id, record) for message_id, record in self._records.items() if record.is_news]
        return dict(found[-most:])

    def forget(self, message_id: str, times: int = 1) -> None:
        """Forget all deaths of a message, which was redriven so often: somebody fixed what killed workers, or wants to try."""
        self._records[message_id] = Record(redriven=max(times, self._record(message_id).redriven))

    def get(self, message_id: str) -> Record | None:
        """Return the record of a message; None if no death is known of it."""
        record = self._records.get(message_id)
        return record if record is not None and record.deaths else None

    def _forget_oldest(self) -> None:
        while len(self._records) > self._num_remembered:
            self._records.popitem(last=False)

    def _record(self, message_id: str) -> Record:
        record = self._records.setdefault(message_id, Record())
        self._records.move_to_end(message_id)
        return record

"""A queue kept in a folder, one file per message: `spool:///jobs`, or `spool:////var/jobs` for an absolute path.

How this works: `messages` and `dead` hold JSON files, whose names are the ids of the messages and give their order. Every step
takes a lock on the file `lock`, which keeps threads and processes apart, and replaces files in one step. A message can be
received from `visible_at` on; receiving it moves that into the future, so a loan that runs out needs nobody to notice it.

Made to be read: each step reads all messages, loans go by the wall clock, and a power cut may lose what was just sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import SplitResult, unquote

import msgspec

from headrace.base.errors import QueueUnavailable, SettingsError, SourceError
from headrace.base.protocols import STALE
from headrace.base.records import Burial, DeadLetter, Message, Postponed, QueueStatistics
from headrace.sources.addresses import Address, QueueScheme

#: How often a receive that waits looks for messages.
POLL_SECONDS = 0.02


class Row(msgspec.Struct):
    """What one file holds: a message, or a dead letter."""

    body: bytes
    sent_at: float
    visible_at: float = 0.0
    is_lent: bool = False
    receive_count: int = 0
    num_deliveries: int = 0
    """As `receive_count`, but never set back: it tells the receipts of one message apart."""
    kept: bytes = b""
    malformed: str = ""
    reason: str = ""
    died_at: float = 0.0


class SpoolQueue:
    """A queue in a folder, shared by the processes of one host. Thread-safe.

    Args:
        folder: Made when it is missing.
        visibility_seconds: How long a received message stays lent.

    Raises:
        SourceError: If the folder cannot be made.
    """

    is_local = True  # who can write here can write on this machine: jobs may name files

    def __init__(self, folder: Path, *, visibility_seconds: float = 30.0) -> None:
        self.name = f"spool:///{folder}"
        self.visibility_seconds = visibility_seconds
        self._folder = folder.absolute()
        self._messages, self._dead = self._folder / "messages", self._folder / "dead"
        try:
            self._messages.mkdir(parents=True, exist_ok=True)
            self._dead.mkdir(exist_ok=True)
        except OSError as error:
            raise SourceError(f"{self.name} cannot be made: {error}") from error

    def send(self, bodies: Sequence[bytes], *, delay_seconds: float = 0.0) -> list[str]:
        """Store messages and return their ids, in order."""
        now = time.time()
        prefix = f"{time.time_ns():020d}-{os.urandom(4).hex()}"
        ids = [f"{prefix}-{number:06d}" for number in range(len(bodies))]
        with self._locked():
            for id_, body in zip(ids, bodies, strict=True):
                _write(self._messages / id_, Row(bytes(body), now, now + delay_seconds))
        return ids

    def receive(self, max_messages: int, *, wait_seconds: float = 0.0) -> list[Message]:
        """Return up to max_messages; wait up to wait_seconds for the first."""
        give_up_at = time.monotonic() + wait_seconds
        while True:
            with self._locked():
                messages = [self._lend(path, row) for path, row in self._visible()[:max_messages]]
            if messages or time.monotonic() >= give_up_at:
                return messages
            time.sleep(POLL_SECONDS)

    def ack(self, receipts: Sequence[str]) -> dict[str, str]:
        """Remove messages for good."""
        return self._each(receipts, lambda path, row: path.unlink())

    def nack(self, receipts: Sequence[str], *, delay_seconds: float = 0.0) -> dict[str, str]:
        """Offer messages again after a delay."""

        def offer(path: Path, row: Row) -> None:
            row.is_lent, row.visible_at = False, time.time() + delay_seconds
            _write(path, row)

        return self._each(receipts, offer)

    def extend(self, receipts: Sequence[str], seconds: float) -> dict[str, str]:
        """Extend the loans to this many seconds from now."""

        def extend(path: Path, row: Row) -> None:
            row.visible_at = time.time() + seconds
            _write(path, row)

        return self._each(receipts, extend)

    def postpone(self, postponed: Sequence[Postponed]) -> dict[str, str]:
        """Offer messages again later as if they were new."""

        def offer_as_new(one: Postponed, path: Path, row: Row) -> None:
            row.is_lent, row.receive_count, row.kept = False, 0, one.kept
            row.visible_at = time.time() + one.delay_seconds
            _write(path, row)

        failed: dict[str, str] = {}
        for one in postponed:
            failed |= self._each([one.message.receipt], functools.partial(offer_as_new, one))
        return failed

    def dead_letter(self, burials: Sequence[Burial]) -> dict[str, str]:
        """Move messages with their reasons to the dead letters."""

        def bury(one: Burial, path: Path, row: Row) -> None:
            row.is_lent, row.reason, row.died_at, row.kept = False, one.reason, time.time(), one.kept
            _write(self._dead / path.name, row)
            path.unlink()

        failed: dict[str, str] = {}
        for one in burials:
            failed |= self._each([one.message.receipt], functools.partial(bury, one))
        return failed

    def statistics(self) -> QueueStatistics:
        """Return exact counts."""
        with self._locked():
            rows, visible = [row for _, row in _rows(self._messages)], [row for _, row in self._visible()]
            dead = sum(1 for _ in _rows(self._dead))
        hidden = len(rows) - len(visible)
        now = time.time()
        in_flight = sum(row.is_lent and row.visible_at > now for row in rows)
        oldest = min((row.sent_at for row in visible), default=None)
        age = None if oldest is None else max(0.0, now - oldest)
        return QueueStatistics(len(visible), in_flight, max(0, hidden - in_flight), dead, age)

    def peek(self, max_messages: int, *, dead: bool = False) -> list[Message] | list[DeadLetter]:
        """Return messages that could be received now, or dead letters, without touching them."""
        with self._locked():
            if dead:
                return [
                    DeadLetter(path.name, row.body, row.reason, row.receive_count, row.died_at, row.kept)
                    for path, row in list(_rows(self._dead))[:max_messages]
                ]
            return [_message(path, row, "") for path, row in self._visible()[:max_messages]]

    def redrive(self, max_messages: int | None = None, *, rework: bool = False) -> int:
        """Move the oldest dead letters back with a receive count of zero and return how many."""
        with self._locked():
            letters = list(_rows(self._dead))[:max_messages]
            for path, row in letters:
                row.receive_count, row.visible_at, row.kept = 0, 0.0, b"" if rework else row.kept
                _write(self._messages / path.name, row)
                path.unlink()
        return len(letters)

    def purge(self, *, dead: bool = False) -> int:
        """Remove all messages, or all dead letters, and return how many."""
        with self._locked():
            paths = [path for path, _ in _rows(self._dead if dead else self._messages)]
            for path in paths:
                path.unlink()
        return len(paths)

    def close(self) -> None:
        """Nothing is open between two calls."""

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            # A file object of its own for each call: flock keeps those apart, in one process too.
            with (self._folder / "lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except FileNotFoundError as error:
            raise SourceError(f"{self.name} is gone: {error}") from error
        except OSError as error:
            raise QueueUnavailable(f"{self.name}: {error}") from error

    def _visible(self) -> list[tuple[Path, Row]]:
        now = time.time()
        return [(path, row) for path, row in _rows(self._messages) if row.visible_at <= now]

    def _lend(self, path: Path, row: Row) -> Message:
        row.is_lent, row.visible_at = True, time.time() + self.visibility_seconds
        row.receive_count += 1
        row.num_deliveries += 1
        _write(path, row)
        return _message(path, row, f"{path.name}/{row.num_deliveries}")

    def _each(self, receipts: Sequence[str], change: Callable[[Path, Row], None]) -> dict[str, str]:
        """Change the messages that are lent by these receipts, and return those that are not."""
        failed: dict[str, str] = {}
        with self._locked():
            for receipt in receipts:
                id_, _, delivery = receipt.rpartition("/")
                path = self._messages / id_
                row = _read(path) if path.is_file() else None
                if row is not None and row.is_lent and str(row.num_deliveries) == delivery:
                    change(path, row)
                else:
                    failed[receipt] = STALE
        return failed


def _rows(folder: Path) -> Iterator[tuple[Path, Row]]:
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            yield path, _read(path)


def _read(path: Path) -> Row:
    """Return what a file holds; what somebody else put there becomes a message that says so."""
    data = path.read_bytes()
    try:
        return msgspec.json.decode(data, type=Row)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        body = data.decode("utf-8", "backslashreplace").encode() or b"(empty)"
        return Row(body, path.stat().st_mtime, malformed=f"message.malformed: {error}")


def _write(path: Path, row: Row) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_bytes(msgspec.json.encode(row))
    partial.replace(path)


def _message(path: Path, row: Row, receipt: str) -> Message:
    return Message(path.name, row.body, receipt, row.receive_count, row.sent_at, row.kept, row.malformed)


def _find_folder(parts: SplitResult) -> Path:
    return Path(unquote(parts.path[1:]))


def _check(parts: SplitResult) -> None:
    if parts.netloc or len(parts.path) < 2:
        raise SettingsError(
            "spool:// is followed by a third slash and the folder: spool:///jobs, or spool:////var/jobs"
        )


def _open(address: Address) -> SpoolQueue:
    return SpoolQueue(_find_folder(address.parts), visibility_seconds=address.visibility_or())


SCHEME = QueueScheme(open=_open, check=_check, find_file=_find_folder, is_remote=False)

"""Answers to requests that did not wait for them, in a folder that several processes share.

How this works: each job has a file, named by a digest of its id. It is made when the job is let in, so that of several tries of
one request only one becomes a job, whichever processes they come to, and it is replaced once the job has ended. Each process
removes the oldest files of those that it wrote; what a process that has ended left behind, its successor takes over. As long
as a process lives it holds a lock of its own: a job whose process is gone is lost, and who asks for it hears of that.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.serve.door import Ended
from headrace.serve.kept_answers import KEPT_SECONDS, MOST_ANSWERS, MOST_BYTES, KeptAnswer, may_try_again

logger = logging.getLogger("headrace")

_LOCK, _NEW = ".alive", ".new"


class _Entry(msgspec.Struct, kw_only=True):
    """The content of a job's file."""

    owner: str
    """The process that works on it, or did."""
    content: str
    ended: Ended | None = None
    until: float = 0.0
    """On the host's monotonic clock; counts once it has ended."""


_decoder = msgspec.msgpack.Decoder(_Entry)


class AnswersFolder:
    """By the job's id, as `KeptAnswers`; thread-safe.

    Args:
        folder: Of all processes that share the port.
        owner: Name of this process, which no other has, before it or beside it.

    Raises:
        OSError: If nothing can be written there.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = folder
        self._owner = owner
        self._lock = threading.Lock()
        self._working: dict[str, str] = {}
        self._ended: OrderedDict[Path, tuple[float, int]] = OrderedDict()
        self._num_bytes = 0
        self._alive = os.open(folder / (owner + _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Of this process alone: children that it forks do not keep it, as they would with flock.
        fcntl.lockf(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._take_over()

    def open(self, job_id: str, content: str = "") -> KeptAnswer:
        """Keep a place for a job's answer; of a job that is known already, return what there is.

        Args:
            job_id: The job's.
            content: Tells what the job carries from what others do.

        Raises:
            OSError: If nothing can be written.
        """
        place, entry = self._place(job_id), _Entry(owner=self._owner, content=content)
        if not self._make(place, entry):
            known = self._read(place)
            if known is not None and not self._is_lost(known) and not may_try_again(known.ended):
                return KeptAnswer(known.ended, is_new=False, is_another=known.content != content)
            self._write(place, entry)
        with self._lock:
            self._working[job_id] = content
        return KeptAnswer(content=content)

    def drop(self, job_id: str) -> None:
        """Forget a job that was not let in."""
        with self._lock:
            self._working.pop(job_id, None)
        _remove(self._place(job_id))

    def close(self, job_id: str, ended: Ended) -> None:
        """Keep a job's answer; one that cannot be written is logged, and nobody waits for it any more."""
        place, now = self._place(job_id), time.monotonic()
        with self._lock:
            content = self._working.pop(job_id, "")
        entry = _Entry(owner=self._owner, content=content, ended=ended, until=now + KEPT_SECONDS)
        try:
            num_bytes = self._write(place, entry)
        except OSError as error:
            logger.error("the answer to job %.100s cannot be kept: %s", job_id, error)
            _remove(place)
            return
        with self._lock:
            self._note(place, entry.until, num_bytes)
            old = self._pop_old(now)
        for one in old:
            _remove(one)

    def find(self, job_id: str) -> KeptAnswer | None:
        """Return how it stands with a job; None if it is not known."""
        known = self._read(self._place(job_id))
        if known is None:
            return None
        return KeptAnswer(known.ended, is_new=False, is_lost=self._is_lost(known))

    def _place(self, job_id: str) -> Path:
        return self._folder / hashlib.sha256(job_id.encode("utf-8", "surrogatepass")).hexdigest()

    def _make(self, place: Path, entry: _Entry) -> bool:
        """Make a file unless it is there; others see it with all that it holds."""
        made = self._write_beside(place, entry)[0]
        try:
            os.link(made, place)
        except FileExistsError:
            return False
        finally:
            made.unlink()
        return True

    def _write(self, place: Path, entry: _Entry) -> int:
        made, num_bytes = self._write_beside(place, entry)
        made.replace(place)
        return num_bytes

    def _write_beside(self, place: Path, entry: _Entry) -> tuple[Path, int]:
        made = place.with_name(f"{place.name}.{self._owner}.{threading.get_ident()}{_NEW}")
        encoded = msgspec.msgpack.encode(entry)
        try:
            made.write_bytes(encoded)
        except OSError:
            made.unlink(missing_ok=True)
            raise
        return made, len(encoded)

    def _read(self, place: Path) -> _Entry | None:
        try:
            entry = _decoder.decode(place.read_bytes())
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return entry if entry.ended is None or entry.until > time.monotonic() else None

    def _is_lost(self, entry: _Entry) -> bool:
        return entry.ended is None and not self._lives(entry.owner)

    def _lives(self, owner: str) -> bool:
        if owner == self._owner:  # to open its lock again and close it would give it up
            return True
        try:
            lock = os.open(self._folder / (owner + _LOCK), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def _take_over(self) -> None:
        """Look after the files of processes that are gone from now on."""
        lives: dict[str, bool] = {}
        found = []
        for file in self._folder.iterdir():
            entry = self._read(file) if not file.suffix else None
            if entry is not None and not lives.setdefault(entry.owner, self._lives(entry.owner)):
                found.append((entry.until or time.monotonic() + KEPT_SECONDS, file, file.stat().st_size))
        for until, file, num_bytes in sorted(found):
            self._note(file, until, num_bytes)

    def _note(self, place: Path, until: float, num_bytes: int) -> None:
        self._num_bytes += num_bytes - self._ended.pop(place, (0.0, 0))[1]
        self._ended[place] = (until, num_bytes)

    def _pop_old(self, now: float) -> list[Path]:
        old = []
        while self._ended:
            place, (until, num_bytes) = next(iter(self._ended.items()))
            if len(self._ended) <= MOST_ANSWERS and self._num_bytes <= MOST_BYTES and until > now:
                break
            del self._ended[place]
            self._num_bytes -= num_bytes
            old.append(place)
        return old


def _remove(place: Path) -> None:
    """Remove a file where that can be: nobody is to go without an answer because an old one cannot be removed."""
    with suppress(OSError):
        place.unlink()

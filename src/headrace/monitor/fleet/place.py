"""Where heartbeats and other notes are left: a folder that all machines see, or a Redis server. Each worker's newest stays.

How old one is says the place, by one clock for all: when the file was written, or how much is left of a key's life. The
workers' own clocks, and the reader's, may be wrong.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from headrace.base.errors import HeadraceError, MissingExtra, SettingsError
from headrace.base.given_files import read_given_file
from headrace.base.redaction import hide_secrets_in_text
from headrace.runs.run_folder import replace_file

#: What a worker that is gone left behind is removed, or not shown any more, after so long.
KEPT_SECONDS = 86_400.0
#: A heartbeat has some hundred bytes; and more files than this are no fleet's.
MOST_BYTES, MOST_WORKERS = 65_536, 20_000
#: What is left, and by what its files and keys are known.
Notes = Literal["heartbeats", "suspects"]
_SUFFIXES = {"heartbeats": ".heartbeat.json", "suspects": ".suspects.msgpack"}
_KEYS = {"heartbeats": "headrace:fleet:", "suspects": "headrace:suspects:"}
_REDIS_SECONDS = 5.0


class PlaceUnavailable(HeadraceError):
    """Heartbeats cannot be left or read there now."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is there of one worker."""

    name: str
    content: bytes
    """Empty if it cannot be read."""
    age_seconds: float
    """Since it was left, by the place's clock."""


class Place(Protocol):
    """Keeps the newest heartbeat of each worker."""

    def put(self, worker: str, content: bytes) -> None:
        """Replace a worker's heartbeat; PlaceUnavailable if that fails."""
        ...

    def now(self) -> float:
        """Return Unix seconds by the place's clock; PlaceUnavailable if it cannot be asked."""
        ...

    def read_all(self) -> Iterator[Left]:
        """Give what is there of each worker, sorted by name; PlaceUnavailable if it cannot be read."""
        ...


def open_place(address: str, notes: Notes = "heartbeats") -> Place:
    """Return the place that an address names: a folder, or `redis://HOST`.

    Raises:
        SettingsError: If it names none, or cannot be understood.
    """
    scheme, mark, _ = address.partition("://")
    if not mark:
        return FolderPlace(Path(address), notes)
    if scheme not in ("redis", "rediss"):
        raise SettingsError(
            f"heartbeats are kept in a folder or at redis://HOST; got an address that begins with {scheme}://"
        )
    if not _is_understood(address):
        raise SettingsError(
            "the address of the heartbeats cannot be understood; expected one like redis://HOST:6379/0, and in a password %2F "
            "for /, %3F for ? and %23 for #"
        )
    return RedisPlace(address, notes)


def _is_understood(address: str) -> bool:
    """Return whether the host of an address is what it says: a password that is not quoted may be split, `:12/3@host`."""
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:  # what Python says of it may quote a part of the password
        return False
    # The query may be a queue's, with a value that has the sign.
    return "@" not in parts.path + parts.fragment + parts.query.partition("=")[0]


class FolderPlace:
    """A folder that all machines see."""

    def __init__(self, folder: Path, notes: Notes = "heartbeats") -> None:
        self._folder = folder
        self._suffix = _SUFFIXES[notes]

    def put(self, worker: str, content: bytes) -> None:
        """See `Place`."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._folder / f"{worker}{self._suffix}", content)
        except OSError as error:
            raise PlaceUnavailable(f"{self._folder}: {error.strerror}") from None

    def now(self) -> float:
        """See `Place`: when a new file was written, as the disk's own machine says; ours where none can be written."""
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                file.write(b"-")
                file.flush()
                return os.fstat(file.fileno()).st_mtime
        except OSError:
            return time.time()

    def read_all(self) -> Iterator[Left]:
        """See `Place`; what cannot be read is an empty content."""
        now = self.now()
        try:
            names = sorted(entry.name for entry in os.scandir(self._folder) if entry.name.endswith(self._suffix))
        except OSError as error:
            # The first worker makes the folder with its first heartbeat; until then nobody has left a suspect there.
            if isinstance(error, FileNotFoundError) and self._suffix == _SUFFIXES["suspects"]:
                return
            raise PlaceUnavailable(f"{self._folder}: {error.strerror}") from None
        for name in names[:MOST_WORKERS]:
            path = self._folder / name
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                written = (
                    path.lstat().st_mtime
                )  # before the content: one that is replaced now is rather too old than too new
                worker = (
                    os.fsencode(name).decode("utf-8", "replace").removesuffix(self._suffix)
                )  # a stranger's may be no text
                yield Left(worker, self._read(path), now - written)

    def _read(self, path: Path) -> bytes:
        try:
            return read_given_file(path, MOST_BYTES, patience_seconds=0.0) if path.is_file() else b""
        except FileNotFoundError:
            raise
        except OSError:
            return b""

    def remove_old(self) -> None:
        """Remove what workers of long ago left."""
        now = self.now()
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name.endswith(self._suffix) and now - entry.stat().st_mtime > KEPT_SECONDS:
                    os.unlink(entry.path)


def _value(client: Any, key: bytes) -> tuple[bytes, float]:
    """Return what a key holds, and how old it is; nothing if that is no text: others may use the server, too."""
    import redis

    try:
        # No transaction: a server whose memory is full refuses whatever is asked in one. The age first, so that one that is
        # replaced now is rather too old than too new.
        with client.pipeline(transaction=False) as both:
            left, value = both.pttl(key).getrange(key, 0, MOST_BYTES - 1).execute()
    except redis.ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        return b"", 0.0
    # A key that lives for ever was not left by a worker.
    return (value, KEPT_SECONDS - left / 1000) if left >= 0 else (b"", 0.0)


class RedisPlace:
    """Keys of a Redis server, which forgets them by itself; of one server, no cluster."""

    def __init__(self, address: str, notes: Notes = "heartbeats") -> None:
        self._address = address
        self._key = _KEYS[notes]
        self._client: Any = None

    def put(self, worker: str, content: bytes) -> None:
        """See `Place`."""
        with self._said():
            self._open().set(f"{self._key}{worker}", content, ex=int(KEPT_SECONDS))

    def now(self) -> float:
        """See `Place`."""
        with self._said():
            seconds, micros = self._open().time()
            return float(seconds + micros / 1e6)

    def read_all(self) -> Iterator[Left]:
        """See `Place`."""
        found = []
        with self._said():
            client = self._open()
            for key in client.scan_iter(match=f"{self._key}*", count=1000):
                name = key.decode("utf-8", "replace").removeprefix(self._key)
                found.append(Left(name, *_value(client, key)))
                if len(found) == MOST_WORKERS:
                    break
        yield from sorted(found, key=lambda left: left.name)

    def _open(self) -> Any:
        if self._client is None:
            try:
                import redis
            except ImportError:
                raise MissingExtra("heartbeats at redis://", "redis") from None
            # The address may be that of a queue, whose parameters are none of Redis's own.
            address = self._address.partition("?")[0]
            self._client = redis.Redis.from_url(
                address, socket_timeout=_REDIS_SECONDS, socket_connect_timeout=_REDIS_SECONDS
            )
        return self._client

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except HeadraceError:
            raise
        except Exception as error:
            says = f"{self._address.partition('?')[0]}: {type(error).__name__}: {error}"
            raise PlaceUnavailable(hide_secrets_in_text(says)) from None

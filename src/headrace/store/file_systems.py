"""File systems that the program hands in, in fsspec's words (`find`, `info`, `cat_file`): listed and read as buckets are.

fsspec is not imported here: an object with these functions is enough. Its reads know no version, so after each one the file's
is looked up again, past what the file system keeps of earlier lists. Only kinds that are known to allow it are read by several
threads at once: others keep one connection, or one position in one file, and gave bytes of another file where two read.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from headrace.base.errors import FetchFailed, FetchRejected, ItemError, SourceError
from headrace.base.redaction import hide_secrets_in_text
from headrace.base.settings import check
from headrace.base.shortage import shortage_of
from headrace.store.objects import Bucket, Got, Listed, ObjectAddress, changed, list_again

_NEEDED = ("find", "info", "cat_file")
#: What tells two contents of one name apart, best first; each store has its own word.
_TAGS = ("ETag", "etag", "version_id", "VersionId", "generation", "content_md5", "md5", "md5Hash", "sha", "CRC")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
#: Beside those that await their answers: a read opens a place of its own.
_MANY_AT_ONCE = {"file", "local", "memory", "zip"}
_BUSY, _FORBIDDEN = (429, 500, 502, 503, 504), (401, 403)
#: One for all: two sources may have been given one connection.
_one_at_a_time = threading.Lock()


class FileSystem:
    """What is below a path of a file system; any thread. It is sent to processes if the file system can be.

    Args:
        fs: The file system.
        path: A folder, or a file.

    Raises:
        SettingsError: If the file system lacks a function, or only answers to `await`.
        SourceError: If it cannot say what the path means.

    Attributes:
        store: For people to read, such as `sftp://host/photos`; for an archive with the path of its file.
    """

    def __init__(self, fs: Any, path: str) -> None:
        lacks = [name for name in _NEEDED if not callable(getattr(fs, name, None))]
        check(not lacks, "fs", type(fs).__name__, f"a file system of fsspec, with {', '.join(_NEEDED)}")
        check(not getattr(fs, "asynchronous", False), "fs", type(fs).__name__, "one made without asynchronous=True")
        check(isinstance(path, str), "url", type(path).__name__, "the path of a folder or file as text")
        self._fs = fs
        try:
            self._root = str(getattr(fs, "_strip_protocol", str)(path)).rstrip("/")
            shown = str(getattr(fs, "unstrip_protocol", str)(self._root)).rstrip("/")
        except Exception as error:
            raise SourceError(f"{type(fs).__name__} cannot read the path ({type(error).__name__})") from None
        inside = getattr(getattr(fs, "fo", None), "path", None)
        self.store = hide_secrets_in_text(f"{shown}::{inside}" if isinstance(inside, str) else shown)

    def __str__(self) -> str:
        return self.store

    def list_objects(self, prefix: str = "") -> list[Listed]:
        """Return the files below the path and prefix, or the one of this name, in order of the alphabet.

        Raises:
            SourceError: If they cannot be listed.
        """
        return list_again(lambda: self._list(prefix), lambda error: self._explain(error, self._shown(prefix)))

    list_below = list_objects

    def get(self, path: str, start: int, end: int, etag: str | None) -> Got:
        """Return the bytes from start to end of a file, if it is still the one of this etag.

        Raises:
            FetchRejected: If no other try can succeed: `object.missing`, `object.forbidden`, `object.changed`.
            FetchFailed: If one may: `object.busy`, `object.short`, `object.failed`.
        """
        whole = self._path(path)
        began = time.monotonic()
        try:
            with contextlib.nullcontext() if _allows_many(self._fs) else _one_at_a_time:
                data = bytes(self._fs.cat_file(whole, start=start, end=end)) if end > start else b""
                ended = time.monotonic()
                now = _version(self._look_up(whole)) if etag else None
        except Exception as error:
            raise self._explain(error, self._shown(path)) from None
        if now != etag:
            raise changed(self._shown(path))
        if len(data) != end - start:
            raise FetchFailed(f"object.short: {self._shown(path)} gave {len(data):,} of {end - start:,} bytes")
        return Got(data, 0.0, ended - began)  # when the first byte came is not told

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path and self._root else path or self._root

    def _shown(self, path: str) -> str:
        return f"{self.store}/{path}" if path else self.store

    def _list(self, prefix: str) -> list[Listed]:
        whole = self._path(prefix)
        self._forget()
        with contextlib.nullcontext() if _allows_many(self._fs) else _one_at_a_time:
            found: Mapping[str, Any] = self._fs.find(whole, detail=True)
            if not found:
                self._fs.info(whole)  # says so if there is no such folder
            return sorted(
                (self._listed(path, info) for path, info in found.items() if info.get("type") != "directory"),
                key=lambda one: one.path,
            )

    def _listed(self, path: str, info: Mapping[str, Any]) -> Listed:
        if info.get("size") is None:  # lists of web pages tell none
            info = self._fs.info(path)
        size = info.get("size")
        if not isinstance(size, int):
            raise SourceError(
                f"object.failed: {type(self._fs).__name__} tells no size of {path}, which is needed to read it"
            )
        below = path.lstrip("/").removeprefix(self._root.lstrip("/")).lstrip("/") if path != self._root else ""
        return Listed(below, size, _version(info))

    def _look_up(self, path: str) -> Mapping[str, Any]:
        self._forget(path)
        info: Mapping[str, Any] = self._fs.info(path)
        return info

    def _forget(self, *path: str) -> None:
        """Let the file system ask again instead of telling what it listed before."""
        with contextlib.suppress(AttributeError, KeyError):  # a KeyError: another thread let go of it in this moment
            self._fs.invalidate_cache(*path)

    def _explain(self, error: Exception, where: str) -> ItemError:
        """Return what an error means, without quoting what may hold a secret."""
        status = next((one for name in ("status", "code") if isinstance(one := getattr(error, name, None), int)), 0)
        if isinstance(error, ItemError):
            return error
        if isinstance(error, FileNotFoundError | NotADirectoryError) or status == 404:
            return FetchRejected(f"object.missing: {where} does not exist")
        if isinstance(error, PermissionError) or status in _FORBIDDEN:
            return FetchRejected(f"object.forbidden: {where} may not be read with what its file system was given")
        if status in _BUSY or (isinstance(error, OSError) and error.errno == errno.EBUSY):
            busy = FetchFailed(f"object.busy: the store of {where} asks to slow down, or has a fault")
            busy.retry_after_seconds = 1.0
            return busy
        if shortage_of(error) == "shortage.credentials":
            return FetchFailed(f"object.credentials: the file system of {where} found no credentials")
        return FetchFailed(f"object.failed: {where} could not be read ({type(error).__name__})")


#: What lists objects and reads parts of them.
Store = Bucket | FileSystem


def open_store(address: str, fs: Any = None) -> tuple[Store, str]:
    """Return what an address is below, and the prefix in it; raises as `Bucket` or, with a file system, `FileSystem` does."""
    if fs is not None:
        return FileSystem(fs, address), ""
    place = ObjectAddress.parse(address)
    return Bucket(place.store), place.prefix


def _allows_many(fs: Any) -> bool:
    """Return whether several threads may read at once."""
    kind = type(fs)  # an instance that caches answers with what it caches from
    protocol = getattr(kind, "protocol", "")
    if protocol == "dir":
        return _allows_many(fs.fs)
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    return bool(getattr(kind, "async_impl", False)) or bool(names & _MANY_AT_ONCE)


def _version(info: Mapping[str, Any]) -> str | None:
    """Return a text that is another one after a file was replaced; None: nothing tells."""
    for name in _TAGS:
        if info.get(name):
            return f"{name} {info[name]} {info.get('size')}"
    for name in _TIMES:
        if info.get(name):
            found = info[name]
            if isinstance(found, datetime):
                found = found.timestamp()
            return f"{'time' if isinstance(found, float | int) else name} {found} {info.get('size')}"
    return None

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
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from headrace.base.errors import FetchFailed, FetchRejected, ItemError, SourceError
from headrace.base.redaction import hide_secrets_in_text
from headrace.base.settings import check
from headrace.base.shortage import shortage_of
from headrace.store.objects import Bucket, Got, Listed, ObjectAddress, changed, doubt, list_again, wrong_length

_NEEDED = ("find", "info", "cat_file")
#: What tells two contents of one name apart, best first; each store has its own word.
_TAGS = (
    "ETag", "etag", "version_id", "VersionId", "generation", "content_md5", "md5", "md5Hash", "Content-MD5", "Digest", "sha",
    "CRC",
)  # fmt: skip
_TIMES = (
    "mtime", "LastModified", "last_modified", "Last-Modified", "last_write_time", "modificationTime", "modify", "updated",
    "modified", "created",
)  # fmt: skip
#: What tells two places of one path apart; most kinds leave it out of their addresses.
_PLACES = ("host", "port", "url", "endpoint_url", "account_name", "org", "repo")
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
        store: For people to read, such as `sftp://host//photos`; for an archive with the path of its file.
        is_archive: Whether a version tells the listing of one archive apart alone: in a second archive of this name the time
            of a member may be the same, and its bytes others.
    """

    def __init__(self, fs: Any, path: str) -> None:
        lacks = [name for name in _NEEDED if not callable(getattr(fs, name, None))]
        check(not lacks, "fs", type(fs).__name__, f"a file system of fsspec, with {', '.join(_NEEDED)}")
        check(not getattr(fs, "asynchronous", False), "fs", type(fs).__name__, "one made without asynchronous=True")
        self._fs = fs
        self._readable: str | None = None
        try:
            root = str(getattr(fs, "_strip_protocol", str)(path))
            self._root = root.rstrip("/") or root[:1]  # a slash alone is the root, and nothing the working folder
            self.store = hide_secrets_in_text(_address(fs, self._root))
        except Exception as error:
            raise SourceError(f"{type(fs).__name__} cannot read the path ({type(error).__name__})") from None
        layers = list(_layers(fs))
        kinds = {kind.__name__ for layer in layers for kind in type(layer).__mro__}
        self.is_archive = "AbstractArchiveFileSystem" in kinds or any(getattr(one, "fo", None) for one in layers)
        # One that caches gives the bytes that it kept beside the version that is there now.
        self._tells_version = "CachingFileSystem" not in kinds

    def __str__(self) -> str:
        return self.store

    def list_objects(self, prefix: str = "") -> list[Listed]:
        """Return the files below the path and prefix, or the one of this name, in order of the alphabet.

        Raises:
            SourceError: If they cannot be listed.
        """
        return list_again(lambda: self._list(prefix), lambda error: self._explain(error, self._shown(prefix)))

    list_below = list_objects

    def note_readable(self, path: str) -> None:
        """Note that a file was read; where another one is refused, that is looked up; see `objects.doubt`."""
        self._readable = self.key(path)

    def get(self, path: str, start: int, end: int, etag: str | None) -> Got:
        """Return the bytes from start to end of a file, if it is still the one of this etag.

        Raises:
            FetchRejected: If no other try can succeed: `object.missing`, `object.forbidden`, `object.changed`.
            FetchFailed: If one may: `object.busy`, `object.short`, `object.failed`; also `object.forbidden` where what was read
                before cannot be looked up either.
        """
        whole = self.key(path)
        try:
            with contextlib.nullcontext() if _allows_many(self._fs) else _one_at_a_time:
                began = time.monotonic()
                data = bytes(self._fs.cat_file(whole, start=start, end=end)) if end > start else b""
                ended = time.monotonic()
                now = self._version(self._look_up(whole)) if etag else None
        except Exception as error:
            raise doubt(self._explain(error, self._shown(path)), self._readable, self._look_up_alone) from None
        self.note_readable(path)
        if now != etag:
            raise changed(self._shown(path))
        if len(data) != end - start:
            raise wrong_length(self._shown(path), len(data), end - start)
        return Got(data, 0.0, ended - began)  # when the first byte came is not told

    def key(self, path: str) -> str:
        """Return what tells a file apart from others of the file system, whatever folder above it was named."""
        return f"{self._root.rstrip('/')}/{path}" if path and self._root else path or self._root

    def _version(self, info: Mapping[str, Any]) -> str | None:
        return _version(info) if self._tells_version else None

    def _shown(self, path: str) -> str:
        return f"{self.store}/{path}" if path else self.store

    def _list(self, prefix: str) -> list[Listed]:
        whole = self.key(prefix)
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
                f"object.failed: {type(self._fs).__name__} tells no size of {hide_secrets_in_text(path)}, which is "
                "needed to read it"
            )
        below = path.lstrip("/").removeprefix(self._root.lstrip("/")).lstrip("/") if path != self._root else ""
        return Listed(below, size, self._version(info))

    def _look_up(self, path: str) -> Mapping[str, Any]:
        self._forget(path)
        info: Mapping[str, Any] = self._fs.info(path)
        return info

    def _look_up_alone(self, path: str) -> Mapping[str, Any]:
        with contextlib.nullcontext() if _allows_many(self._fs) else _one_at_a_time:
            return self._look_up(path)

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
        check(isinstance(address, str), "url", type(address).__name__, "the path of a folder or file as text")
        # The index of a shard is beside it.
        name = address.rstrip("/").rpartition("/")[2] if address.rstrip("/").endswith(".tar") else ""
        return FileSystem(fs, address.rstrip("/").removesuffix(name) if name else address), name
    place = ObjectAddress.parse(address)
    return Bucket(place.store), place.prefix


def _layers(fs: Any) -> Iterator[Any]:
    """Yield a file system, and those that it hands its calls on to."""
    for _ in range(8):
        if fs is None:
            return
        yield fs
        fs = getattr(fs, "sync_fs", None) or getattr(fs, "fs", None)


def _address(fs: Any, path: str) -> str:
    """Return a text for people that is another one for another host, archive or base: addresses of fsspec are not."""
    if getattr(type(fs), "protocol", "") == "dir":
        return _address(fs.fs, "/".join(filter(None, (fs.path, path.lstrip("/")))))
    # Hidden before a host stands in front of a password, which is not known as one there.
    shown = hide_secrets_in_text(str(getattr(fs, "unstrip_protocol", str)(path)).rstrip("/"))
    if isinstance(inside := getattr(getattr(fs, "fo", None), "path", None), str):
        return f"{shown}::{_address(fs.fo.fs, inside) if hasattr(fs.fo, 'fs') else inside}"
    options = [one for layer in _layers(fs) if isinstance(one := getattr(layer, "storage_options", None), Mapping)]
    options += [one["client_kwargs"] for one in options if isinstance(one.get("client_kwargs"), Mapping)]
    inner = getattr(fs, "sync_fs", fs)
    told = ([getattr(inner, name, None), *(one.get(name) for one in options)] for name in _PLACES)
    places = [str(found) for one in told if (found := next((x for x in one if x and isinstance(x, str | int)), None))]
    kind, _, rest = shown.partition("://")
    return f"{kind}://{':'.join(places)}/{rest}" if places else shown


def _allows_many(fs: Any) -> bool:
    """Return whether several threads may read at once."""
    kind = type(fs)  # an instance that caches answers with what it caches from
    protocol = getattr(kind, "protocol", "")
    if protocol == "dir":
        return _allows_many(fs.fs)
    if (inner := getattr(fs, "sync_fs", None)) is not None:  # only its own functions await
        return _allows_many(inner)
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    return bool(getattr(kind, "async_impl", False)) or bool(names & _MANY_AT_ONCE)


def _version(info: Mapping[str, Any]) -> str | None:
    """Return a text that is another one after a file was replaced; None: nothing tells."""
    for name in _TAGS:
        if info.get(name):
            # Lists of older adlfs leave the quotes out, its answers do not.
            tag = str(info[name]).removeprefix("W/").strip('"')
            return f"{name} {tag} {info.get('size')}"
    for name in _TIMES:
        if info.get(name):
            seconds = _seconds(info[name])
            return f"{'text' if seconds is None else 'time'} {info[name] if seconds is None else seconds} {info.get('size')}"
    return None


def _seconds(found: Any) -> float | None:
    """Return a time in seconds since 1970; None: it is written in a way that is not known."""
    readers = (
        lambda text: datetime.strptime(f"{text}+0000", "%Y%m%d%H%M%S%z"),
        datetime.fromisoformat,
        parsedate_to_datetime,
    )
    for read in readers if isinstance(found, str) else ():
        with contextlib.suppress(ValueError, TypeError):
            found = read(found)
            break
    if isinstance(found, datetime):
        return found.timestamp()
    if isinstance(found, float | int):
        return found / 1_000 if found > 1e11 else found  # HDFS counts milliseconds
    return None

"""Object stores (S3, Google Cloud Storage, Azure) through obstore: lists objects and reads parts of them.

obstore is imported here alone. Credentials come by each store's usual chain (environment, shared files, roles of the machine);
they are not looked at here, and no message quotes what the library says of a request beyond its status.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from headrace.base.errors import FetchFailed, FetchRejected, ItemError, MissingExtra, SourceError
from headrace.base.pieces import RemotePiece
from headrace.base.settings import check

#: Schemes of addresses of buckets.
SCHEMES = ("s3", "gs", "az")
#: What the names of the variables of each begin with, of which the library reads settings and credentials.
_VARIABLES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
#: Behind these: those of addresses of servers.
_ENDPOINTS = {
    "s3": ("ENDPOINT_URL_S3", "ENDPOINT_URL", "ENDPOINT"),
    "gs": ("BASE_URL",),
    "az": ("ENDPOINT", "STORAGE_ENDPOINT"),
}
_KEYS = {
    "s3": "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_BUSY = re.compile(r"\b(429|503|500|502|504)\b|SlowDown|slow down|reduce your request rate", re.IGNORECASE)
_FORBIDDEN = re.compile(r"\b(401|403)\b|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch", re.IGNORECASE)
#: Addresses, names and durations in a message, which may contain any of the words and numbers that are looked for.
_QUOTED = re.compile(
    r"https?://\S+|\bin \d+(?:\.\d+)?(?:ns|µs|ms|s)\b|<(?!Code|Message)\w+>[^<]*|location .*? (?=not found)"
)
#: The keys themselves are refused, whatever was asked for.
_RAN_OUT = re.compile(r"ExpiredToken|TokenRefreshRequired|InvalidToken|RequestTimeTooSkewed")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_NO_ANSWER = re.compile(r"error sending request|connection refused|dns error", re.IGNORECASE)
#: What stands behind a `?` where somebody gave credentials or an endpoint.
_SETTING = re.compile(r"[\w-]+=")
_NO_SLASH = "; a name that begins with a slash cannot be asked for; give the object another name"
_SLASH = re.compile("/")
_SLASH_IN_FRONT = " (or another object is called the same but for a slash in front)"
#: The name that the library cannot ask for.
_IMPOSSIBLE = re.compile(r'\bPath "(.*?)"(?::| contained)', re.DOTALL)
_CREDENTIALS = re.compile(r"credential|token provider|metadata", re.IGNORECASE)


#: Before something is asked for again where nobody else would.
PAUSES = (0.2, 1.0, 3.0, 0.0)


#: Until 1,000 names of a list have come, or its end.
_MOST_LIST_SECONDS = 600.0

#: Of a body: what is taken from the library at once.
_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """A bucket and what of it is meant."""

    store: str
    """`s3://photos`."""
    prefix: str
    """Without slashes around it; empty: the whole bucket."""

    @classmethod
    def parse(cls, url: str) -> ObjectAddress:
        """Read an address; raises SourceError if it names no bucket, or holds what belongs into the environment."""
        check(
            isinstance(url, str),
            "url",
            type(url).__name__,
            "the address of one bucket as text, such as 's3://photos/2026/'",
        )
        try:
            parts = urlsplit(url)
        except ValueError as error:  # brackets
            raise SourceError(
                f"{url} is no address of a bucket ({error}); expected one such as s3://photos/2026/"
            ) from None
        if parts.scheme.lower() not in SCHEMES or not parts.hostname:
            raise SourceError(f"{parts.scheme}:// names no bucket; expected an address such as s3://photos/2026/")
        if "@" in parts.netloc or (_SETTING.match(parts.query) if parts.query else False):
            raise SourceError(
                f"the address of the bucket {parts.scheme}://{parts.hostname} holds more than a bucket and a prefix; "
                "credentials and endpoints come from the environment (AWS_PROFILE, AWS_ENDPOINT_URL, ...)"
            )
        # `?` and `#` are letters of names here, as for the stores' own tools.
        prefix = url.partition("://")[2].removeprefix(parts.netloc).removeprefix("/")
        if prefix.startswith("/"):
            raise SourceError(f"object.name: the prefix in {url} begins with a slash{_NO_SLASH}")
        return cls(f"{parts.scheme.lower()}://{parts.netloc}", prefix.rstrip("/"))


@dataclass(frozen=True, slots=True)
class Listed:
    """One object."""

    path: str
    size: int
    etag: str | None


@dataclass(frozen=True, slots=True)
class Got:
    """What one request brought, and how long its parts took."""

    data: bytes
    first_byte_seconds: float
    transfer_seconds: float


class Bucket:
    """One bucket, opened; any thread.

    Args:
        store: Its address, such as `s3://photos`.
        timeout_seconds: Longest request.

    Raises:
        MissingExtra: If obstore is not installed.
        SourceError: If the address or the environment cannot be used.
    """

    def __init__(self, store: str, timeout_seconds: float = 30.0) -> None:
        try:
            self._obstore = importlib.import_module("obstore")
            self._errors = importlib.import_module("obstore.exceptions")
            stores = importlib.import_module("obstore.store")
        except ImportError:
            raise MissingExtra(f"{store} (an object store)", "stores") from None
        self.store = store
        self._readable: str | None = None
        """The object that was read last."""
        scheme = store.partition(":")[0]
        endpoints = [f"{_VARIABLES[scheme]}_{name}" for name in _ENDPOINTS[scheme]]
        for name in endpoints:
            _check_endpoint(name, os.environ.get(name, ""))
        options: dict[str, Any] = {"timeout": f"{timeout_seconds:.0f}s", "connect_timeout": "10s"}
        if _allows_http(_VARIABLES[scheme], endpoints):
            options["allow_http"] = True
        # Whether to try again is for the source to say: it knows the other items.
        retry = {"max_retries": 0, "retry_timeout": datetime.timedelta(seconds=timeout_seconds)}
        try:
            more = {"credential_provider": provider} if scheme == "s3" and (provider := _profile()) else {}
            with _no_panic(store):
                self._store = stores.from_url(store, client_options=options, retry_config=retry, **more)
        except FetchRejected as error:
            raise SourceError(error.reason) from None
        except Exception as error:  # the library's own classes, ValueError, ...
            raise SourceError(
                f"{store} cannot be opened ({type(error).__name__}); check the address and its settings"
            ) from None

    def list_objects(self, prefix: str) -> list[Listed]:
        """Return the object of this name, or those below it, in order of the alphabet.

        Raises:
            SourceError: If the store does not list them.
        """
        found = self.list_below(prefix)
        if found or not prefix:
            return found
        return self._list_again(prefix, self._list_one)

    def list_below(self, prefix: str) -> list[Listed]:
        """Return the objects below this name, in order of the alphabet; raises as `list_objects`."""
        return self._list_again(prefix, self._list)

    def _list_again(self, prefix: str, list_them: Callable[[str], list[Listed]]) -> list[Listed]:
        def ask() -> list[Listed]:
            with _no_panic(self.store):
                return list_them(prefix)

        return list_again(ask, lambda error: self._explain(error, f"{self.store}/{prefix}", is_listing=True))

    def key(self, path: str) -> str:
        """Return what tells an object apart from others, whatever prefix was named."""
        return f"{self.store}/{path}"

    def _list(self, prefix: str) -> list[Listed]:
        chunks = iter(self._obstore.list(self._store, prefix or None, chunk_size=1_000))
        found: list[Listed] = []
        seen: set[str] = set()
        while (chunk := self._next(chunks, prefix)) is not None:
            found += [Listed(one["path"], one["size"], _quote(one.get("e_tag"))) for one in chunk]
            seen.update(one["path"] for one in chunk)
            if len(found) > 2 * len(seen):  # two may be called the same but for a slash in front
                raise SourceError(
                    f"object.failed: the store of {self.store}/{prefix} lists the same names again and again; is it behind a "
                    "proxy that does not hand on what the pages of a list are called?"
                )
        return sorted(_without_folders(found, prefix), key=lambda one: one.path)

    def _next(self, chunks: Iterator[Any], prefix: str) -> Any:
        """Return the next names of a list; None: there are no more.

        In a thread of its own, as the library asks for page after page while they are empty, and Ctrl-C does not reach it.
        """
        answer: Future[Any] = Future()

        def ask() -> None:
            try:
                answer.set_result(next(chunks, None))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=ask, name="headrace-list", daemon=True).start()
        try:
            return answer.result(_MOST_LIST_SECONDS)
        except TimeoutError:
            raise SourceError(
                f"object.failed: the store of {self.store}/{prefix} gave less than 1,000 names in {_MOST_LIST_SECONDS:,.0f} "
                "seconds, and no end; is it behind a proxy that does not hand on what the pages of a list are called?"
            ) from None

    def _list_one(self, path: str) -> list[Listed]:
        one = self._obstore.head(self._store, path)
        return [Listed(path, one["size"], _quote(one.get("e_tag")))]

    def put(self, path: str, data: bytes) -> None:
        """Write an object, all of it or nothing; one of this name is replaced.

        Raises:
            FetchRejected: If no other try can succeed: `object.forbidden`, `object.missing` (the bucket).
            FetchFailed: If one may: `object.busy`, `object.failed`.
        """
        try:
            with _no_panic(self.store):
                self._obstore.put(self._store, path, data, use_multipart=False)
        except Exception as error:
            raise self._explain(error, f"{self.store}/{path}") from None

    def note_readable(self, path: str) -> None:
        """Note that an object was read; where another one is refused, that is looked up; see `doubt`."""
        self._readable = path

    def get(self, path: str, start: int, end: int, etag: str | None) -> Got:
        """Return the bytes from start to end of an object, if it is still the one of this etag.

        Raises:
            FetchRejected: If no other try can succeed: `object.missing`, `object.forbidden`, `object.changed`.
            FetchFailed: If one may: `object.busy`, `object.failed`, `object.credentials`; also `object.forbidden` where what
                was read before cannot be read either.
        """
        options: dict[str, Any] = {"if_match": etag} if etag else {}
        if end > start:
            options["range"] = (start, end)
        began = time.monotonic()
        try:
            with _no_panic(self.store):
                answer = self._obstore.get(self._store, path, options=options)
                first = time.monotonic()
                data = _join(answer, end - start)
        except ItemError:
            raise
        except Exception as error:
            raise doubt(self._explain(error, f"{self.store}/{path}"), self._readable, self._list_one) from None
        self.note_readable(path)
        ended = time.monotonic()
        if etag and _quote(answer.meta.get("e_tag")) not in (None, etag):  # a store that knows no If-Match
            raise changed(f"{self.store}/{path}", _SLASH_IN_FRONT)
        if len(data) != end - start:
            raise wrong_length(f"{self.store}/{path}", len(data), end - start)
        return Got(data, first - began, ended - first)

    def _explain(self, error: Exception, where: str, *, is_listing: bool = False) -> ItemError:
        """Return what an error of the library means, without quoting what may hold a secret."""
        errors, said, scheme = self._errors, _QUOTED.sub("", str(error)), self.store.partition(":")[0]
        if isinstance(error, ItemError):
            return error
        if isinstance(error, errors.InvalidPathError):
            found = _IMPOSSIBLE.search(said)
            name = repr(found[1]) if found else "of an object"
            return FetchRejected(
                f"object.name: {where}: the name {name} cannot be asked for: it has an empty part, `.` or `..` between its "
                "slashes, or a control character; give the object another name, or name a prefix without it"
            )
        if _NO_BUCKET.search(said):
            return FetchRejected(f"object.missing: the bucket {self.store} does not exist")
        if isinstance(error, errors.NotFoundError | FileNotFoundError):
            nor = (
                "and there is nothing below this name" if is_listing else f"or its name begins with a slash{_NO_SLASH}"
            )
            return FetchRejected(f"object.missing: {where} does not exist, {nor}")
        if isinstance(error, errors.PreconditionError):
            return changed(where, _SLASH_IN_FRONT)
        if found := _RAN_OUT.search(said):
            return FetchFailed(
                f"object.credentials: the store of {where} takes the credentials no more ({found[0]}); renew them, see that "
                "the clock of this machine is right, and resume the run"
            )
        if isinstance(error, errors.PermissionDeniedError | errors.UnauthenticatedError) or _FORBIDDEN.search(said):
            return FetchRejected(
                f"object.forbidden: {where} may not be used with these credentials; check {_KEYS[scheme]}, the role of the "
                "machine, or the store's own settings"
            )
        if found := _BUSY.search(said):
            busy = FetchFailed(
                f"object.busy: the store of {where} asks to slow down ({found[0]}); how long (Retry-After) is not known here: "
                "it is asked again later and later, as often as the Plan's source.max_receives says"
            )
            busy.retry_after_seconds = 1.0
            return busy
        if _CREDENTIALS.search(said):
            return FetchFailed(
                f"object.credentials: no credentials for {where} were found; set {_KEYS[scheme]}, or give the machine a role"
            )
        if _NO_ANSWER.search(said):
            return FetchFailed(
                f"object.failed: the store of {where} gave no answer; check the network, and the address of the server if "
                f"you set one ({_VARIABLES[scheme]}_...)"
            )
        if "builder error" in said:
            return FetchFailed(
                f"object.failed: the store of {where} is to be asked without TLS; allow it by "
                f"{_VARIABLES[scheme]}_ALLOW_HTTP=true"
            )
        return FetchFailed(f"object.failed: {where} could not be read or written ({type(error).__name__})")


def _without_folders(found: list[Listed], prefix: str) -> list[Listed]:
    """Return objects without the empty ones that consoles put where they show a folder.

    Their names end with a slash, which the library does not tell, so none of them could be asked for.
    """
    empty = {one.path for one in found if not one.size}
    if not empty or len(found) == 1:
        return found
    folders = {one.path[: slash.start()] for one in found for slash in _SLASH.finditer(one.path)} | {prefix}
    return [one for one in found if one.path not in empty & folders]


def _quote(etag: str | None) -> str | None:
    """Return an ETag as answers have it: Azure's lists leave its quotes out, and If-Match needs them."""
    return etag if etag is None or etag.endswith('"') else f'"{etag}"'


def _allows_http(prefix: str, endpoints: list[str]) -> bool:
    """Return whether the environment leads to a server without TLS, or says that one is allowed."""
    found = [os.environ.get(name, "").lower() for name in endpoints]
    return (
        any(one.startswith("http://") for one in found) or os.environ.get(f"{prefix}_ALLOW_HTTP", "").lower() == "true"
    )


@contextlib.contextmanager
def _no_panic(store: str) -> Iterator[None]:
    """Raise FetchRejected where the library panics, as over a line break in a key: that error is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise FetchRejected(
            f"object.forbidden: the library cannot make a request to {store} of these settings; check the variables "
            f"{_VARIABLES[store.partition(':')[0]]}_..., and what keeps the keys, for line breaks and addresses of no server"
        ) from None


def _check_endpoint(name: str, url: str) -> None:
    """Raise SourceError if requests cannot go there: the library panics then."""
    try:
        parts = urlsplit(url)
        is_right = not url or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        is_right = False
    if not is_right:
        raise SourceError(f"{name} is no address of a server; expected one such as http://127.0.0.1:9000")


def _join(answer: Any, length: int) -> bytes:
    """Return the body of an answer; little more than was asked for, whatever comes."""
    parts, num_bytes = [], 0
    for part in answer.stream(min_chunk_size=_CHUNK):
        parts.append(bytes(part))
        num_bytes += len(parts[-1])
        if num_bytes > length:
            break
    return b"".join(parts)


def changed(where: str, hint: str = "") -> FetchRejected:
    """Return the rejection of an object whose bytes are no longer those that were listed."""
    return FetchRejected(
        f"object.changed: {where} was replaced after it was listed; start the run again to list it anew{hint}"
    )


def wrong_length(where: str, given: int, wanted: int) -> FetchFailed:
    """Return the failure of a read that gave fewer bytes than were asked for, or more."""
    if given > wanted:
        return FetchFailed(
            f"object.failed: {where} gave {given:,} bytes where {wanted:,} were asked for: its server may not know ranges, as "
            "reading from shards needs them; copy the shards to this machine or to another server"
        )
    return FetchFailed(f"object.short: {where} gave {given:,} of {wanted:,} bytes")


def doubt(problem: ItemError, readable: str | None, look_up: Callable[[str], object]) -> ItemError:
    """Return a refusal of one object as a failure, unless something else may be read: keys that ran out refuse everything.

    So nothing is given up for good that can be read once they are renewed.

    Args:
        problem: Why an object was not read.
        readable: What was read before; None: nothing.
        look_up: Raises if that may not be read any more.
    """
    if not problem.reason.startswith("object.forbidden"):
        return problem
    if readable is not None:
        with contextlib.suppress(Exception):
            look_up(readable)
            return problem
        return FetchFailed(f"{problem.reason}; what was read before is refused now, too")
    return FetchFailed(f"{problem.reason}; nothing was read yet")


def list_again(list_them: Callable[[], list[Listed]], explain: Callable[[Exception], ItemError]) -> list[Listed]:
    """Return what is listed, asking later and later while another try may succeed; raises SourceError with the reason."""
    for pause in PAUSES:
        try:
            return list_them()
        except SourceError:
            raise
        except Exception as error:
            problem = explain(error)
            if isinstance(problem, FetchRejected):
                break
            time.sleep(pause)
    raise SourceError(problem.reason)


def _profile() -> Any:
    """Return what gives a named profile's credentials, by boto3; None: no profile is named."""
    if not os.environ.get("AWS_PROFILE"):
        return None
    try:
        return importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider()
    except ImportError:
        raise MissingExtra("AWS_PROFILE for an object store", "sqs") from None


def cut(piece: RemotePiece, data: bytes, start: int) -> bytes:
    """Return a piece's bytes from those of a larger range that begins at start."""
    return data[piece.offset - start : piece.offset - start + piece.length]

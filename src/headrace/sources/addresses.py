"""Opens a queue from its address, which begins with the name of a scheme: `sqlite:///jobs.db`.

How this works: a scheme is one record, `QueueScheme`. Those of headrace stand in `schemes`, with what their addresses mean.
Other packages bring theirs in the entry points `headrace.queues`. A source that is no queue comes through `headrace.sources`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, unquote_plus, urlsplit

from headrace.base.errors import HeadraceError, SettingsError, SourceError
from headrace.base.protocols import Queue
from headrace.base.registry import SCHEME_OR_SUFFIX, Registry
from headrace.base.settings import check, list_names, unknown_key
from headrace.base.units import parse_seconds
from headrace.sources.live_addresses import show_address

T = TypeVar("T")

#: Loans of a queue of which nobody says how long they last.
DEFAULT_VISIBILITY_SECONDS = 30.0
#: User and password of an address, and parameters that are called like a secret; signed addresses of stores have some.
_USER = re.compile(r"://([^/?#]*)@")
_SECRET_PARAMETER = re.compile(
    r"([?&](?:[^=&]*(?:passw|secret|token|signature|credential|access[-_]?key|api[-_]?key)[^=&]*|sig|pwd)=)([^&#]*)",
    re.IGNORECASE,
)
#: Every scheme takes it.
_VISIBILITY = "visibility"

_SCHEMES = "headrace.sources.schemes"
#: {scheme: its QueueScheme}.
QUEUES = Registry(
    "headrace.queues",
    {
        "sqlite": f"{_SCHEMES}:SQLITE",
        "sqs": f"{_SCHEMES}:SQS",
        "https": f"{_SCHEMES}:SQS_URL",
        "http": f"{_SCHEMES}:SQS_URL",
        "redis": f"{_SCHEMES}:REDIS",
        "rediss": f"{_SCHEMES}:REDIS",
        "redis+sentinel": f"{_SCHEMES}:SENTINELS",
    },
    "a queue's scheme",
    SCHEME_OR_SUFFIX,
)
_LIST = "headrace.sources.urls:UrlList"
_LISTS = (".txt", ".lst", ".urls")
#: Of video files, which `video://` finds in folders.
VIDEO_SUFFIXES = (
    ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".mts", ".m2ts", ".mpg", ".mpeg", ".flv", ".wmv", ".asf", ".ogv",
    ".3gp", ".mxf", ".h264", ".264", ".h265", ".hevc", ".ivf", ".mjpeg", ".mjpg", ".y4m",
)  # fmt: skip
#: What `--source` opens beside queues and folders. {scheme: called with the address and `drain`}, {".suffix": with the file}.
_OBJECTS = "headrace.sources.objects:Objects"
_RECORDS = "headrace.sources.records"
_VIDEO = "headrace.sources.video"
_LIVE = "headrace.sources.live_video:open_address"
_LIVE_SCHEMES = ("rtsp", "rtsps", "live+http", "live+https", "tcp", "udp", "v4l2")
_LIVE_CHOICE = re.compile(
    r"(?:(?:^|&)(?:every|fps|keyframes|references|size|region|motion|max_age|patience|device)=[\w.,]+)+"
)
SOURCES = Registry(
    "headrace.sources",
    {
        **dict.fromkeys(_LISTS, _LIST),
        **dict.fromkeys(("s3", "gs", "az"), _OBJECTS),
        **dict.fromkeys(VIDEO_SUFFIXES, f"{_VIDEO}:Video"),
        **dict.fromkeys((".parquet", ".arrow", ".feather", ".tfrecord", ".tfrecords"), f"{_RECORDS}:Records"),
        **dict.fromkeys((".lmdb", ".mdb", ".sqlite", ".sqlite3", ".h5", ".hdf5"), f"{_RECORDS}:Records"),
        "records": f"{_RECORDS}:open_address",
        "fsspec": f"{_OBJECTS.partition(':')[0]}:open_address",
        "video": f"{_VIDEO}:open_address",
        **dict.fromkeys(_LIVE_SCHEMES, _LIVE),
    },
    "--source",
    SCHEME_OR_SUFFIX,
)


def suffix_of(path: str | Path) -> str:
    """Return the suffix that says what a file holds, in small letters.

    `.tfrecord` of `a.tfrecord-00001-of-00010`, too, and of `train-00001-of-00010`, as TensorFlow's own programs call them.
    """
    name = Path(path).name.lower()
    shard = re.search(r"(\.tfrecords?)(?:-[0-9]+-of-[0-9]+)?(?:\.gz)?$", name)
    is_numbered = re.fullmatch(r"[^.]+-[0-9]{5}-of-[0-9]{5}", name)
    return shard[1] if shard else ".tfrecord" if is_numbered else Path(name).suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueScheme:
    """What the addresses of one kind of queue mean."""

    open: Callable[[Address], Queue]
    """Returns the queue at an address; raises what the methods of `Queue` raise."""
    parameters: tuple[str, ...] = ()
    """What may stand behind the question mark; `visibility` may always."""
    check: Callable[[SplitResult], None] | None = None
    """Raises SettingsError if an address cannot be right. Opens nothing, and imports no heavy library."""
    find_file: Callable[[SplitResult], Path] | None = None
    """Returns the file or folder that holds the queue: it must exist before somebody looks into it or drains it. None: a
    service holds it."""
    is_remote: bool = True
    """Whether its jobs may come from other machines: then they may name no files of this one."""
    has_several_hosts: bool = False
    """Whether hosts are separated by commas."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a queue, read and not opened."""

    scheme: QueueScheme
    parts: SplitResult
    parameters: Mapping[str, str]
    visibility_seconds: float | None
    """How long received messages stay lent; None: nobody says."""

    def visibility_or(self, seconds: float = DEFAULT_VISIBILITY_SECONDS) -> float:
        """Return how long received messages stay lent; these seconds if nobody says."""
        return seconds if self.visibility_seconds is None else self.visibility_seconds

    @property
    def missing_file(self) -> Path | None:
        """The file or folder that should hold the queue and does not exist; None: all is well."""
        path = self.scheme.find_file(self.parts) if self.scheme.find_file else None
        return path if path and not path.exists() else None


def open_queue(url: str, *, visibility_seconds: float | None = None) -> Queue:
    """Return the queue at an address.

    Args:
        url: Such as `sqlite:///jobs.db`; see `schemes`.
        visibility_seconds: How long received messages stay lent; None for what the address says, else what the service
            says (SQS), else 30 s.

    Raises:
        SettingsError: If the address cannot be understood.
        MissingExtra: If the service's package is not installed.
        SourceError: If the queue does not exist or is something else, or another package's code fails.
        QueueUnavailable: If the service does not answer.
    """
    address = parse_address(url)
    if visibility_seconds is not None:
        address = replace(address, visibility_seconds=visibility_seconds)
    name = address.parts.scheme
    with hide_secrets_in_errors(url):
        queue: Queue = QUEUES.call(name, address.scheme.open, address, failure=SourceError)
    if not callable(getattr(queue, "receive", None)):  # not by the protocol: its properties may ask a service
        raise QUEUES.refuse(name, f"opened a {type(queue).__name__}", "a headrace.base.protocols.Queue")
    return queue


def is_list_address(text: str) -> bool:
    """Return whether a text is the http(s) address of a list of URLs, and not that of a queue: by the end of its path."""
    scheme, _, rest = text.partition("://")
    path = re.split("[?#]", rest, maxsplit=1)[0].lower()
    return scheme.lower() in ("http", "https") and path.endswith(_LISTS)


def parse_address(url: str) -> Address:
    """Read an address; opens nothing and imports no queue.

    Raises:
        SettingsError: If the address cannot be understood.
    """
    parts = _read(urlsplit, url)
    scheme = _find_scheme(parts.scheme)
    place = parts.netloc.rpartition("@")[2]
    for host in place.split(",") if scheme.has_several_hosts else [place]:
        _read(lambda text: urlsplit(f"//{text}").port, host)
    parameters = _read_parameters(parts, (*scheme.parameters, _VISIBILITY))
    if parts.fragment:
        raise SettingsError("the queue's address has a part after #, which means nothing here; write %23 for the sign")
    if scheme.check:
        with hide_secrets_in_errors(url):
            QUEUES.call(parts.scheme, scheme.check, parts)
    visibility = parameters.pop(_VISIBILITY, None)
    return Address(scheme, parts, parameters, None if visibility is None else _seconds(visibility))


def hide_secrets(address: str) -> str:
    """Return an address without user and password, and without the values of parameters that are called like a secret.

    Of a live stream only those of headrace behind # are left: each maker of cameras has a name of its own for passwords.
    """
    if address.partition("://")[0].lower() in _LIVE_SCHEMES:
        place, mark, choice = address.rpartition("#")
        is_choice = bool(mark) and _LIVE_CHOICE.fullmatch(choice) is not None
        return f"{show_address(place)}#{choice}" if is_choice else show_address(address)
    return _SECRET_PARAMETER.sub(r"\1...", _USER.sub("://...@", address))


@contextlib.contextmanager
def hide_secrets_in_errors(address: str) -> Iterator[None]:
    """Take the secrets of an address out of the message of an error that is raised within: a package's text may quote it."""
    try:
        yield
    except HeadraceError as error:
        message = str(error)
        hidden = _hide_secrets_of(address, message)
        if hidden == message:
            raise
        error.args = (hidden,)
        raise error from None  # what it was made from quotes the secret, too


def _hide_secrets_of(address: str, text: str) -> str:
    """Return a text without the secrets of an address, in the ways in which they may be written."""
    user, _, password = "".join(_USER.findall(address)).partition(":")
    found = {password or user, *(value for _, value in _SECRET_PARAMETER.findall(address))} - {""}
    found |= {read(secret) for secret in found for read in (unquote, unquote_plus)}
    found |= {quote(secret, safe="") for secret in found} | {repr(secret)[1:-1] for secret in found}
    for secret in sorted(found, key=len, reverse=True):
        text = text.replace(secret, "...")
    return text


def _read(read: Callable[[str], T], text: str) -> T:
    """Return what a function of urllib makes of a part; its own message may quote the password."""
    try:
        return read(text)
    except ValueError as error:
        why = "its port is not a number" if "port" in str(error).lower() else "it is not a URL"
        raise SettingsError(
            f"the queue's address cannot be understood ({why}); expected one like sqlite:///jobs.db?queue=jobs"
        ) from None


def _read_parameters(parts: SplitResult, allowed: Sequence[str]) -> dict[str, str]:
    pairs = _read(lambda text: parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text)), parts.query)
    parameters: dict[str, str] = {}
    for key, value in pairs:
        if key not in allowed:
            raise unknown_key(key, f"the queue's address ({parts.scheme}://)", allowed)
        if key in parameters:
            raise SettingsError(f"the queue's address names {key} twice")
        if not value:
            raise SettingsError(f"the queue's address says nothing for {key}=")
        parameters[key] = value
    return parameters


def _find_scheme(name: str) -> QueueScheme:
    if name not in QUEUES:
        known = list_names([f"{one}://" for one in QUEUES.names()], f"{name}://")
        hint = f"{name}:// is a source, for --source" if name in SOURCES else "a file is sqlite:///jobs.db"
        raise SettingsError(f"a queue's address starts with one of {known}, got {name!r}; {hint}")
    scheme = QUEUES.load(name)
    if not isinstance(scheme, QueueScheme):
        raise QUEUES.refuse(name, f"is {scheme!r}", "a headrace.sources.addresses.QueueScheme")
    return scheme


def _seconds(text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise SettingsError(f"the queue's address: {_VISIBILITY}: {error}") from None
    check(seconds > 0, f"the queue's address: {_VISIBILITY}", text, "more than 0")
    return seconds

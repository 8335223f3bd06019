"""Opens a queue from its address.

    sqlite:///jobs.db            a file beside the working folder; ////var/jobs.db is absolute; ?queue=NAME
    sqs://NAME                   Amazon SQS; ?region=eu-west-1&endpoint=http://localhost:4566
    https://sqs.REGION.amazonaws.com/ACCOUNT/NAME
    redis://host:6379/0          Redis Streams; rediss:// with TLS; ?queue=NAME
    redis+sentinel://HOST:26379,HOST:26379/SERVICE/0    the primary that Sentinels name; ?queue=NAME

Each takes `visibility=30s` too. Passwords appear in no name and no error.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from headrace.base.errors import SettingsError
from headrace.base.protocols import Queue
from headrace.base.settings import unknown_key
from headrace.base.units import parse_duration

#: What each scheme may be told after the question mark.
PARAMETERS = {
    "sqlite": ("queue", "visibility"),
    "sqs": ("endpoint", "region", "visibility"),
    "https": ("region", "visibility"),
    "http": ("region", "visibility"),
    "redis": ("queue", "visibility"),
    "rediss": ("queue", "visibility"),
    "redis+sentinel": ("queue", "visibility"),
}

DEFAULT_VISIBILITY_SECONDS = 30.0


def open_queue(url: str, *, visibility_seconds: float | None = None) -> Queue:
    """Return the queue at an address.

    Args:
        url: See the module.
        visibility_seconds: How long received messages stay lent; None for what the address says, else what the service
            says (SQS), else 30 s.

    Raises:
        SettingsError: If the address cannot be understood.
        MissingExtra: If the service's package is not installed.
        SourceError: If the queue does not exist or is something else.
        QueueUnavailable: If the service does not answer.
    """
    parts, parameters = parse_address(url)
    if visibility_seconds is None and "visibility" in parameters:
        visibility_seconds = _visibility(parameters["visibility"])
    openers: dict[str, Callable[[SplitResult, dict[str, str], float | None], Queue]] = {
        "sqlite": _open_sqlite,
        "sqs": _open_sqs,
        "https": _open_sqs,
        "http": _open_sqs,
        "redis": _open_redis,
        "rediss": _open_redis,
        "redis+sentinel": _open_redis,
    }
    return openers[parts.scheme](parts, parameters, visibility_seconds)


def parse_address(url: str) -> tuple[SplitResult, dict[str, str]]:
    """Return an address's parts and parameters; opens nothing and imports nothing.

    Raises:
        SettingsError: If the address cannot be understood.
    """
    try:
        parts = urlsplit(url)
        # Sentinels are several.
        _ = [urlsplit(f"//{host}").port for host in parts.netloc.rpartition("@")[2].split(",")]
        _ = parts.port if parts.scheme != "redis+sentinel" else None
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise SettingsError(
            f"the queue's address cannot be understood ({_without_secrets(error)}); "
            "expected one like sqlite:///jobs.db?queue=jobs"
        ) from None
    if parts.scheme not in PARAMETERS:
        raise SettingsError(
            "a queue's address starts with sqlite:///, sqs://, https://, redis://, rediss:// or redis+sentinel://, got "
            f"{parts.scheme!r}; a file is sqlite:///jobs.db"
        )
    parameters: dict[str, str] = {}
    for key, value in pairs:
        if key not in PARAMETERS[parts.scheme]:
            raise unknown_key(key, f"the queue's address ({parts.scheme}://)", PARAMETERS[parts.scheme])
        if key in parameters:
            raise SettingsError(f"the queue's address names {key} twice")
        if not value:
            raise SettingsError(f"the queue's address says nothing for {key}=")
        parameters[key] = value
    _check_place(parts)
    if "visibility" in parameters:
        _visibility(parameters["visibility"])
    return parts, parameters


def _check_place(parts: SplitResult) -> None:
    """Raise SettingsError unless the address says where the queue is."""
    if parts.fragment:
        raise SettingsError("the queue's address has a part after #, which means nothing here; write %23 for the sign")
    if parts.scheme == "sqlite" and (parts.netloc or len(parts.path) < 2 or parts.path[0] != "/"):
        raise SettingsError(
            "sqlite:// is followed by a third slash and the file: sqlite:///jobs.db, or sqlite:////var/jobs.db"
        )
    if parts.scheme in ("sqs", "https", "http") and parts.username is not None:
        raise SettingsError(
            "keys do not belong into an SQS address; boto3 finds them in the environment, ~/.aws or the machine's role"
        )
    if parts.scheme == "sqs" and (not parts.netloc or parts.path.strip("/")):
        raise SettingsError("an SQS address is sqs://QUEUE_NAME or the queue's whole https URL")
    if parts.scheme in ("https", "http") and len(parts.path.strip("/").split("/")) != 2:
        raise SettingsError("the https URL of an SQS queue ends in /ACCOUNT/QUEUE_NAME")
    if parts.scheme in ("redis", "rediss") and not (parts.path.strip("/") or "0").isdecimal():
        raise SettingsError(
            "the path of a Redis address is the database's number; the queue's name is a parameter: ?queue=jobs"
        )
    if parts.scheme == "redis+sentinel":
        service, _, database = parts.path.strip("/").partition("/")
        if not (parts.netloc and service and (database or "0").isdecimal()):
            raise SettingsError(
                "an address of Sentinels is redis+sentinel://HOST:26379,HOST:26379/SERVICE/0: the name under which they watch "
                "the servers, and the database's number; the queue's name is a parameter: ?queue=jobs"
            )


def _open_sqlite(parts: SplitResult, parameters: dict[str, str], visibility_seconds: float | None) -> Queue:
    from headrace.sources.sqlite_queue import SqliteQueue

    return SqliteQueue(
        unquote(parts.path[1:]),
        queue=parameters.get("queue", "jobs"),
        visibility_seconds=DEFAULT_VISIBILITY_SECONDS if visibility_seconds is None else visibility_seconds,
    )


def _open_sqs(parts: SplitResult, parameters: dict[str, str], visibility_seconds: float | None) -> Queue:
    from headrace.sources.sqs_queue import SqsQueue

    return SqsQueue(
        parts.netloc if parts.scheme == "sqs" else f"{parts.scheme}://{parts.netloc}{parts.path}",
        region=parameters.get("region"),
        endpoint=parameters.get("endpoint"),
        visibility_seconds=visibility_seconds,
    )


def _open_redis(parts: SplitResult, parameters: dict[str, str], visibility_seconds: float | None) -> Queue:
    from headrace.sources.redis_queue import RedisQueue

    return RedisQueue(
        parts._replace(query="").geturl(),
        queue=parameters.get("queue", "jobs"),
        visibility_seconds=DEFAULT_VISIBILITY_SECONDS if visibility_seconds is None else visibility_seconds,
    )


def _visibility(text: str) -> float:
    try:
        return parse_duration(float(text) if text.replace(".", "", 1).isdecimal() else text)
    except ValueError as error:
        raise SettingsError(f"the queue's address: visibility: {error}") from None


def _without_secrets(error: ValueError) -> str:
    # urllib's messages may quote the part with the password
    return "its port is not a number" if "port" in str(error).lower() else "it is not a URL"

"""The addresses of the queues that come with headrace.

    sqlite:///jobs.db            a file beside the working folder; ////var/jobs.db is absolute; ?queue=NAME
    sqs://NAME                   Amazon SQS; ?region=eu-west-1&endpoint=http://localhost:4566
    https://sqs.REGION.amazonaws.com/ACCOUNT/NAME
    redis://host:6379/0          Redis Streams; rediss:// with TLS; ?queue=NAME
    redis+sentinel://HOST:26379,HOST:26379/SERVICE/0    the primary that Sentinels name; ?queue=NAME

Each takes `visibility=30s` too. Passwords appear in no name and no error. A queue's own module is imported when it is opened.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, unquote

from headrace.base.errors import SettingsError
from headrace.base.protocols import Queue
from headrace.sources.addresses import Address, QueueScheme


def _find_sqlite_file(parts: SplitResult) -> Path:
    return Path(unquote(parts.path[1:]))


def _check_sqlite(parts: SplitResult) -> None:
    if parts.netloc or len(parts.path) < 2 or parts.path[0] != "/":
        raise SettingsError(
            "sqlite:// is followed by a third slash and the file: sqlite:///jobs.db, or sqlite:////var/jobs.db"
        )


def _open_sqlite(address: Address) -> Queue:
    from headrace.sources.sqlite_queue import SqliteQueue

    return SqliteQueue(
        _find_sqlite_file(address.parts),
        queue=address.parameters.get("queue", "jobs"),
        visibility_seconds=address.visibility_or(),
    )


def _check_no_keys(parts: SplitResult) -> None:
    if parts.username is not None:
        raise SettingsError(
            "keys do not belong into an SQS address; boto3 finds them in the environment, ~/.aws or the machine's role"
        )


def _check_sqs(parts: SplitResult) -> None:
    _check_no_keys(parts)
    if not parts.netloc or parts.path.strip("/"):
        raise SettingsError("an SQS address is sqs://QUEUE_NAME or the queue's whole https URL")


def _check_sqs_url(parts: SplitResult) -> None:
    _check_no_keys(parts)
    if len(parts.path.strip("/").split("/")) != 2:
        raise SettingsError(
            f"the {parts.scheme} URL of an SQS queue ends in /ACCOUNT/QUEUE_NAME. Download a file behind a URL first, or write "
            f"its URL into a list, such as images.txt; a live stream is live+{parts.scheme}://"
        )


def _open_sqs(address: Address) -> Queue:
    from headrace.sources.sqs_queue import SqsQueue

    parts = address.parts
    return SqsQueue(
        parts.netloc if parts.scheme == "sqs" else f"{parts.scheme}://{parts.netloc}{parts.path}",
        region=address.parameters.get("region"),
        endpoint=address.parameters.get("endpoint"),
        visibility_seconds=address.visibility_seconds,
    )


def _check_redis(parts: SplitResult) -> None:
    if not (parts.path.strip("/") or "0").isdecimal():
        raise SettingsError(
            "the path of a Redis address is the database's number; the queue's name is a parameter: ?queue=jobs"
        )


def _check_sentinels(parts: SplitResult) -> None:
    service, _, database = parts.path.strip("/").partition("/")
    if not (parts.netloc and service and (database or "0").isdecimal()):
        raise SettingsError(
            "an address of Sentinels is redis+sentinel://HOST:26379,HOST:26379/SERVICE/0: the name under which they watch "
            "the servers, and the database's number; the queue's name is a parameter: ?queue=jobs"
        )


def _open_redis(address: Address) -> Queue:
    from headrace.sources.redis_queue import RedisQueue

    return RedisQueue(
        address.parts._replace(query="").geturl(),
        queue=address.parameters.get("queue", "jobs"),
        visibility_seconds=address.visibility_or(),
    )


SQLITE = QueueScheme(
    open=_open_sqlite, parameters=("queue",), check=_check_sqlite, find_file=_find_sqlite_file, is_remote=False
)
SQS = QueueScheme(open=_open_sqs, parameters=("endpoint", "region"), check=_check_sqs)
SQS_URL = QueueScheme(open=_open_sqs, parameters=("region",), check=_check_sqs_url)
REDIS = QueueScheme(open=_open_redis, parameters=("queue",), check=_check_redis)
SENTINELS = QueueScheme(open=_open_redis, parameters=("queue",), check=_check_sentinels, has_several_hosts=True)

"""The wire format of a job in a queue: one JSON object, made to be written by hand and by other languages.

    {"v": 1, "id": "order-7/photo-2", "url": "https://example.com/2.jpg", "callback": "https://example.com/done"}

Exactly one of `url`, `path` (absolute, on the worker's machine) and `data` (base64) says what to work on. Everything else
is optional: `id` (else the queue's own id of the message), `task`, `callback`, `deadline` (Unix seconds), `attributes` (an
object passed on untouched) and `v`, the version. Unknown keys are errors, because a misspelt key would silently be lost;
what is the sender's own belongs into `attributes`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import BadMessage
from headrace.base.records import Job, Message, Outcome

#: Version of the format. 1: 2026-11, first.
WIRE_VERSION = 1


class _WireJob(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    # UNSET rather than a default of 1, which omit_defaults would leave out of what we write.
    v: int | msgspec.UnsetType = msgspec.UNSET
    id: str = ""
    task: str = ""
    url: str | None = None
    data: bytes | None = None
    path: str | None = None
    callback: str | None = None
    deadline: float | None = None
    attributes: dict[str, Any] = {}  # msgspec copies it


class _Version(msgspec.Struct):
    v: int = WIRE_VERSION


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_WireJob)
_version_decoder = msgspec.json.Decoder(_Version)
_SYSTEM_CLOCK = SystemClock()


def encode_job(
    payload: str | bytes | Path,
    *,
    id: str | None = None,  # noqa: A002 - the field's name
    task: str = "",
    callback: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    deadline: float | None = None,
) -> bytes:
    """Return a message body.

    Args:
        payload: URL (str), file (Path; made absolute) or the bytes themselves, which grow by a third.
        id: The job's own id, the idempotency key of its delivery; None for a new random one.
        task: Module of the pipeline; empty for the only one.
        callback: Address that the result is sent to.
        attributes: What else the job carries; anything that JSON can hold.
        deadline: Unix seconds after which the work is worthless.

    Raises:
        ValueError: If the payload is empty or JSON cannot hold the attributes.
        TypeError: If the payload is something else.
    """
    wire = _WireJob(
        v=WIRE_VERSION,
        id=os.urandom(16).hex() if id is None else id,
        task=task,
        callback=callback,
        deadline=deadline,
        attributes=dict(attributes or {}),
    )
    if isinstance(payload, Path):
        wire.path = os.path.abspath(payload)
    elif isinstance(payload, str):
        wire.url = payload
    elif isinstance(payload, bytes):
        wire.data = payload
    else:
        raise TypeError(f"a job in a queue carries a URL, a Path or bytes, got {type(payload).__name__}")
    if not payload:
        raise ValueError("the payload is empty; expected a URL, a path or bytes")
    try:
        return _encoder.encode(wire)
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the job with payload {payload!r:.200} cannot be written as JSON, which is UTF-8: {error.reason}; rename the "
            "file, or send its bytes"
        ) from error
    except (TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"attributes must be what JSON can hold: {error}") from error


def decode_message(
    message: Message, *, clock: Clock = _SYSTEM_CLOCK, settle: Callable[[Job, Outcome], None] | None = None
) -> Job:
    """Return the job that a message carries.

    Args:
        message: As received.
        clock: The run's clock; the deadline is carried over to it.
        settle: What `Job.settle` calls.

    Raises:
        BadMessage: If the body is not a job; says what is wrong with it.
    """
    try:
        wire = _decoder.decode(message.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(_what_is_wrong(message.body, error)) from error
    if wire.v is not msgspec.UNSET and wire.v != WIRE_VERSION:
        raise BadMessage(_wrong_version(wire.v))
    attributes = wire.attributes
    if wire.callback is not None:
        attributes["callback"] = wire.callback
    return Job(
        wire.id or message.id,
        _payload(wire),
        task=wire.task,
        attributes=attributes,
        deadline_ns=None if wire.deadline is None else _on_clock(wire.deadline, clock),
        attempt=message.receive_count,
        settle=settle,
    )


def _payload(wire: _WireJob) -> str | bytes | Path:
    url, data, text = wire.url, wire.data, wire.path
    if (url is not None) + (data is not None) + (text is not None) != 1:
        given = [name for name, value in (("url", url), ("data", data), ("path", text)) if value is not None]
        raise BadMessage(f"expected exactly one of url, data, path; got {' and '.join(given) or 'none of them'}")
    if not (url or data or text):
        name = "url" if url is not None else "data" if data is not None else "path"
        raise BadMessage(f"{name} is empty")
    if url is not None:
        return url
    if data is not None:
        return data
    path = Path(text or "")
    if not path.is_absolute():
        raise BadMessage(f"path = {wire.path!r} is not absolute; a worker may run in another folder than the sender")
    return path


def _on_clock(deadline: float, clock: Clock) -> int:
    if not math.isfinite(deadline) or not 0 < deadline < 1e11:
        raise BadMessage(f"deadline = {deadline!r} is not a moment in Unix seconds")
    return clock.now_ns() + round((deadline - clock.unix_seconds()) * 1e9)


def _what_is_wrong(body: bytes, error: Exception) -> str:
    try:
        version = _version_decoder.decode(body).v
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        version = WIRE_VERSION
    if version != WIRE_VERSION:
        return _wrong_version(version)
    return f"the message is not a job: {error}; it starts with {body[:60]!r}"


def _wrong_version(version: object) -> str:
    return f"the message has version {version!r}; this headrace reads version {WIRE_VERSION}: update the worker"

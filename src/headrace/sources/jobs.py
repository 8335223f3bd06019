"""The wire format of a job in a queue: one JSON object, made to be written by hand and by other languages.

    {"v": 1, "id": "order-7/photo-2", "url": "https://example.com/2.jpg", "callback": "https://example.com/done"}

Exactly one of `url`, `path` (absolute, on the worker's machine) and `data` (base64) says what to work on. Everything else
is optional: `id` (else the queue's own id of the message), `task`, `callback`, `deadline` (Unix seconds), `attributes` (an
object passed on untouched) and `v`, the version. Unknown keys are errors, because a misspelt key would be lost silently; the
sender's own fields belong into `attributes`. A repeated key is an error too, because another reader of the same message may
take the other value. So are oversized ids, addresses and other fields. An id may hold any character; headrace escapes it when
it shows it.

A message that is not a job is rejected with a reason that begins with `message.` and a word: `json`, `field`, `duplicate`,
`payload`, `deadline`, `version`, `size`, `parse`; `malformed` if it cannot be read at all.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.clock import Clock, SystemClock
from headrace.base.error_origin import find_origin
from headrace.base.errors import BadMessage
from headrace.base.records import Job, Message, Outcome
from headrace.sources.parsing import Parser
from headrace.sources.strict_json import refuse_duplicates
from headrace.sources.untrusted import describe_error

#: Version of the format. 1: 2026-11, first.
WIRE_VERSION = 1


#: The most characters of a URL; servers take 8,000 (RFC 9110, 4.1) and rarely more.
_LONGEST = {"id": 1_024, "task": 1_024, "url": 8_192, "callback": 8_192}
#: The most bytes of a message without its `data`.
_MOST_BYTES = 256 * 1024
_ESCAPED_SLASH = b"\\/"
#: Characters of base64 in JSON, where a slash may be escaped. Keys and values are parted by others.
_OF_DATA = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\"


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
        attributes: Further fields of the job; any values that JSON can hold.
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
    message: Message,
    *,
    parse: Parser | None = None,
    clock: Clock = _SYSTEM_CLOCK,
    settle: Callable[[Job, Outcome], None] | None = None,
) -> Job:
    """Return the job that a message carries.

    Args:
        message: As received.
        parse: Reads a body of another format, see `headrace.sources.parsing`; None: headrace's own format.
        clock: The run's clock; the deadline is converted to it.
        settle: Called by `Job.settle`.

    Raises:
        BadMessage: If the body is not a job; says why. It raises no other error, whatever the sender wrote.
    """
    if message.malformed:
        raise BadMessage(message.malformed)
    try:
        wire = _own(message.body) if parse is None else _foreign(message.body, parse)
        return _job(wire, message, clock, settle)
    except BadMessage:
        raise
    except Exception as error:  # a defect of a decoder ends one message, not every worker that receives it
        raise BadMessage(f"message.malformed: the message cannot be read: {describe_error(error)}") from error


def _own(body: bytes) -> _WireJob:
    _refuse_structure(body)
    try:
        wire = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(_explain_bad_body(body, error)) from error
    _refuse_excess(wire, len(body) - body.count(_ESCAPED_SLASH))
    refuse_duplicates(body)
    return wire


def _foreign(body: bytes, parse: Parser) -> _WireJob:
    try:
        fields = parse(body)
    except BadMessage:
        raise
    except (Exception, SystemExit) as error:
        origin = find_origin(error)
        refused = BadMessage(
            f"message.parse: parse raised {describe_error(error)}{f' ({origin.place})' if origin else ''}"
        )
        refused.origin = origin
        raise refused from error
    try:
        wire: _WireJob = msgspec.convert({"url": fields} if isinstance(fields, str) else fields, _WireJob)
    except (msgspec.ValidationError, TypeError) as error:
        raise BadMessage(
            f"message.parse: what parse returned is no job: {error!s:.200}; see the guide to queues"
        ) from error
    _refuse_excess(wire, len(body))
    return wire


def _job(wire: _WireJob, message: Message, clock: Clock, settle: Callable[[Job, Outcome], None] | None) -> Job:
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
        deadline_ns=None if wire.deadline is None else _convert_deadline(wire.deadline, clock),
        attempt=message.receive_count,
        settle=settle,
    )


def _refuse_structure(body: bytes) -> None:
    """Refuse what must have too much beside its `data`, before it is read: millions of keys take seconds, and much memory."""
    if len(body) > _MOST_BYTES and (rest := len(body.translate(None, _OF_DATA))) > _MOST_BYTES:
        raise BadMessage(
            f"message.size: the message has more than {rest:,} bytes beside its data; at most {_MOST_BYTES:,}: send large data "
            "as a URL, a path or `data`"
        )


def _refuse_excess(wire: _WireJob, num_bytes: int) -> None:
    rest = num_bytes - len(wire.data or b"") * 4 // 3
    if rest > _MOST_BYTES:
        raise BadMessage(
            f"message.size: the message has {rest:,} bytes beside its data; at most {_MOST_BYTES:,}: send large data as a URL, "
            "a path or `data`"
        )
    refuse_long({name: getattr(wire, name) for name in _LONGEST})


def refuse_long(fields: Mapping[str, str | None]) -> None:
    """Refuse a job that has a longer name or address than any has.

    Raises:
        BadMessage: `message.size`.
    """
    for name, value in fields.items():
        if value and len(value) > _LONGEST[name]:
            raise BadMessage(
                f"message.size: {name} has {len(value):,} characters, at most {_LONGEST[name]:,}; it begins {value[:60]!r}"
            )


def _payload(wire: _WireJob) -> str | bytes | Path:
    url, data, text = wire.url, wire.data, wire.path
    if (url is not None) + (data is not None) + (text is not None) != 1:
        given = [name for name, value in (("url", url), ("data", data), ("path", text)) if value is not None]
        raise BadMessage(
            f"message.payload: expected exactly one of url, data, path; got {' and '.join(given) or 'none of them'}"
        )
    if not (url or data or text):
        name = "url" if url is not None else "data" if data is not None else "path"
        raise BadMessage(f"message.payload: {name} is empty")
    if url is not None:
        return url
    if data is not None:
        return data
    path = Path(text or "")
    if not path.is_absolute():
        raise BadMessage(
            f"message.payload: path = {wire.path!r:.200} is not absolute; a worker may run in another folder than the sender"
        )
    return path


def _convert_deadline(deadline: float, clock: Clock) -> int:
    if not math.isfinite(deadline) or not 0 < deadline < 1e11:
        raise BadMessage(f"message.deadline: deadline = {deadline!r} is not a moment in Unix seconds")
    return clock.now_ns() + round((deadline - clock.unix_seconds()) * 1e9)


def _explain_bad_body(body: bytes, error: Exception) -> str:
    try:
        version = _version_decoder.decode(body).v
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        version = WIRE_VERSION
    if version != WIRE_VERSION:
        return _wrong_version(version)
    code = "field" if isinstance(error, msgspec.ValidationError) else "json"
    said = _HALF_CHARACTER if _is_half_character(body) else f"{error!s:.200}"
    return f"message.{code}: the message is not a job: {said}; it starts with {body[:60]!r}"


_HALF_CHARACTER = (
    "it has half a character: an escape from \\ud800 to \\udfff without its other half, which is no Unicode"
)


def _is_half_character(body: bytes) -> bool:
    """Return whether this is JSON with half of a UTF-16 pair, which msgspec reports as truncated input."""
    if len(body) > _MOST_BYTES:
        return False  # whoever sent so much is told less, and nobody reads it twice
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def _wrong_version(version: object) -> str:
    return (
        f"message.version: the message has version {version!r:.40}; this headrace reads version {WIRE_VERSION}: update the "
        "worker"
    )

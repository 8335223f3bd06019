"""Parsers for messages of other producers: they turn a message body into the fields of a job.

A parser gets the body of a message (bytes) and returns the address of the payload (a string), or a dict with the keys of
headrace's own format (see `headrace.sources.jobs`), in which `data` holds bytes. If it raises, that one message is rejected.

Names of the built-in parsers:

    url             the body is the address
    json:URL=...    one JSON object; where its fields stand, such as `json:url=image.href,id=asset_id,callback=hook`
    s3              a notification of Amazon S3, as S3 or EventBridge sends it, about one object
    sns             an envelope of Amazon SNS around a job of headrace's own format
    sns+NAME        an envelope of Amazon SNS around what NAME reads: `sns+s3`, `sns+url`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, unquote_plus

import msgspec

from headrace.base.errors import BadMessage, SettingsError
from headrace.sources.strict_json import refuse_duplicates

#: (body) -> address, or the fields of a job.
Parser = Callable[[bytes], "str | Mapping[str, Any]"]

_FIELDS = ("url", "id", "task", "callback", "deadline")
_decoder = msgspec.json.Decoder()


def find_parser(name: str | Parser) -> Parser:
    """Return the parser of a name; a function is returned unchanged.

    Raises:
        SettingsError: If no parser has that name.
    """
    if callable(name):
        return name
    first, _, rest = name.partition("+")
    if first == "sns":
        inner = find_parser(rest) if rest else read_object
        return lambda body: _parse_sns(body, inner)
    if first.startswith("json:"):
        places = _places(first.removeprefix("json:"), name)
        return lambda body: _parse_json(body, places)
    if not rest and first in _PLAIN:
        return _PLAIN[first]
    raise SettingsError(
        f"parse = {name!r} is no format; expected url, json:url=FIELD,..., s3, sns, sns+s3, sns+url, or a function that takes "
        "the body of a message, bytes, and returns an address or the fields of a job"
    )


def read_object(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a body; raises BadMessage for anything else."""
    try:
        found = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"message.json: it is no JSON: {error!s:.200}; it starts with {body[:60]!r}") from None
    if not isinstance(found, dict):
        raise BadMessage(f"message.json: it is JSON, and no object; it starts with {body[:60]!r}")
    refuse_duplicates(body)
    return found


def _parse_url(body: bytes) -> str:
    return body.decode().strip()


def _places(text: str, name: str) -> dict[str, list[str]]:
    """Return {field of a job: keys that lead to it}."""
    places = {}
    for part in text.split(","):
        field, equals, place = part.partition("=")
        if field not in _FIELDS or not equals or not place:
            raise SettingsError(
                f"parse = {name!r}: {part!r} names no field; expected FIELD=PLACE with FIELD one of {', '.join(_FIELDS)}, such "
                "as json:url=image.href,id=asset_id"
            )
        places[field] = place.split(".")
    if "url" not in places:
        raise SettingsError(f"parse = {name!r} does not say where the address is; add url=FIELD")
    return places


def _parse_json(body: bytes, places: Mapping[str, list[str]]) -> Mapping[str, Any]:
    """Return the fields of a job; its attributes are the whole object."""
    found = read_object(body)
    values = {field: _find_at(found, place) for field, place in places.items()}
    if values["url"] is None:
        raise BadMessage(f"message.field: there is no {'.'.join(places['url'])} in it; it has {', '.join(found)[:200]}")
    for field in ("id", "task"):  # producers count with numbers
        if type(values.get(field)) is int:
            values[field] = str(values[field])
    # The operator chooses the field with the callback: a sender's own field `callback` must not redirect results.
    attributes = {key: value for key, value in found.items() if key != "callback"}
    return {**{field: value for field, value in values.items() if value is not None}, "attributes": attributes}


def _find_at(found: Any, place: list[str]) -> Any:
    for key in place:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _parse_sns(body: bytes, inner: Parser) -> str | Mapping[str, Any]:
    envelope = read_object(body)
    message = envelope.get("Message")
    if envelope.get("Type") != "Notification" or not isinstance(message, str):
        raise BadMessage(
            f"message.field: it is no notification of SNS: Type = {envelope.get('Type')!r:.40}; with raw message delivery "
            "there is no envelope, and no sns in parse"
        )
    parsed = inner(message.encode())
    fields = {"url": parsed} if isinstance(parsed, str) else parsed
    return {"id": str(envelope.get("MessageId") or ""), **fields}


def _parse_s3(body: bytes) -> Mapping[str, Any]:
    """Return the job of one new object; its id differs for each version of the object."""
    event = read_object(body)
    if isinstance(event.get("detail"), dict):  # EventBridge, which does not escape names
        region, s3, is_escaped = event.get("region"), event["detail"], False
    else:
        records = event.get("Records")
        if not isinstance(records, list) or len(records) != 1:
            count = len(records) if isinstance(records, list) else "no"
            raise BadMessage(f"message.field: expected a notification of S3 about one object, got {count} records")
        region, s3, is_escaped = records[0].get("awsRegion"), records[0]["s3"], True
    bucket, thing = str(s3["bucket"]["name"]), s3["object"]
    key = unquote_plus(thing["key"]) if is_escaped else str(thing["key"])
    version = thing.get("versionId") or thing.get("version-id") or thing.get("sequencer") or thing.get("eTag") or ""
    return {
        "id": f"{bucket}/{key}@{version}",
        "url": f"https://{bucket}.s3.{region}.amazonaws.com/{quote(key)}",
        "attributes": {"bucket": bucket, "key": key, "event": event},
    }


_PLAIN: dict[str, Parser] = {"url": _parse_url, "s3": _parse_s3}

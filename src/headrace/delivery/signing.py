"""Signatures of callbacks by Standard Webhooks: made by the worker, checked by the receiver.

Each POST has three headers:

    webhook-id          the job's id, the same in every try and redelivery: the key to deduplicate by
    webhook-timestamp   Unix seconds of this try
    webhook-signature   `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`; several, separated by spaces, where
                        several secrets are in use

A secret is `whsec_` and the base64 of 24 to 64 random bytes. To rotate, give the worker both, the new one first; remove the
old one once every receiver knows the new one. Nothing here prints a secret.

It needs only the standard library, so that a receiver can copy this file.

References:
    Standard Webhooks, https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence

#: How far a timestamp may differ from the receiver's clock, so that a recorded request cannot be replayed later.
TOLERANCE_SECONDS = 300.0

_PREFIX = "whsec_"
_VERSION = "v1"
_FEWEST_BYTES, _MOST_BYTES = 24, 64


class NotSigned(ValueError):
    """The request was not signed with a known secret, or is too old; the message says which."""


class Secrets:
    """One or several secrets, the newest first; its repr shows none of them.

    Args:
        texts: Each `whsec_...`.

    Raises:
        ValueError: If there is none, or one is not a secret; names its position.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        if not texts:
            raise ValueError("no secret is given; expected one or several of whsec_ and base64, the newest first")
        self._keys = [_key(text, number) for number, text in enumerate(texts, 1)]

    def __repr__(self) -> str:
        return f"Secrets({len(self._keys)} of them, not shown)"

    def __reduce__(self) -> str:
        raise TypeError("secrets are not pickled; open them where they are used")

    def sign(self, message_id: str, timestamp: str, body: bytes) -> str:
        """Return the value of `webhook-signature`: one signature per secret."""
        content = b".".join((message_id.encode(), timestamp.encode(), body))
        return " ".join(f"{_VERSION},{_hmac(key, content)}" for key in self._keys)

    def are_behind(self, signatures: str, message_id: str, timestamp: str, body: bytes) -> bool:
        """Return whether one of the signatures was made with one of the secrets; compares in constant time."""
        expected = [part.encode() for part in self.sign(message_id, timestamp, body).split(" ")]
        given = [part.encode() for part in signatures.split(" ") if part.startswith(f"{_VERSION},")]
        return any([hmac.compare_digest(one, other) for one in expected for other in given])  # noqa: C419 - all of them


def parse_secrets(text: str) -> Secrets:
    """Return the secrets in a text: `whsec_...`, separated by spaces or line ends, the newest first.

    Raises:
        ValueError: See `Secrets`.
    """
    return Secrets(text.split())


class Verifier:
    """Checks callbacks on the receiver's side. Thread-safe.

        verifier = Verifier("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        verifier.verify(headers, body)  # before the body is parsed

    Args:
        secrets: One `whsec_...`, or several during a rotation.
        tolerance_seconds: How far the timestamp may differ from now.
        unix_seconds: The clock, for tests.
    """

    def __init__(
        self,
        *secrets: str,
        tolerance_seconds: float = TOLERANCE_SECONDS,
        unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        self._secrets = Secrets(secrets)
        self._tolerance_seconds = tolerance_seconds
        self._unix_seconds = unix_seconds

    def verify(self, headers: Mapping[str, str], body: bytes) -> str:
        """Return the `webhook-id`, by which a receiver recognises a second copy of this result.

        Args:
            headers: Headers of the request; names in any case.
            body: As received, byte for byte.

        Raises:
            NotSigned: If a header is missing, the timestamp is too far from now, or no signature is valid.
        """
        by_name = {name.lower(): value for name, value in headers.items()}
        try:
            message_id, timestamp, signatures = (
                by_name[f"webhook-{name}"] for name in ("id", "timestamp", "signature")
            )
        except KeyError as error:
            raise NotSigned(f"the header {error.args[0]} is missing") from None
        if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) < 16):
            raise NotSigned("webhook-timestamp is not a whole number of Unix seconds")
        age = self._unix_seconds() - int(timestamp)
        if abs(age) > self._tolerance_seconds:
            raise NotSigned(f"it was sent {age:.0f} s ago; allowed are {self._tolerance_seconds:g} s either way")
        try:
            is_right = self._secrets.are_behind(signatures, message_id, timestamp, body)
        except UnicodeEncodeError:  # of bytes that are not UTF-8 some servers make lone surrogates
            is_right = False
        if not is_right:
            raise NotSigned("no signature in webhook-signature is right for this id, timestamp and body")
        return message_id


def _key(text: str, number: int) -> bytes:
    which = f"secret {number} (not shown)"
    if not text.startswith(_PREFIX):
        raise ValueError(f"{which} does not start with whsec_")
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{which} is not base64 after whsec_") from None
    if not _FEWEST_BYTES <= len(key) <= _MOST_BYTES:
        raise ValueError(f"{which} has {len(key)} bytes; expected {_FEWEST_BYTES} to {_MOST_BYTES}")
    return key


def _hmac(key: bytes, content: bytes) -> str:
    return base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()

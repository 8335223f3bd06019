"""Signatures of callbacks, against the reference library of Standard Webhooks in both directions."""

from __future__ import annotations

import base64
import copy
import datetime
import json
import pickle
import time

import pytest
import standardwebhooks

from headrace.delivery.signing import NotSigned, Secrets, Verifier, parse_secrets

KEY = bytes(range(24))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
OTHER = "whsec_" + base64.b64encode(bytes(range(32))).decode()
BODY = json.dumps({"id": "größe", "result": [1, 2.5, None]}).encode()


def signed(*secrets: str, at: float | None = None, body: bytes = BODY) -> dict[str, str]:
    """Headers as a worker with these secrets sends them."""
    stamp = str(int(time.time() if at is None else at))
    signature = Secrets(secrets).sign("job-1", stamp, body)
    return {"Webhook-Id": "job-1", "Webhook-Timestamp": stamp, "Webhook-Signature": signature}


def test_the_reference_library_takes_ours() -> None:
    """What we sign, the reference verifies."""
    assert standardwebhooks.Webhook(SECRET).verify(BODY, signed(SECRET)) == json.loads(BODY)


def test_we_take_the_reference_librarys() -> None:
    """What the reference signs, we verify, and get the id."""
    now = datetime.datetime.now(tz=datetime.UTC)
    signature = standardwebhooks.Webhook(SECRET).sign("msg_1", now, BODY.decode())
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signature,
    }
    assert Verifier(SECRET).verify(headers, BODY) == "msg_1"


@pytest.mark.parametrize("known", [SECRET, OTHER])
def test_during_a_rotation_either_secret_will_do(known: str) -> None:
    """A worker with two secrets is believed by receivers that know one of them, by the reference too."""
    headers = signed(OTHER, SECRET)
    assert len(headers["Webhook-Signature"].split(" ")) == 2
    assert Verifier(known).verify(headers, BODY) == "job-1"
    standardwebhooks.Webhook(known).verify(BODY, headers)


def test_a_receiver_may_know_several() -> None:
    """A receiver with both secrets believes a worker with the old one."""
    assert Verifier(OTHER, SECRET).verify(signed(SECRET), BODY) == "job-1"


def test_a_wrong_secret_is_refused() -> None:
    """By us and by the reference."""
    with pytest.raises(NotSigned, match="no signature"):
        Verifier(OTHER).verify(signed(SECRET), BODY)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(OTHER).verify(BODY, signed(SECRET))


@pytest.mark.parametrize("what", ["id", "timestamp", "body"])
def test_what_was_changed_is_refused(what: str) -> None:
    """Id, timestamp and body are all signed."""
    headers, body = signed(SECRET), BODY
    if what == "id":
        headers["Webhook-Id"] = "job-2"
    elif what == "timestamp":
        headers["Webhook-Timestamp"] = str(int(headers["Webhook-Timestamp"]) + 1)
    else:
        body = BODY.replace(b"2.5", b"2.6")
    with pytest.raises(NotSigned, match="no signature"):
        Verifier(SECRET).verify(headers, body)


@pytest.mark.parametrize(("age", "taken"), [(299, True), (301, False), (-299, True), (-301, False)])
def test_old_and_early_ones_are_refused(age: float, taken: bool) -> None:
    """Five minutes either way, so that an overheard request cannot be sent again later."""
    verifier = Verifier(SECRET, unix_seconds=lambda: 1_800_000_000.0 + age)
    headers = signed(SECRET, at=1_800_000_000.0)
    if taken:
        assert verifier.verify(headers, BODY) == "job-1"
    else:
        with pytest.raises(NotSigned, match=r"sent .* s ago; allowed are 300 s"):
            verifier.verify(headers, BODY)


@pytest.mark.parametrize("name", ["Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"])
def test_a_missing_header_is_named(name: str) -> None:
    """A request without one of the three is not signed."""
    headers = signed(SECRET)
    del headers[name]
    with pytest.raises(NotSigned, match=f"the header {name.lower()} is missing"):
        Verifier(SECRET).verify(headers, BODY)


@pytest.mark.parametrize("stamp", ["", "now", "1e9", "-5", "٣", "1" * 400, "nan"])
def test_a_timestamp_that_is_none(stamp: str) -> None:
    """Whatever stands there, it is refused and nothing breaks."""
    with pytest.raises(NotSigned):
        Verifier(SECRET).verify(signed(SECRET) | {"Webhook-Timestamp": stamp}, BODY)


@pytest.mark.parametrize("signature", ["", "v1,", "v1", "v1a,xyz", ", ,", "v1,größe", "v2," + "A" * 44])
def test_a_signature_that_is_none(signature: str) -> None:
    """Whatever stands there, it is refused and nothing breaks."""
    with pytest.raises(NotSigned, match="no signature"):
        Verifier(SECRET).verify(signed(SECRET) | {"Webhook-Signature": signature}, BODY)


@pytest.mark.parametrize("name", ["Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"])
def test_a_header_that_is_no_text(name: str) -> None:
    """Bytes that are not UTF-8, which some servers decode to lone surrogates, are refused like what is wrong."""
    headers = signed(SECRET)
    headers[name] += "\udcff"
    with pytest.raises(NotSigned):
        Verifier(SECRET).verify(headers, BODY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no secret is given"),
        ("hunter2hunter2", "secret 1 .* does not start with whsec_"),
        (f"{SECRET} whsec_hunter2%%", "secret 2 .* is not base64"),
        ("whsec_" + base64.b64encode(b"hunter2").decode(), "secret 1 .* has 7 bytes; expected 24 to 64"),
        ("whsec_" + base64.b64encode(b"h" * 65).decode(), "secret 1 .* has 65 bytes; expected 24 to 64"),
    ],
)
def test_what_is_no_secret_is_told_and_not_shown(text: str, message: str) -> None:
    """The message says which one is wrong and why, and holds no part of it."""
    with pytest.raises(ValueError, match=message) as caught:
        parse_secrets(text)
    for part in text.split():
        assert part.removeprefix("whsec_") not in str(caught.value)


def test_secrets_are_shown_nowhere() -> None:
    """Not by repr, not in a pickle."""
    secrets = Secrets([SECRET])
    assert repr(secrets) == "Secrets(1 of them, not shown)"
    for copier in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            copier(secrets)

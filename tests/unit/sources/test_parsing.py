"""Messages of producers that know nothing of headrace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.base.errors import BadMessage, SettingsError
from headrace.base.plan import SourcePlan
from headrace.base.records import Job, Message
from headrace.sources.jobs import decode_message
from headrace.sources.parsing import Parser, find_parser
from headrace.testing import MemoryQueue

S3 = {
    "Records": [
        {"eventName": "ObjectCreated:Put", "awsRegion": "eu-west-1", "s3": {
            "bucket": {"name": "photos"}, "object": {"key": "2026/a+b%C3%A9.jpg", "sequencer": "0A1B"}}}
    ]
}  # fmt: skip
EVENT = {
    "region": "eu-west-1",
    "detail": {"bucket": {"name": "photos"}, "object": {"key": "2026/a bé.jpg", "version-id": "v7"}},
}


def job(body: object, parse: str | Parser) -> Job:
    """Return the job that a parser makes of a body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_message(Message("m1", data, "r1", 1, 0.0), parse=find_parser(parse))


def sns(message: object) -> dict[str, Any]:
    """Return an envelope around a message."""
    text = message if isinstance(message, str) else json.dumps(message)
    return {"Type": "Notification", "MessageId": "n1", "TopicArn": "arn", "Message": text}


@pytest.mark.parametrize(
    ("parse", "body", "id", "url"),
    [
        ("url", b" https://e.com/a.jpg\n", "m1", "https://e.com/a.jpg"),
        ("sns+url", sns("https://e.com/a.jpg"), "n1", "https://e.com/a.jpg"),
        ("sns", sns({"id": "j7", "url": "https://e.com/a.jpg"}), "j7", "https://e.com/a.jpg"),
        ("s3", S3, "photos/2026/a bé.jpg@0A1B", "https://photos.s3.eu-west-1.amazonaws.com/2026/a%20b%C3%A9.jpg"),
        ("s3", EVENT, "photos/2026/a bé.jpg@v7", "https://photos.s3.eu-west-1.amazonaws.com/2026/a%20b%C3%A9.jpg"),
        (
            "sns+s3",
            sns(S3),
            "photos/2026/a bé.jpg@0A1B",
            "https://photos.s3.eu-west-1.amazonaws.com/2026/a%20b%C3%A9.jpg",
        ),
        ("json:url=image.href,id=asset", {"asset": 7, "image": {"href": "https://e.com/a"}}, "7", "https://e.com/a"),
        (lambda body: body.decode()[::-1], b"a/moc.e//:sptth", "m1", "https://e.com/a"),
        (lambda body: {"id": "x", "url": "https://e.com/a"}, b"", "x", "https://e.com/a"),
    ],
)
def test_what_others_send_is_a_job(parse: str | Parser, body: object, id: str, url: str) -> None:  # noqa: A002
    """Its id is the producer's where there is one, and its payload the address."""
    found = job(body, parse)
    assert (found.id, found.payload) == (id, url)


def test_the_whole_object_goes_along() -> None:
    """What else a producer sends reaches the module and the receiver; the callback is where deliveries look for it."""
    body = {"href": "https://e.com/a", "hook": "https://e.com/done", "shop": 3}
    assert job(body, "json:url=href,callback=hook").attributes == {**body, "callback": "https://e.com/done"}


def test_a_sender_cannot_redirect_results() -> None:
    """A field that happens to be called callback is no address unless the operator says so."""
    body = {"href": "https://e.com/a", "callback": "https://strangers.com"}
    assert "callback" not in job(body, "json:url=href").attributes
    assert job(body, "json:url=href,callback=callback").attributes["callback"] == "https://strangers.com"


@pytest.mark.parametrize(
    ("parse", "body", "code"),
    [
        ("json:url=href", b"[1]", "message.json"),
        ("json:url=href", b"\xff", "message.json"),
        ("json:url=href", b"[" * 100_000, "message.json"),
        ("json:url=href", {"other": 1}, "message.field"),
        ("json:url=href", {"href": 7}, "message.parse"),
        ("url", b"\xff", "message.parse"),
        ("url", b"", "message.payload"),
        ("url", b"h" * 9000, "message.size"),
        ("sns", {"Type": "SubscriptionConfirmation"}, "message.field"),
        ("s3", {"Event": "s3:TestEvent"}, "message.field"),
        ("s3", {"Records": [{}, {}]}, "message.field"),
        ("s3", {"Records": [7]}, "message.parse"),
        ("json:url=href,id=id", {"href": "https://e.com", "id": True}, "message.parse"),
        ("json:url=href", b'{"href": "https://e.com/a", "href": "https://e.com/b"}', "message.duplicate"),
        ("json:url=href", {"href": "https://e.com", "rest": "x" * 300_000}, "message.size"),
        (lambda body: 1 / 0, b"", "message.parse"),
        (lambda body: None, b"", "message.parse"),
        (lambda body: {"urll": "x"}, b"", "message.parse"),
    ],
)
def test_what_is_no_job_is_refused(parse: str | Parser, body: object, code: str) -> None:
    """One message at a time, with a code."""
    with pytest.raises(BadMessage) as refused:
        job(body, parse)
    assert refused.value.code == code


@pytest.mark.parametrize("error", [KeyError("photo"), SystemExit("photo")], ids=repr)
def test_an_error_in_a_parser_names_its_line(error: BaseException) -> None:
    """As one in a stage does; one that would end the process ends one message."""

    def parse(body: bytes) -> Mapping[str, Any]:
        raise error

    with pytest.raises(BadMessage, match=rf"parse raised {type(error).__name__}: '?photo'? \(.*test_parsing.py:\d+\)"):
        job(b"", parse)


@given(st.binary(max_size=200), st.sampled_from(["url", "s3", "sns", "sns+s3", "json:url=a.b"]))
def test_nothing_but_a_bad_message_comes_of_any_body(body: bytes, parse: str) -> None:
    """Whatever strangers send, a job or a coded refusal comes of it."""
    found = ""
    try:
        found = str(job(body, parse).payload)
    except BadMessage as error:
        found = error.code
    assert found


@pytest.mark.parametrize("name", ["xml", "json:", "json:url", "json:href=url", "json:id=a", "sns+xml", "url+s3", ""])
def test_a_parser_that_is_none_is_told_at_once(name: str) -> None:
    """A misspelt name is an error where it is written."""
    with pytest.raises(SettingsError, match="parse = "):
        hr.queue("sqlite:///jobs.db", parse=name)


def test_a_source_reads_what_producers_send() -> None:
    """From the queue to the job, beside a message that is none."""
    queue = MemoryQueue(visibility_seconds=30)
    queue.send([b'{"asset": 1, "href": "https://e.com/1"}', b"other"])
    source = hr.queue(queue, parse="json:url=href,id=asset")
    source.open(SourcePlan())
    jobs = source.receive(10, 0.0) or []
    source.close()
    assert {(job.id, job.verdict is None) for job in jobs} == {("1", True), (jobs[1].id, False)}

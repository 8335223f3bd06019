"""The wire format of jobs."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.hostile_inputs.messages import handmade_messages, hostile_messages
from headrace.base.errors import BadMessage
from headrace.base.records import Job, Message
from headrace.sources import jobs, strict_json
from headrace.sources.jobs import decode_message, encode_job
from headrace.testing import FakeClock

KEYS = st.sampled_from(["v", "id", "task", "url", "data", "path", "callback", "deadline", "attributes"]) | st.text()
JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


def decoded(body: bytes, **options: Any) -> Job:
    """Return the job of a message with this body."""
    return decode_message(Message("m1", body, "r1", 3, 0.0), **options)


def verdict(body: bytes) -> str:
    """Return `ok` or the code of the refusal."""
    try:
        decoded(body)
    except BadMessage as error:
        return error.code
    return "ok"


def as_json(value: Any) -> bytes:
    """Return a value as Python writes it, NaN and all."""
    return json.dumps(value).encode()


@given(
    payload=st.one_of(st.text(min_size=1), st.binary(min_size=1)),
    task=st.text(),
    callback=st.none() | st.text(),
    attributes=st.dictionaries(
        st.text().filter(lambda key: key != "callback"), st.integers(-(2**53), 2**53) | st.text()
    ),
)
def test_a_job_survives_the_wire(
    payload: str | bytes, task: str, callback: str | None, attributes: dict[str, Any]
) -> None:
    """What is encoded is decoded unchanged, and the callback is among the attributes."""
    job = decoded(encode_job(payload, id="j", task=task, callback=callback, attributes=attributes))
    assert (job.id, job.payload, job.task, job.attempt) == ("j", payload, task, 3)
    assert job.attributes == attributes | ({} if callback is None else {"callback": callback})


def test_a_message_nested_without_end_is_bad() -> None:
    """A message that nobody can parse is one bad message, not the end of the worker."""
    nested = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(BadMessage, match="the message is not a job"):
        decoded(b'{"url": "https://e.com/1", "attributes": {"a": ' + nested + b"}}")


def test_a_name_that_is_not_unicode_is_told() -> None:
    """JSON is UTF-8: a path that is not cannot travel, and the error names it."""
    with pytest.raises(ValueError, match=r"caf\\udce9\.jpg'\) cannot be written as JSON"):
        encode_job(Path("/photos/caf\udce9.jpg"))


def test_a_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is made absolute where it is sent."""
    monkeypatch.chdir(tmp_path)
    assert decoded(encode_job(Path("a.jpg"))).payload == tmp_path / "a.jpg"


def test_the_format_is_what_is_documented() -> None:
    """The body is JSON with a version and no empty fields."""
    assert json.loads(encode_job("https://e.com/1", id="j")) == {"v": 1, "id": "j", "url": "https://e.com/1"}
    assert json.loads(encode_job(b"\xff", id="j")) == {"v": 1, "id": "j", "data": "/w=="}


def test_ids_are_made() -> None:
    """Jobs without an id get one each."""
    assert decoded(encode_job("https://e.com/1")).id != decoded(encode_job("https://e.com/1")).id


def test_a_message_by_hand() -> None:
    """The smallest message is a URL alone; the message's id is then the job's."""
    job = decoded(b'{"url": "https://e.com/1"}')
    assert (job.id, job.payload, job.attributes) == ("m1", "https://e.com/1", {})


def test_the_deadline_is_on_the_runs_clock() -> None:
    """A deadline in Unix seconds becomes nanoseconds of the monotonic clock."""
    clock = FakeClock(unix_seconds=1000.0)
    job = decoded(encode_job("https://e.com/1", deadline=1060.0), clock=clock)
    assert job.deadline_ns == clock.now_ns() + 60_000_000_000


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "truncated"),
        (b"https://e.com/1.jpg", "malformed"),
        (b"\xff\xd8\xff\xe0", "malformed"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"v": 1}', "exactly one of url, data, path; got none"),
        (b'{"url": "x", "path": "/x"}', "got url and path"),
        (b'{"url": ""}', "url is empty"),
        (b'{"url": 7}', r"got `int` - at `\$\.url`"),
        (b'{"ulr": "x"}', "unknown field `ulr`"),
        (b'{"path": "x.jpg"}', "'x.jpg' is not absolute"),
        (b'{"data": "%%"}', "base64"),
        (b'{"v": 2, "url": "x"}', "version 2; this headrace reads version 1"),
        (b'{"v": 2, "new": "x"}', "version 2; this headrace reads version 1"),
        (b'{"url": "x", "deadline": 1e300}', "not a moment"),
        (b'{"url": "x", "deadline": -1}', "not a moment"),
        (b'{"url": "x", "id": "\\ud800"}', r"^message\.json: .* half a character"),
        (b'{"url": "x", "id": "\\ud800', r"^message\.json: .* truncated"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, said: str) -> None:
    """A body that is not a job is refused with what is wrong with it."""
    with pytest.raises(BadMessage, match=said):
        decoded(body)


@given(st.binary(max_size=200))
def test_no_body_breaks_it(body: bytes) -> None:
    """Whatever a message holds, the answer is a job or BadMessage."""
    with contextlib.suppress(BadMessage):
        assert decoded(body).payload


def test_what_cannot_be_encoded_is_refused() -> None:
    """Empty payloads, attributes that JSON cannot hold and other types are callers' mistakes."""
    with pytest.raises(ValueError, match="empty"):
        encode_job("")
    with pytest.raises(ValueError, match="attributes"):
        encode_job("x", attributes={"a": object()})
    with pytest.raises(TypeError, match="int"):
        encode_job(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", handmade_messages(), ids=lambda body: repr(body[:24]))
def test_hostile_messages(body: bytes) -> None:
    """What is no job is refused with a code and a reason that fits a line, however much was sent."""
    with pytest.raises(BadMessage, match=r"^message\.[a-z]+: ") as caught:
        decoded(body)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_spoiled_messages() -> None:
    """Jobs of wrong types, with bytes replaced or cut off, are refused with a code or read as an ordinary job."""
    for body in hostile_messages(3000, seed=6):
        assert verdict(body) == "ok" or verdict(body).startswith("message."), body


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.recursive(JSON, lambda part: st.lists(part) | st.dictionaries(KEYS, part)).map(as_json)
)
def test_any_message(body: bytes) -> None:
    """Whatever a message holds, it is a job or refused with a code."""
    assert verdict(body) == "ok" or verdict(body).startswith("message.")


def test_numbers_of_any_length() -> None:
    """A number that Python would refuse to read for its length is told as what it is, or passes."""
    number = b"7" * 5000
    assert verdict(b'{"url": "https://e.com/1", "attributes": {"a": ' + number + b"}}") in ("ok", "message.field")


def test_equal_keys_in_different_objects() -> None:
    """A key may stand in several objects; only twice in one is it refused."""
    body = b'{"url": "https://e.com/1", "attributes": {"url": 1, "a": {"url": 2}, "b": [{"url": 3}]}}'
    assert decoded(body).attributes == {"url": 1, "a": {"url": 2}, "b": [{"url": 3}]}


def test_large_data_is_welcome() -> None:
    """What is limited is what stands beside the data."""
    assert decoded(encode_job(bytes(5_000_000))).payload == bytes(5_000_000)


@pytest.mark.parametrize("inside", [{}, {"attributes": None}])
def test_a_message_of_too_many_keys_is_not_read(inside: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the messages of all is held up by none, and memory does not grow with it."""
    many = {f"k{number}": 1 for number in range(100_000)}
    body = as_json({"data": "eA==", **({"attributes": many} if inside else many)})
    for reader in ("_decoder", "_version_decoder", "json"):
        monkeypatch.setattr(jobs, reader, None)
    assert verdict(body) == "message.size"


def test_data_may_have_escaped_slashes() -> None:
    """As PHP writes them; they are no structure."""
    body = b'{"data": "' + b"\\/" * 400_000 + b'"}'
    assert len(decoded(body).payload) == 300_000


def test_whatever_a_decoder_raises_is_a_bad_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of what reads messages ends one of them, with a code, and not its worker."""

    def broken(*_: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr("headrace.sources.jobs.refuse_duplicates", broken)
    with pytest.raises(BadMessage, match=r"message\.malformed: the message cannot be read: KeyError: 'a defect'"):
        decoded(b'{"url": "https://e.com"}')


def test_many_keys_are_checked_in_one_pass() -> None:
    """The last of 20,000 keys stands twice: found by one look at each, for a sender chooses how many there are."""
    looked = 0

    class Key(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return str.__eq__(self, str(other))

        __hash__ = str.__hash__

    pairs = [(Key(f"k{number}"), 0) for number in range(20_000)]
    with pytest.raises(BadMessage, match=r"message\.duplicate: the key 'k19999'"):
        strict_json.reject_duplicates([*pairs, (Key("k19999"), 0)])
    assert looked < 100_000

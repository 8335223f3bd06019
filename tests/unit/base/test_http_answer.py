"""What of an answer counts."""

import io

import pytest

from headrace.base.http_answer import ANSWER_BYTES, FirstBytes, is_whole, retry_after_seconds


@pytest.mark.parametrize(
    ("head", "whole"),
    [
        (b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n", True),
        (b"HTTP/2 503 \r\n\r\n", True),
        (b"HTTP/1.1 200 OK\n\n", True),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nTrailer: x\r\n", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", True),
        (b"", False),
        (b"HTTP/1.1 200 OK\r\n", False),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n", False),
        (b"HTTP/2 103 \r\n\r\n", False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\n", False),
    ],
)
def test_whole_heads(head: bytes, whole: bool) -> None:
    """A head is whole when the empty line after the headers of the final status came."""
    assert is_whole(head) is whole


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (b"Retry-After: 120", 120.0),
        (b"retry-after:7 ", 7.0),
        (b"Retry-After: Fri, 31 Dec 2027 23:59:59 GMT\r\nDate: Fri, 31 Dec 2027 23:59:29 GMT", 30.0),
        (b"Retry-After: Fri, 31 Dec 1999 23:59:59 GMT", 0.0),
        (b"Retry-After: 9999999", 3_600.0),
        (b"X-Retry-After: 5", None),
        (b"Retry-After: soon", None),
        (b"Retry-After: \xff\xfe", None),
    ],
)
def test_retry_after(headers: bytes, seconds: float | None) -> None:
    """Seconds, or a date by the server's clock; never more than a day, never less than nothing."""
    assert retry_after_seconds(b"HTTP/1.1 503 X\r\n" + headers + b"\r\n\r\n") == seconds


def test_a_body_is_read_to_its_limit() -> None:
    """The rest is not taken, which ends the transfer."""
    first = FirstBytes(io.BytesIO())
    assert first.write(b"x" * (ANSWER_BYTES - 1)) == ANSWER_BYTES - 1
    assert first.write(b"yz") == 1
    assert first.write(b"more") == 0
    assert len(first.data) == ANSWER_BYTES

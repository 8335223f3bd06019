"""What clients and proxies say about how long they wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import BadMessage
from headrace.serve.timeouts import read_deadline


@pytest.mark.parametrize(
    ("name", "text", "nanoseconds"),
    [
        ("request-timeout-ms", "250", 250_000_000),
        ("request-timeout-ms", " 0.5 ", 500_000),
        ("x-request-timeout-ms", "30000", 30 * 10**9),
        ("x-envoy-expected-rq-timeout-ms", "15000", 15 * 10**9),
        ("grpc-timeout", "250m", 250_000_000),
        ("grpc-timeout", "2S", 2 * 10**9),
        ("grpc-timeout", "1M", 60 * 10**9),
        ("grpc-timeout", "7u", 7_000),
        ("grpc-timeout", "99999999H", 86_400 * 10**9),
        ("request-timeout-ms", "999999999999", 86_400 * 10**9),
    ],
)
def test_each_header_in_its_unit(name: str, text: str, nanoseconds: int) -> None:
    """Counted from the request's first byte, and at most a day."""
    assert read_deadline({name: text}, 1_000) == 1_000 + nanoseconds


def test_who_says_nothing_has_no_deadline() -> None:
    """The service's own counts then."""
    assert read_deadline({"content-type": "image/jpeg"}, 1_000) is None


def test_the_shortest_of_several_counts() -> None:
    """A proxy in between may wait less than the client."""
    assert read_deadline({"request-timeout-ms": "500", "x-envoy-expected-rq-timeout-ms": "200"}, 0) == 200_000_000


@pytest.mark.parametrize("name", ["request-timeout-ms", "grpc-timeout"])
@pytest.mark.parametrize("text", ["", "0", "0m", "-1", "1e9", "nan", "inf", "12,13", "²", "1 0", "9" * 13, "5s", "0.0"])
def test_what_is_no_time_is_refused(name: str, text: str) -> None:
    """The error names the header, the value and what is expected."""
    with pytest.raises(BadMessage, match=f"the header {name} is .*; expected ") as caught:
        read_deadline({name: text}, 0)
    assert caught.value.code == "message.timeout"


@given(st.sampled_from(["request-timeout-ms", "grpc-timeout"]), st.text(max_size=30))
def test_any_text_is_a_time_or_refused(name: str, text: str) -> None:
    """Nothing else comes of it."""
    try:
        deadline = read_deadline({name: text}, 0)
    except BadMessage:
        return
    assert deadline is not None
    assert 0 < deadline <= 86_400 * 10**9

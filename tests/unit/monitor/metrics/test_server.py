"""The HTTP side of metrics: addresses, answers, and clients that mean no good."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from headrace.base.errors import SettingsError
from headrace.monitor.metrics.server import MetricsServer, listen, parse_address, url_of


@pytest.fixture
def url() -> Iterator[str]:
    """Of a server that answers with what the client accepts."""
    listening = listen("0")
    server = MetricsServer(listening, lambda accept: (accept.encode(), "text/plain"))
    server.start()
    yield url_of(listening)
    server.close()


def _ask(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize(
    ("text", "address"),
    [("9400", ("127.0.0.1", 9400)), ("0.0.0.0:0", ("0.0.0.0", 0)), ("[::1]:9400", ("::1", 9400))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    """A port alone is of this machine alone."""
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":9400", "host", "127.0.0.1:", "9400x", "127.0.0.1:70000", "²"])
def test_wrong_addresses_are_explained(text: str) -> None:
    """An empty host could mean every address or this machine: it is asked for."""
    with pytest.raises(SettingsError, match="expected HOST:PORT or PORT"):
        parse_address(text)


def test_a_port_in_use_is_said_before_the_run() -> None:
    """With what to do."""
    with listen("0") as taken, pytest.raises(SettingsError, match="name another one, or 0"):
        listen(str(taken.getsockname()[1]))


def test_answers(url: str) -> None:
    """Metrics at /metrics, a hint at /, nothing elsewhere."""
    assert _ask(url, Accept="text/x") == (200, b" text/x")
    assert b"/metrics" in _ask(url.removesuffix("metrics"))[1]
    assert _ask(url + "x")[0] == 404
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(url, data=b"x", timeout=10)


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HT", b"\x00" * 20_000, b"\r\n\r\n", b"GET\r\n\r\n"])
def test_odd_clients_harm_nobody(url: str, sent: bytes) -> None:
    """Those that say nothing, half a request or rubbish are left, and the next one is answered."""
    host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
    with socket.create_connection((host, int(port))) as odd:
        odd.sendall(sent)
        assert _ask(url)[0] == 200


def test_hanging_clients_take_no_more_than_their_share(url: str) -> None:
    """Beyond the connections that are allowed, the oldest are closed, and who asks is answered at once."""
    host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
    hanging = [socket.create_connection((host, int(port))) for _ in range(20)]
    closed = [one for one in hanging[:12] if one.recv(1) == b""]
    assert len(closed) == 12
    assert [_ask(url)[0] for _ in range(20)] == [200] * 20
    for one in hanging:
        one.close()

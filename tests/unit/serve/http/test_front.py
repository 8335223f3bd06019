"""The front over real sockets: what clients get."""

import http.client
import json
import threading
from collections.abc import Iterator

import pytest

from headrace.base.errors import SettingsError
from headrace.serve.http.front import Front
from headrace.serve.http.request import Answer, Request
from headrace.serve.http.routes import Routes


class Later:
    """A handler that keeps requests until somebody answers them."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.came = threading.Semaphore(0)

    def handle(self, request: Request) -> None:
        """Keep it."""
        self.requests.append(request)
        self.came.release()


@pytest.fixture
def later() -> Later:
    """Return who answers `/later`."""
    return Later()


@pytest.fixture
def front(later: Later) -> Iterator[Front]:
    """Give a running front."""
    routes = Routes()
    routes.add("POST", "/echo", lambda request: Answer(200, bytes(request.body), "application/octet-stream"))
    routes.add("GET", "/name/{name}", lambda request, name: Answer(200, name.encode(), "text/plain"))
    routes.add("GET", "/fails", lambda request: 1 / 0)
    routes.add("POST", "/later", later.handle)
    front = Front(routes)
    front.start()
    yield front
    front.close()


@pytest.fixture
def client(front: Front) -> Iterator[http.client.HTTPConnection]:
    """Give a client of it."""
    connection = http.client.HTTPConnection(*front.address, timeout=30)
    yield connection
    connection.close()


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 5_000_000])
def test_a_body_comes_back_as_it_was_sent(client: http.client.HTTPConnection, size: int) -> None:
    """Bodies of any size arrive whole, several on one connection."""
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    for _ in range(3):
        client.request("POST", "/echo", body)
        answer = client.getresponse()
        assert (answer.status, answer.read() == body) == (200, True)


def test_a_chunked_body_comes_back_as_it_was_sent(client: http.client.HTTPConnection) -> None:
    """Chunks are joined, and the connection goes on."""
    for _ in range(2):
        client.request("POST", "/echo", iter([b"ab", b"c" * 100_000, b"d"]), encode_chunked=True)
        assert client.getresponse().read() == b"ab" + b"c" * 100_000 + b"d"


def test_another_thread_answers(client: http.client.HTTPConnection, later: Later) -> None:
    """A handler may return nothing; whoever answers first does, and later answers are dropped."""
    client.request("POST", "/later", b"abc")
    assert later.came.acquire(timeout=30)
    assert bytes(later.requests[0].body) == b"abc"
    assert later.requests[0].answer(Answer(202, b"first"))
    assert not later.requests[0].answer(Answer(500, b"second"))
    answer = client.getresponse()
    assert (answer.status, answer.read()) == (202, b"first")


def test_many_answers_of_other_threads_all_arrive(front: Front, later: Later) -> None:
    """Answers to requests of many connections, from several threads, each reach their own client."""
    clients = [http.client.HTTPConnection(*front.address, timeout=30) for _ in range(50)]
    for number, connection in enumerate(clients):
        connection.request("POST", "/later", str(number))
    for _ in clients:
        assert later.came.acquire(timeout=30)
    threads = [
        threading.Thread(
            target=lambda part: [r.answer(Answer(200, bytes(r.body))) for r in part], args=(later.requests[k::5],)
        )
        for k in range(5)
    ]
    for thread in threads:
        thread.start()
    assert [connection.getresponse().read() for connection in clients] == [str(n).encode() for n in range(50)]
    for thread in threads:
        thread.join()
    for connection in clients:
        connection.close()


def test_places_in_paths_are_decoded(client: http.client.HTTPConnection) -> None:
    """What stands in the path reaches the handler decoded."""
    client.request("GET", "/name/a%20%C3%A9")
    assert client.getresponse().read() == "a é".encode()


def test_a_handler_that_raises_costs_one_request(
    client: http.client.HTTPConnection, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets a coded 500, the log the place, and the connection goes on."""
    client.request("GET", "/fails")
    answer = client.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (500, "http.handler")
    assert "test_front.py" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    client.request("GET", "/name/on")
    assert client.getresponse().read() == b"on"


def test_an_address_in_use_is_the_callers_error(front: Front) -> None:
    """`start` raises it, with the address and what to do."""
    with pytest.raises(SettingsError, match=r"http\.address: .*another program has this port"):
        Front(Routes(), port=front.address[1]).start()

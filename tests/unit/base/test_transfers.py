"""Many requests in one thread, against a server on the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.base import look_ups
from headrace.base.calls import Call, Pause
from headrace.base.carrier import Carrier, Ended
from headrace.base.errors import DeadlinePassed
from headrace.base.http_answer import Response
from headrace.base.http_client import HttpClient
from headrace.base.http_settings import HttpSettings
from headrace.base.network_rules import NetworkPlan, NetworkRules
from headrace.base.shortage import shortage_of

BODY = bytes(range(256)) * 50


class QuickServer:
    """Answers by the first part of the path, in one thread however many connections are open.

    Listens at 127.0.0.1 and 127.0.0.2.

    `/ok` the body; `/late` the body, later; `/together/N` the body once N requests wait; `/hang` nothing; `/half` half a body
    and then nothing; `/close` the body, and a moment later the connection is closed unannounced; `/away/PORT` a redirect to
    that port.
    """

    def __init__(self) -> None:
        self.port = 0
        self.num_connections = 0
        self.num_open = 0
        self.most_waiting = 0
        self._waiting: list[asyncio.StreamWriter] = []
        self._is_up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        self._is_up.wait()

    def stop(self) -> None:
        """Close all connections."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        """Return an address of the server."""
        return f"http://{host}:{self.port}/{path}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        server = await asyncio.start_server(self._answer_all, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        other = await asyncio.start_server(self._answer_all, "127.0.0.2", self.port, backlog=1024)
        self._is_up.set()
        await self._stopped.wait()
        server.close()
        other.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.num_open += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                way, _, rest = head.split()[1].decode().lstrip("/").partition("/")
                if not self._answer(way, rest, writer):
                    break
        self.num_open -= 1
        writer.close()

    def _answer(self, way: str, rest: str, writer: asyncio.StreamWriter) -> bool:
        if way == "together":
            self._waiting.append(writer)
            self.most_waiting = max(self.most_waiting, len(self._waiting))
            if len(self._waiting) == int(rest):
                for waiting in self._waiting:
                    send(waiting)
                self._waiting.clear()
        elif way == "half":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY[:1000])
        elif way == "away":
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:%b/ok\r\n" % rest.encode())
            writer.write(b"Content-Length: 0\r\n\r\n")
        elif way == "late":
            self._loop.call_later(0.1, send, writer)
        elif way != "hang":
            send(writer)
        return way != "close"


def send(writer: asyncio.StreamWriter) -> None:
    """Answer with the body."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)


@pytest.fixture
def server() -> Iterator[QuickServer]:
    """A server that runs as long as the test."""
    server = QuickServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def carrier() -> Iterator[Carrier]:
    """A carrier that is closed in the end."""
    carrier = Carrier()
    yield carrier
    carrier.close()


@pytest.fixture
def make_client(carrier: Carrier) -> Iterator[Callable[..., HttpClient]]:
    """Makes clients that may contact this machine."""
    clients: list[HttpClient] = []

    def make(**settings: Any) -> HttpClient:
        rules = NetworkRules(NetworkPlan(allow=["127.0.0.0/8", "::1", "localhost", ".test"]))
        clients.append(HttpClient(HttpSettings(**settings), rules=rules))
        return clients[-1]

    yield make
    carrier.close()
    for client in clients:
        client.close()


def wait_for(carrier: Carrier, number: int) -> dict[Any, Ended]:
    """Return the next calls that end, a number of them, by token."""
    ended: dict[Any, Ended] = {}
    while len(ended) < number:
        came = carrier.wait(40.0)
        assert came, f"nothing ended within 40 s; {len(ended)} of {number} had"
        ended |= {call.token: call for call in came}
    return ended


def assert_whole(ended: dict[Any, Ended]) -> None:
    """Check that downloads brought the body."""
    assert [call.error for call in ended.values() if call.error is not None] == []
    assert all(call.value.body == BODY for call in ended.values())


def test_hundreds_are_under_way_at_once(server: QuickServer, carrier: Carrier, make_client: Any) -> None:
    """300 downloads, none of which is answered before all have been asked for, each with a connection of its own."""
    client = make_client()
    for round_ in range(2):
        for number in range(300):
            carrier.begin(client.getting(server.url("together/300")), (round_, number))
        assert carrier.num_under_way == 300
        assert_whole(wait_for(carrier, 300))
    assert server.most_waiting == 300
    assert server.num_connections == 300


def test_few_connections_serve_many_requests(server: QuickServer, carrier: Carrier, make_client: Any) -> None:
    """Requests share connections: a few at a time need no more than a few, also after many at a time."""
    client = make_client()
    for number in range(200):
        carrier.begin(client.getting(server.url("ok")), number)
        if carrier.num_under_way == 4 or number == 199:
            assert_whole(wait_for(carrier, carrier.num_under_way))
    assert server.num_connections <= 4


def test_clients_share_no_connection(server: QuickServer, carrier: Carrier, make_client: Any) -> None:
    """What one client may do by its rules gives another nothing: each has connections of its own."""
    clients = [make_client(), make_client()]
    for number in range(10):
        carrier.begin(clients[number % 2].getting(server.url("ok")), number)
        assert_whole(wait_for(carrier, 1))
    assert server.num_connections == 2


@pytest.mark.full
def test_one_that_hangs_holds_up_nobody(server: QuickServer, carrier: Carrier, make_client: Any) -> None:
    """Servers that do not answer, or stop in the middle, cost their own calls their time and the others nothing."""
    client = make_client(timeout_seconds=1.5)
    for number in range(20):
        carrier.begin(client.getting(server.url("hang" if number % 2 else "half")), f"slow {number}")
    for number in range(200):
        carrier.begin(client.getting(server.url("ok")), number)
        while not (ended := carrier.wait(60.0)):
            pass
        assert [call.token for call in ended] == [number]
    ended = wait_for(carrier, 20)
    assert {getattr(call.error, "code", None) for call in ended.values()} == {"http.timeout"}


def test_each_call_has_its_own_deadline(server: QuickServer, carrier: Carrier, make_client: Any) -> None:
    """A request ends with its job's deadline, one without goes on, and none is said to be the server's failure."""
    client = make_client(timeout_seconds=600)
    now = time.monotonic_ns()
    carrier.begin(client.getting(server.url("hang")), "soon", now + 100_000_000)
    carrier.begin(client.getting(server.url("hang")), "later", now + 300_000_000)
    carrier.begin(client.getting(server.url("hang")), "never")
    ended = wait_for(carrier, 2)
    assert list(ended) == ["soon", "later"]
    assert {type(call.error) for call in ended.values()} == {DeadlinePassed}
    assert carrier.num_under_way == 1


def test_a_cancelled_request_closes_its_connection(server: QuickServer, carrier: Carrier, make_client: Any) -> None:
    """Nothing is left of it, whatever it waited for; the handle serves the next request."""
    client = make_client()
    for path in ("hang", "half"):
        carrier.begin(client.getting(server.url(path)), path)
    give_up_at = time.monotonic() + 60
    while server.num_connections < 2:
        carrier.wait(0.01)
        assert time.monotonic() < give_up_at
    for path in ("hang", "half"):
        carrier.cancel(path)
    while server.num_open:
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
    carrier.begin(client.getting(server.url("ok")), "next")
    assert_whole(wait_for(carrier, 1))
    assert carrier.num_under_way == 0


def test_a_connection_that_the_server_closed_is_replaced(
    server: QuickServer, carrier: Carrier, make_client: Any
) -> None:
    """Connections that are closed unannounced, at once or while they rest, cost no request."""
    client = make_client()
    for number in range(100):
        for index in range(3):
            carrier.begin(client.getting(server.url("ok" if (number + index) % 3 else "close")), index)
        assert_whole(wait_for(carrier, 3))
        if number % 10 == 0:
            carrier.wait(0.01)


def test_descriptors_beyond_1024(server: QuickServer, carrier: Carrier, make_client: Any) -> None:
    """Sockets with high numbers are watched like others."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2048:
        pytest.skip(f"this process may open no more than {limits[1]} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        client = make_client()
        for number in range(50):
            carrier.begin(client.getting(server.url("together/50")), number)
        assert_whole(wait_for(carrier, 50))
    finally:
        for descriptor in taken:
            os.close(descriptor)
        carrier.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_sockets_are_not_inherited(server: QuickServer, carrier: Carrier, make_client: Any) -> None:
    """No descriptor of a carrier and its transfers goes to a child process, and a connection holds one."""
    before = set(os.listdir("/proc/self/fd"))
    client = make_client()
    for number in range(5):
        carrier.begin(client.getting(server.url("hang")), number)
    give_up_at = time.monotonic() + 60
    while server.num_open < 5:
        carrier.wait(0.01)
        assert time.monotonic() < give_up_at
    new = [int(name) for name in os.listdir("/proc/self/fd") if name not in before]
    inheritable = []
    for number in new:
        with contextlib.suppress(OSError):
            inheritable += [number] if os.get_inheritable(number) else []
    assert inheritable == []
    assert len(client_sockets(server.port)) == 5


@pytest.mark.full
def test_nothing_grows(server: QuickServer, carrier: Carrier, make_client: Any) -> None:
    """After 20,000 calls there are as many descriptors, threads and objects as after the first 2,000."""
    client = make_client()

    def count() -> tuple[int, int, int]:
        gc.collect()
        kinds = Counter(type(one).__name__ for one in gc.get_objects())
        return len(os.listdir("/proc/self/fd")), threading.active_count(), kinds["Curl"] + kinds["Transfer"]

    seen = []
    for number in range(20_000):
        carrier.begin(client.getting(server.url("close" if number % 50 == 0 else "ok")), number)
        while carrier.num_under_way >= 16:
            assert_whole({call.token: call for call in carrier.wait(60.0)})
        if number in (2_000, 19_999):
            while carrier.num_under_way:
                carrier.wait(60.0)
            time.sleep(0.1)
            seen.append(count())
    (files, threads, objects), after = seen
    assert after[0] <= files + 2  # a connection that is being closed
    assert after[1:] == (threads, objects)


def test_a_download_is_gone_with_its_last_reference(server: QuickServer, carrier: Carrier, make_client: Any) -> None:
    """Neither the handle, which is kept, nor a circle of references holds on to what a call brought."""
    client = make_client()
    gc.collect()
    gc.disable()
    try:
        for number in range(20):
            carrier.begin(client.getting(server.url("ok")), number)
        ended = wait_for(carrier, 20)
        assert_whole(ended)
        del ended
        assert [one for one in gc.get_objects() if isinstance(one, Response | Ended)] == []
    finally:
        gc.enable()


def test_a_socket_that_a_child_process_keeps_is_let_go(server: QuickServer, carrier: Carrier, make_client: Any) -> None:
    """A copy of a closed socket keeps it in the epoll, where its events would never end; the carrier gets rid of it."""
    client = make_client()
    carrier.begin(client.getting(server.url("late")), "late")
    while server.num_open == 0:
        carrier.wait(0.01)
    (ours,) = client_sockets(server.port)
    copy = os.dup(ours)  # as a fork would make it
    first = carrier._epoll
    carrier.cancel("late")
    give_up_at = time.monotonic() + 60
    while carrier._epoll is first:
        carrier.wait(0.05)
        assert time.monotonic() < give_up_at
    os.close(copy)
    carrier.begin(pausing(0.01), "pause")
    for number in range(3):
        carrier.begin(client.getting(server.url("ok")), number)
    ended = wait_for(carrier, 4)
    del ended["pause"]
    assert_whole(ended)


def test_a_stray_waits_for_a_file_handle(server: QuickServer, carrier: Carrier, make_client: Any) -> None:
    """Where there is no file for another epoll the carrier goes on with the one that it has."""
    client = make_client()
    carrier.begin(client.getting(server.url("ok")), 1)
    assert_whole(wait_for(carrier, 1))
    carrier._sockets.has_strays = True
    with no_more_files():
        carrier.begin(client.getting(server.url("ok")), 2)
        assert_whole(wait_for(carrier, 1))
        assert carrier._sockets.has_strays
    carrier.begin(client.getting(server.url("ok")), 3)
    assert_whole(wait_for(carrier, 1))
    assert not carrier._sockets.has_strays


def pausing(seconds: float) -> Call[None]:
    """A call that only waits."""
    yield Pause(seconds)


def client_sockets(port: int) -> list[int]:
    """Return the descriptors of this process that are connected to a port."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as copy:
            found += [int(name)] if copy.getpeername()[1:2] == (port,) else []
    return found


# --- names and pins


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Answers for hosts that end in `.test`: {host: answers, one after the other}, None for one that hangs."""
    answers: dict[str, Any] = {}
    over = threading.Event()
    resolve = look_ups.socket.getaddrinfo

    def ask(host: bytes, port: int, **options: Any) -> Any:
        left = answers.get(host.decode())
        if left is None:
            return resolve(host, port, **options)
        address = left.pop(0)
        if address is None:
            over.wait()
            raise OSError(1, "it was over")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(look_ups.socket, "getaddrinfo", ask)
    yield answers
    over.set()


def test_a_name_is_resolved_once_for_all(
    server: QuickServer, carrier: Carrier, make_client: Any, resolver: dict[str, Any]
) -> None:
    """Calls for one host that begin together share one look-up, and its answer is the one that all of them dial."""
    resolver["photos.test"] = ["127.0.0.1"]  # asked again it would fail, and libcurl itself knows no such host
    client = make_client()
    for number in range(100):
        carrier.begin(client.getting(server.url("together/100", "photos.test")), number)
    assert_whole(wait_for(carrier, 100))


def test_a_request_that_ends_as_it_begins(
    server: QuickServer, carrier: Carrier, make_client: Any, resolver: dict[str, Any]
) -> None:
    """The first request for a host is begun at once, and may be answered before anybody waits: that is told, too."""
    resolver["photos.test"] = ["127.0.0.1"] * 300
    client = make_client()
    for number in range(300):
        carrier.begin(client.getting(server.url("ok", "photos.test")), number)
        assert_whole(wait_for(carrier, 1))
        forget_names(client)


def test_a_name_that_hangs_holds_up_nobody(
    server: QuickServer, carrier: Carrier, make_client: Any, resolver: dict[str, Any]
) -> None:
    """While a look-up hangs other hosts are called; its calls end with the time for it."""
    resolver["hang.test"] = [None]
    client = make_client(connect_timeout_seconds=0.3)
    for number in range(20):
        carrier.begin(client.getting(server.url("ok", "hang.test")), f"hangs {number}")
    for number in range(50):
        carrier.begin(client.getting(server.url("ok")), number)
    assert_whole(wait_for(carrier, 50))
    ended = wait_for(carrier, 20)
    assert {getattr(call.error, "code", None) for call in ended.values()} == {"http.resolve"}


def test_a_new_answer_of_the_name_server_is_judged_again(
    server: QuickServer, carrier: Carrier, resolver: dict[str, Any]
) -> None:
    """When a judgement is over, the host is resolved again, and an answer that may not be contacted is refused."""
    client = HttpClient(HttpSettings(), rules=NetworkRules(NetworkPlan(allow=["127.0.0.1"], ports=[server.port])))
    resolver["photos.test"] = ["127.0.0.1", "127.0.0.2", "127.0.0.1"]
    ends = []
    for number in range(3):
        carrier.begin(client.getting(server.url("ok", "photos.test")), number)
        (ended,) = wait_for(carrier, 1).values()
        ends.append(getattr(ended.error, "code", None))
        forget_names(client)
    carrier.close()
    client.close()
    assert ends == [None, "ssrf.address", None]


def forget_names(client: HttpClient) -> None:
    """Let what was resolved be too old to be used."""
    for resolved in client._dialer._resolved.values():
        resolved.until = 0.0


def test_requests_of_two_answers_run_side_by_side(
    server: QuickServer, carrier: Carrier, make_client: Any, resolver: dict[str, Any]
) -> None:
    """A host that is resolved again while requests for it are under way costs none of them, and all dial what was judged."""
    resolver["photos.test"] = ["127.0.0.1", "127.0.0.2"] * 25
    client = make_client()
    for number in range(50):
        carrier.begin(client.getting(server.url("together/50", "photos.test")), number)
        carrier.wait(0.0 if number % 2 else 0.002)
        forget_names(client)
    assert_whole(wait_for(carrier, 50))


def test_a_redirect_is_judged(server: QuickServer, carrier: Carrier) -> None:
    """A redirect to what may not be contacted is refused, and nothing arrives there."""
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.05)
        client = HttpClient(HttpSettings(), rules=NetworkRules(NetworkPlan(allow=[f"127.0.0.1:{server.port}"])))
        for number in range(10):
            carrier.begin(client.getting(server.url(f"away/{trap.getsockname()[1]}")), number)
        ended = wait_for(carrier, 10)
        assert {getattr(call.error, "code", None) for call in ended.values()} <= {"ssrf.port", "ssrf.address"}
        with pytest.raises(TimeoutError):
            trap.accept()
        carrier.close()
        client.close()


# --- what is missing on the machine


@contextlib.contextmanager
def no_more_files(but: int = 0) -> Iterator[None]:
    """Let this process open no more files within the block, or only so many."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(256, *(int(number) + 32 for number in os.listdir("/proc/self/fd")))  # others may have many open
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], most), limits[1]))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(but):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("left", [0, 1])
def test_no_file_handles_fail_alone(server: QuickServer, carrier: Carrier, make_client: Any, left: int) -> None:
    """While this process may open no more files requests that need a connection fail as that, and go on afterwards.

    One file handle is not enough for a connection, and still there when its failure is looked at.
    """
    client = make_client()
    carrier.begin(client.getting(server.url("ok")), "before")
    assert_whole(wait_for(carrier, 1))
    with no_more_files(but=left):
        for number in range(5):
            carrier.begin(client.getting(server.url("ok")), number)
        ended = wait_for(carrier, 5)
    failed = [call.error for call in ended.values() if call.error is not None]
    assert len(failed) == 4  # one had the connection that was open
    assert all(isinstance(error, OSError) and "no socket could be opened" in str(error) for error in failed)
    carrier.begin(client.getting(server.url("ok")), "after")
    assert_whole(wait_for(carrier, 1))


class RefusingEpoll:
    """An epoll to which some descriptors cannot be added, as if the user's watches were used up."""

    def __init__(self, epoll: Any) -> None:
        self._epoll = epoll
        self.refuses = True

    def register(self, descriptor: int, events: int) -> None:
        """Refuse, or add."""
        if self.refuses:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._epoll.register(descriptor, events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


@pytest.fixture
def refusing(carrier: Carrier) -> RefusingEpoll:
    """Stands between the carrier's sockets and its epoll."""
    epoll = RefusingEpoll(carrier._epoll)
    carrier._sockets._epoll = epoll
    return epoll


def test_a_connection_that_cannot_be_watched_fails_alone(
    server: QuickServer, carrier: Carrier, make_client: Any, refusing: RefusingEpoll
) -> None:
    """Only requests that need it fail, as a shortage that is not the disk's; the others are answered, also later ones."""
    client = make_client()
    refusing.refuses = False
    carrier.begin(client.getting(server.url("together/2")), "before")
    while server.most_waiting == 0:
        carrier.wait(0.01)
    refusing.refuses = True
    for number in range(3):
        carrier.begin(client.getting(server.url("ok")), number)
    ended = wait_for(carrier, 3)
    assert {shortage_of(call.error) for call in ended.values() if call.error} == {"shortage.files"}
    assert all("max_user_watches" in str(call.error) for call in ended.values())
    refusing.refuses = False
    carrier.begin(client.getting(server.url("together/2")), "after")
    assert_whole(wait_for(carrier, 2))
    assert carrier.num_under_way == 0


def test_a_kept_connection_that_cannot_be_watched_fails_alone(
    server: QuickServer, carrier: Carrier, make_client: Any, refusing: RefusingEpoll
) -> None:
    """A connection that left the epoll while it rested, and cannot come back, costs the one request that takes it."""
    client = make_client()
    refusing.refuses = False
    for number in range(2):
        carrier.begin(client.getting(server.url("together/2")), number)
    assert_whole(wait_for(carrier, 2))
    for descriptor in client_sockets(server.port):
        carrier._sockets.drop(descriptor)
    refusing.refuses = True
    for number in range(2):
        carrier.begin(client.getting(server.url("ok")), number)
    assert [shortage_of(call.error) for call in wait_for(carrier, 2).values()] == ["shortage.files"] * 2
    refusing.refuses = False
    carrier.begin(client.getting(server.url("ok")), "after")
    assert_whole(wait_for(carrier, 1))


@pytest.mark.full
def test_a_receiver_that_stalls_within_its_answer_has_answered(
    server: QuickServer, carrier: Carrier, make_client: Any
) -> None:
    """A POST whose answer stops after the headers ends within seconds, while others hang and nothing moves."""
    client = make_client(timeout_seconds=600)
    for number in range(3):
        carrier.begin(client.posting(server.url("half"), b"{}", {}), number)
    ended = wait_for(carrier, 3)
    assert [call.error for call in ended.values()] == [None] * 3
    assert {call.value.status for call in ended.values()} == {200}

"""How much is read in a turn of the loop, and how old it is then."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator

import pytest

from headrace.base.clock import SystemClock
from headrace.serve.http import turns
from headrace.serve.http.limits import Limits
from headrace.serve.http.reading import RequestReader
from headrace.serve.http.request import Answer, Request
from headrace.serve.http.routes import Routes
from headrace.serve.http.shared import Shared
from headrace.serve.http.turns import Turn, TurnSelector
from headrace.testing import FakeClock


class Bench:
    """Connections, of which `turns.MOST` are read in a turn of a second."""

    def __init__(self, num_connections: int) -> None:
        self.clock = FakeClock()
        self.turn = Turn(self.clock)
        self.selector = TurnSelector(self.turn)
        self.pairs = [socket.socketpair() for _ in range(num_connections)]
        for mine, _ in self.pairs:
            self.selector.register(mine, selectors.EVENT_READ)

    def send(self, *numbers: int) -> None:
        """Let something come on connections."""
        for number in numbers:
            self.pairs[number][1].send(b"x")

    def read(self) -> dict[int, float]:
        """Take a turn: return {connection that is read: how many seconds ago its bytes were there}."""
        self.clock.advance(1.0)
        ready = self.selector.select(0)
        ages = {}
        for key, _ in ready:
            (number,) = (number for number, (mine, _) in enumerate(self.pairs) if mine is key.fileobj)
            self.pairs[number][0].recv(1)
            ages[number] = (self.clock.now_ns() - self.turn.came_ns(key.fd)) / 1e9
        return ages


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Five, of which two are read in a turn, one of them as the oldest."""
    yield from make_bench(monkeypatch, 5, most=2, oldest=1)


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Forty, of which eight are read in a turn, one of them as the oldest."""
    yield from make_bench(monkeypatch, 40, most=8, oldest=1)


def make_bench(monkeypatch: pytest.MonkeyPatch, num_connections: int, *, most: int, oldest: int) -> Iterator[Bench]:
    """Yield a bench, and close it."""
    monkeypatch.setattr(turns, "MOST", most)
    monkeypatch.setattr(turns, "OLDEST", oldest)
    found = Bench(num_connections)
    yield found
    found.selector.close()
    for pair in found.pairs:
        for one in pair:
            one.close()


def test_of_many_that_are_ready_the_newest_and_the_oldest_are_read(bench: Bench) -> None:
    """What comes now is read now, beside one that has waited; each is as old as it may be since the turn before."""
    bench.send(0, 1, 2, 3)
    first = bench.read()
    assert list(first.values()) == [0, 0]
    bench.send(4)
    second = bench.read()
    assert second.pop(4) == 1
    assert list(second.values()) == [1]
    (last,) = {0, 1, 2, 3} - first.keys() - second.keys()
    assert bench.read() == {last: 2}
    bench.send(4)
    assert bench.read() == {4: 0}
    assert bench.read() == {}


def test_what_comes_in_time_is_read_in_time_though_all_are_ready_all_the_time(crowd: Bench) -> None:
    """Whoever is read sends again at once, five turns' worth of them: in order of age each would be read five turns late."""
    crowd.send(*range(40))
    ages: list[float] = []
    read: set[int] = set()
    for _ in range(40):
        now = crowd.read()
        crowd.send(*now)
        ages += now.values()
        read |= now.keys()
    assert sum(age <= 1 for age in ages) >= len(ages) * 7 // 8
    assert read == set(range(40))


def test_nobody_waits_for_ever(bench: Bench) -> None:
    """While two new ones come in each turn, one of the others is read as well."""
    bench.send(0, 1, 2, 3, 4)
    read = set(bench.read())
    for _ in range(4):
        busy = min(read)
        bench.send(busy)
        read |= set(bench.read())
    assert read == {0, 1, 2, 3, 4}


def test_what_is_closed_leaves_no_age_behind(bench: Bench) -> None:
    """The next connection may have its descriptor."""
    bench.send(0, 1, 2)
    (left,) = {0, 1, 2} - bench.read().keys()
    mine = bench.pairs[left][0]
    bench.selector.unregister(mine)
    assert bench.read() == {}
    bench.selector.register(mine, selectors.EVENT_READ)
    assert bench.read() == {left: 0}


def test_a_client_that_goes_while_it_waits_is_heard_at_once(bench: Bench) -> None:
    """It takes no place of those that wait for an answer."""
    bench.send(0, 1, 2, 3)
    first = bench.read().keys()
    one, other = {0, 1, 2, 3} - first
    bench.pairs[one][1].shutdown(socket.SHUT_RDWR)
    bench.pairs[one][1].close()
    bench.send(4)
    assert bench.read().keys() == {one, other, 4}


def test_what_waits_costs_no_turn_anything(crowd: Bench) -> None:
    """The system says once that it is there."""
    crowd.send(*range(40))
    crowd.read()
    assert crowd.selector._epoll.poll(0) == []


def test_what_has_begun_goes_before_what_is_newer(crowd: Bench) -> None:
    """The rest of a request is read in the next turn, be it that others come all the time; half of a turn is left to these."""
    crowd.send(*range(40))
    left = sorted(set(range(40)) - crowd.read().keys())
    begun = left[10:22]
    crowd.turn.begun.update(crowd.pairs[number][0].fileno() for number in begun)
    crowd.turn.begun.add(-1)
    second = crowd.read().keys()
    assert len(second & set(begun)) == 4
    assert len(second) == 8


def test_a_connection_of_whose_body_a_part_is_here_has_begun() -> None:
    """Until all of it is here, it is refused, or its client is gone."""
    turn = (front := Shared(Routes(), Limits(), SystemClock(), None, lambda: None)).turn
    front.routes.add("POST", "/", lambda request: None)
    for ends in ("whole", "gone"):
        reader = RequestReader(front, Nobody())
        reader.descriptor = 7
        for piece in (b"POST / HTTP/1.1\r\nHost: a\r\n", b"Content-Length: 3\r\n\r\na"):
            assert turn.begun == set()
            reader.room()[: len(piece)] = piece
            reader.received(len(piece))
        assert turn.begun == {7}
        if ends == "whole":
            reader.room()[:2] = b"bc"
            reader.received(2)
            assert bytes(reader.finish().body) == b"abc"
        else:
            reader.close()
        assert turn.begun == set()


class Nobody:
    """Hears no answer."""

    def answer(self, request: Request, answer: Answer) -> None:
        """Do nothing."""

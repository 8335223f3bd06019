"""How much is read in a turn of the loop, and how old it is then."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator

import pytest

from headrace.serve.http import turns
from headrace.serve.http.turns import Turn, TurnSelector
from headrace.testing import FakeClock


class Bench:
    """Five connections, of which two are read in a turn of a second."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.turn = Turn(self.clock)
        self.selector = TurnSelector(self.turn)
        self.pairs = [socket.socketpair() for _ in range(5)]
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
    """See `Bench`."""
    monkeypatch.setattr(turns, "MOST", 2)
    found = Bench()
    yield found
    found.selector.close()
    for pair in found.pairs:
        for one in pair:
            one.close()


def test_of_many_that_are_ready_the_oldest_are_read(bench: Bench) -> None:
    """Who has waited goes before what comes now, and keeps its age."""
    bench.send(0, 1, 2, 3)
    first = bench.read()
    assert list(first.values()) == [0, 0]
    bench.send(4)
    second = bench.read()
    assert second == dict.fromkeys({0, 1, 2, 3} - first.keys(), 1)
    assert bench.read() == {4: 1}
    bench.send(4)
    assert bench.read() == {4: 0}
    assert bench.read() == {}


def test_nobody_waits_for_ever(bench: Bench) -> None:
    """Each of them is read, though one that was read is ready again in each turn."""
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

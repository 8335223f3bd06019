"""Which worker a rolling restart asks to go, and when it asks no other."""

from __future__ import annotations

import signal

import pytest

from headrace.pipeline import renewal
from headrace.pipeline.renewal import Renewal, Standing


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the processes that were asked to go so far."""
    pids: list[int] = []
    monkeypatch.setattr(renewal.os, "kill", lambda pid, number: pids.append(pid) if number == signal.SIGINT else None)
    return pids


def both(first: int | None, second: int | None, *, first_serves: bool = True) -> list[Standing]:
    """Return two posts with these processes."""
    return [Standing(0, first, first_serves), Standing(1, second, has_begun=second is not None)]


def test_the_next_goes_once_the_last_ones_successor_works(asked: list[int]) -> None:
    """One after the other, however long a start takes that others took as well."""
    said: list[str] = []
    restart = Renewal(said.append)
    restart.request()
    restart.look(both(10, 11), 0.0)
    assert restart.is_renewed(0, 10)
    for at in (1.0, 100.0, 290.0):
        restart.look(both(20, 11, first_serves=False), at, slowest_seconds=100.0)
    assert asked == [10]
    restart.look(both(20, 11), 295.0)
    restart.look(both(20, 11), 296.0)
    assert asked == [10, 11]
    restart.look(both(20, 21), 297.0)
    assert said == ["restarting 2 workers, one after the other", "all workers were restarted"]


@pytest.mark.parametrize("successor", [20, None])
def test_a_restart_stops_where_nobody_takes_the_first_ones_place(asked: list[int], successor: int | None) -> None:
    """A Plan that does not work reaches one worker: the others go on, and that is said once. The next SIGHUP tries again."""
    said: list[str] = []
    restart = Renewal(said.append)
    restart.request()
    restart.look(both(10, 11), 0.0)
    for at in (1.0, 121.0):
        restart.look(both(successor, 11, first_serves=False), at)
    assert len(said) == 1
    for at in (121.1, 122.0, 1_000.0):
        restart.look(both(successor, 11, first_serves=False), at)
    assert len(said) == 2
    assert "the rolling restart stops: worker 0 has not come to do its work" in said[1]
    assert "1 workers were not restarted, and 1 do their work" in said[1]
    assert asked == [10]
    assert not restart.is_renewed(1, 11)
    restart.request()
    restart.look(both(30, 11), 2_000.0)
    restart.look(both(40, 11), 2_001.0)
    restart.look(both(40, 11), 2_002.0)
    assert asked == [10, 30, 11]


def test_a_restart_stops_at_once_where_a_successor_will_not_come(asked: list[int]) -> None:
    """A Plan that cannot be read keeps a worker from beginning for good: there is nothing to wait two minutes for."""
    said: list[str] = []
    restart = Renewal(said.append)
    restart.request()
    restart.look(both(10, 11), 0.0)
    restart.look(both(None, 11), 1.0)
    assert len(said) == 1
    restart.look([Standing(0, None, has_begun=False, is_given_up=True), Standing(1, 11, has_begun=True)], 1.1)
    assert "the rolling restart stops: worker 0 cannot begin; 1 workers were not restarted" in said[1]
    assert asked == [10]


def test_each_successor_has_the_time_for_itself(asked: list[int]) -> None:
    """What the first one took does not count for the second."""
    said: list[str] = []
    restart = Renewal(said.append)
    restart.request()
    restart.look(both(10, 11), 0.0)
    restart.look(both(20, 11, first_serves=False), 1.0)
    restart.look(both(20, 11), 100.0)
    restart.look(both(20, 11), 100.1)
    restart.look(both(20, None), 101.0)
    restart.look(both(20, None), 200.0)
    restart.look(both(20, 21), 201.0)
    assert said[-1] == "all workers were restarted"


def test_whoever_does_no_work_goes_first(asked: list[int]) -> None:
    """Two that were started with a Plan that does not work are replaced before the one that serves."""
    restart = Renewal(lambda text: None)
    restart.request()
    serving = Standing(0, 10, has_begun=True)
    restart.look([serving, Standing(1, 11, has_begun=False), Standing(2, 12, has_begun=False)], 0.0)
    restart.look([serving, Standing(1, None, has_begun=False), Standing(2, 12, has_begun=False)], 1.0)
    assert asked == [11]
    for at in (2.0, 3.0):
        restart.look([serving, Standing(1, 21, has_begun=True), Standing(2, 12, has_begun=False)], at)
    assert asked == [11, 12]
    for at in (4.0, 5.0):
        restart.look([serving, Standing(1, 21, has_begun=True), Standing(2, 22, has_begun=True)], at)
    assert asked == [11, 12, 10]


def test_nobody_goes_while_another_is_not_there(asked: list[int]) -> None:
    """A worker that died meanwhile is replaced first, so that one at most is missing."""
    restart = Renewal(lambda text: None)
    restart.look(both(10, None), 0.0)
    restart.request()
    restart.look(both(10, None), 1.0)
    assert asked == []
    restart.look(both(10, 21), 2.0)
    assert asked == [10]


def test_who_died_meanwhile_is_not_counted(asked: list[int]) -> None:
    """A second request says how many are to go, not how many were."""
    said: list[str] = []
    restart = Renewal(said.append)
    restart.request()
    restart.look(both(10, 11), 0.0)
    restart.request()
    restart.look(both(20, 21), 1.0)
    assert said == ["restarting 2 workers, one after the other"] * 2

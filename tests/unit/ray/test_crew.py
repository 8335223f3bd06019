"""Leases are done once each whatever dies, and a failure or a signal stops all."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.ray.cluster import share_cores
from headrace.ray.crew import Crew, Crewed, Lost, NoPlace
from headrace.ray.leases import Lease, Report, Setting

Answer = Callable[[Lease], Report]


def done(lease: Lease) -> Report:
    """Return the report of a lease that went well."""
    return Report(status=0, host="here", said=f"{lease.name} said\n")


def lost(lease: Lease) -> Report:
    """Let its worker be gone."""
    raise Lost("gone")


class FakeCluster:
    """Answers each call at once, as a script says."""

    def __init__(self, *script: Answer, begins: Sequence[Exception | None] = ()) -> None:
        self.script = list(script)
        self.begins = list(begins)
        self.begun: list[tuple[str, int]] = []
        self.num_started = self.num_stopped = self.num_ended = self.num_closed = 0

    def start(self, setting: Setting) -> int:
        """See `Cluster`, as for the others."""
        self.num_started += 1
        return self.num_started

    def call(self, worker: int, method: str, *arguments: Any) -> tuple[Any, ...]:
        """Return the call itself."""
        self.num_stopped += method == "stop"
        self.num_closed += method == "close"
        return (object(), worker, method, *arguments)

    def wait(self, calls: Sequence[Any], seconds: float) -> list[Any]:
        """Answer the first."""
        return list(calls[:1])

    def answer(self, call: tuple[Any, ...]) -> Any:
        """Do what the script says."""
        if call[2] == "ready":
            error = self.begins.pop(0) if self.begins else None
            if error is not None:
                raise error
            return "here"
        if call[2] == "work":
            self.begun.append((call[3].name, call[3].attempt))
            return (self.script.pop(0) if self.script else done)(call[3])
        return ""

    def free_cores(self) -> float:
        """Return none."""
        return 0.0

    def end(self, worker: int) -> None:
        """Count it."""
        self.num_ended += 1


class Talk:
    """What a crew says, and a clock that goes on by a minute, or less, whenever it is asked."""

    def __init__(self, step_seconds: float = 60.0) -> None:
        self.said: list[str] = []
        self.told: list[str] = []
        self.seconds = 0.0
        self._step_seconds = step_seconds

    def now(self) -> float:
        """Return the next time."""
        self.seconds += self._step_seconds
        return self.seconds


def crew(
    cluster: FakeCluster,
    num_leases: int,
    *,
    enough_because: str = "",
    num_stops: Callable[[], int] = lambda: 0,
    step_seconds: float = 60.0,
) -> tuple[Crewed, Talk]:
    """Run leases on two workers."""
    talk = Talk(step_seconds)
    leases = [Lease(f"part {number}", number, argparse.Namespace(shard="a part")) for number in range(num_leases)]
    found = Crew(
        cluster, Setting("."), 2, say=talk.said.append, tell=talk.told.append, progress=lambda text: None,
        enough_because=lambda lease, seconds: enough_because, num_stops=num_stops, now=talk.now,
    ).run(leases)  # fmt: skip
    return found, talk


def test_all_leases_are_done_once() -> None:
    """What their processes wrote is told with the lease's name."""
    cluster = FakeCluster()
    found, talk = crew(cluster, 5)
    assert sorted(cluster.begun) == [(f"part {number}", 0) for number in range(5)]
    assert len(found.done) == 5
    assert "part 3| part 3 said" in talk.told
    assert (cluster.num_started, cluster.num_ended, found.is_unfinished) == (2, 2, False)
    assert cluster.num_closed == 1  # the other one never came, so it would not answer


def test_no_more_workers_than_leases() -> None:
    """Others would take a place for nothing."""
    cluster = FakeCluster()
    crew(cluster, 1)
    assert cluster.num_started == 1


def test_the_lease_of_a_lost_worker_goes_on() -> None:
    """With the number of the attempt, so that it goes on where its results end."""
    cluster = FakeCluster(lost)
    found, talk = crew(cluster, 3)
    assert ("part 0", 1) in cluster.begun
    assert (len(found.done), len(found.deaths), found.status) == (3, 1, 0)
    assert "part 0: its worker is gone: gone; it goes on with the next free worker" in talk.said


def test_the_lease_of_a_killed_process_goes_on() -> None:
    """The worker is there still."""
    cluster = FakeCluster(lambda lease: Report(status=-9, host="here", pid=7))
    found, talk = crew(cluster, 1)
    assert cluster.begun == [("part 0", 0), ("part 0", 1)]
    assert len(found.deaths) == 1
    assert "killed by SIGKILL: its process 7 on here" in talk.said[0]


@pytest.mark.parametrize("status", [0, 7])
def test_the_lease_of_a_process_that_left_goes_on(status: int) -> None:
    """Such as one whose code calls `os._exit`: its exit status is not that of the run."""
    cluster = FakeCluster(lambda lease: Report(status=status, host="here", pid=7, is_death=True))
    found, talk = crew(cluster, 1)
    assert cluster.begun == [("part 0", 0), ("part 0", 1)]
    assert (found.status, len(found.deaths), found.is_unfinished) == (0, 1, False)
    assert f"ended in the midst with exit status {status}: its process 7 on here" in talk.said[0]


def test_a_worker_that_does_not_come_back_is_replaced() -> None:
    """As one of a node that is gone."""
    cluster = FakeCluster(begins=[Lost("gone"), None])
    found, _ = crew(cluster, 2)
    assert cluster.num_started == 3
    assert len(found.done) == 2


def test_workers_that_never_come_are_asked_for_with_pauses() -> None:
    """A cluster that refuses each at once, as one that is going down does, is not asked thousands of times a second."""
    cluster = FakeCluster(begins=[Lost("cancelled")] * 4)
    found, talk = crew(cluster, 1, step_seconds=0.1)
    assert [line.rpartition(" in ")[2] for line in talk.said] == ["0.5 s", "1 s", "2 s", "4 s"]
    assert "a worker did not come: cancelled" in talk.said[0]
    assert talk.seconds > 7.5
    assert (cluster.num_started, cluster.num_ended, len(found.done)) == (5, 5, 1)


def test_what_dies_without_coming_further_ends_the_run() -> None:
    """Others are asked to stop."""
    cluster = FakeCluster(lost)
    found, _ = crew(cluster, 4, enough_because="part 0 came no further")
    assert found.status == 3
    assert found.reason == "part 0 came no further: its worker is gone: gone"
    assert found.is_unfinished


def test_an_error_of_the_users_code_ends_the_run() -> None:
    """With its exit status."""
    cluster = FakeCluster(lambda lease: Report(status=2, host="here", said="jobs.py:3 is wrong"))
    found, talk = crew(cluster, 9)
    assert found.status == 2
    assert "part 0| jobs.py:3 is wrong" in talk.told
    assert len(cluster.begun) <= 2
    assert found.is_unfinished


def test_an_error_while_all_are_asked_to_stop_asks_none_again() -> None:
    """The second request would have them give back at once what they finish now."""

    class UntilStopped(FakeCluster):
        """Whose leases end once they are asked to stop."""

        num_given = 0

        def call(self, worker: int, method: str, *arguments: Any) -> tuple[Any, ...]:
            self.num_given += method == "work"
            return super().call(worker, method, *arguments)

        def wait(self, calls: Sequence[Any], seconds: float) -> list[Any]:
            return [call for call in calls if call[2] != "work" or self.num_stopped][:1]

    cluster = UntilStopped(lambda lease: Report(status=2, host="here"))
    found, _ = crew(cluster, 9, num_stops=lambda: int(cluster.num_given == 2))
    assert found.status == 2
    assert cluster.num_stopped == 2


def test_a_worker_that_cannot_begin_ends_the_run() -> None:
    """Such as one whose node lacks the working folder."""
    cluster = FakeCluster(begins=[NoPlace("no folder")])
    found, talk = crew(cluster, 2)
    assert found.status == 3
    assert "no folder" in found.reason
    assert talk.said == []  # no other one is asked for
    assert cluster.num_started == cluster.num_ended == 2


def test_the_lease_of_a_worker_that_cannot_go_on_is_noted() -> None:
    """As left undone, not as one that goes on."""

    def no_place(lease: Lease) -> Report:
        raise NoPlace("no folder")

    found, talk = crew(FakeCluster(no_place), 1)
    assert (found.status, found.is_unfinished, len(found.deaths)) == (3, True, 1)
    assert talk.said == ["part 0: its worker is gone: no folder"]


def test_a_signal_stops_those_at_work_and_begins_no_other() -> None:
    """A second one is passed on, too."""
    cluster = FakeCluster()
    found, _ = crew(cluster, 9, num_stops=lambda: 2 * bool(cluster.begun))
    assert 1 <= len(cluster.begun) <= 2
    assert found.is_unfinished


@pytest.mark.parametrize(
    ("sizes", "workers", "cores"),
    [([2], 2, 1), ([2, 2], 2, 2), ([64] * 10, 10, 64), ([64] * 10, 20, 32), ([2, 2, 2], 2, 2), ([1], 8, 1), ([], 2, 1)],
)
def test_cores_are_shared_so_that_all_have_a_place(sizes: list[int], workers: int, cores: int) -> None:
    """As many for each as the nodes allow."""
    assert share_cores(sizes, workers) == cores


def test_workers_that_cannot_be_reached_are_waited_for_together() -> None:
    """Not one after the other: where a node or the cluster is gone, that is all of them."""
    talk = Talk(0.001)

    class Unreachable(FakeCluster):
        def wait(self, calls: Sequence[Any], seconds: float) -> list[Any]:
            if calls[0][2] != "close":
                return list(calls)
            talk.seconds += seconds
            return []

    cluster = Unreachable()
    Crew(
        cluster, Setting("."), 10, say=talk.said.append, tell=talk.told.append, progress=lambda text: None,
        enough_because=lambda lease, seconds: "", num_stops=lambda: 0, now=talk.now,
    ).run([Lease(f"part {number}", number, argparse.Namespace(shard="a part")) for number in range(10)])  # fmt: skip
    assert (cluster.num_closed, cluster.num_ended) == (10, 10)
    assert talk.seconds < 20

"""Whether what was changed on some machines does worse than what the others run: of fleets whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.base.documents import encode_document
from headrace.base.errors import SettingsError
from headrace.cli import main
from headrace.monitor.fleet import comparing
from headrace.monitor.fleet.comparing import compare_fleet
from headrace.monitor.fleet.place import FolderPlace, Left, PlaceUnavailable
from headrace.runs.formats.fleet import FleetComparison
from headrace.runs.formats.heartbeat import Heartbeat

BEGAN = 1_000_000.0
#: Jobs that a worker of these may have in flight.
SLOTS = 20


@dataclass
class Machine:
    """A worker, and what it does in truth."""

    plan: str
    rate: float = 20.0
    """Jobs a second where it is full."""
    failing: float = 0.01
    fails_before: float = 0.0
    """Until then half of its jobs fail."""
    pipeline: str = "app:pipeline"
    version: str = "1.0"
    began: float = BEGAN - 1000
    dies_at: float = float("inf")
    ends_at: float = float("inf")
    host: str = ""
    """Empty: its name."""
    clock_jumps_at: float = float("inf")
    began_by_its_clock: float | None = None
    """None: when it began; else its clock was wrong then, and was set since."""
    fails_at: float = float("inf")
    """It ends by an error."""
    job_seconds: float = 0.0
    """For how long its jobs are in it, each by chance, and few of them at a time; 0: not said."""
    delivered: int = 0
    failed: int = 0
    in_flight: int = SLOTS
    timed: int = 0
    timed_seconds: float = 0.0


class Fleet:
    """A place whose workers go on while somebody waits; each leaves a heartbeat every five seconds.

    Args:
        machines: By name.
        load: Share of what all can do that comes; 1 or more: all are full.
    """

    def __init__(self, load: float = 1.0, seed: int = 1, **machines: Machine) -> None:
        self.machines, self.load = machines, load
        self.time = BEGAN
        self._draw = random.Random(seed)
        self._left: dict[str, tuple[float, Heartbeat]] = {}
        self._work(0.0)

    def put(self, worker: str, content: bytes) -> None:
        """Nobody leaves anything."""
        raise AssertionError(worker, content)

    def now(self) -> float:
        """Return the time."""
        return self.time

    def read_all(self) -> Iterator[Left]:
        """Give the newest of each."""
        for name, (left_at, beat) in self._left.items():
            yield Left(name, encode_document(beat), self.time - left_at)

    def sleep(self, seconds: float) -> None:
        """Let them work."""
        done = 0.0
        while done < seconds:
            step = min(5.0, seconds - done)
            self.time, done = self.time + step, done + step
            self._work(step)

    def _work(self, seconds: float) -> None:
        for name, one in self.machines.items():
            if self.time - seconds >= one.fails_at or self.time >= one.dies_at or self.time < one.began:
                continue
            rate = one.rate * min(1.0, self.load) * self._draw.uniform(0.9, 1.1)
            jobs = int(rate * seconds + self._draw.random())
            failing = 0.5 if self.time < one.fails_before else one.failing
            failed = sum(self._draw.random() < failing for _ in range(jobs))
            one.delivered, one.failed = one.delivered + jobs - failed, one.failed + failed
            if self.load < 1:  # each takes as long as the worker is slow, and waits for others
                lasts = 6 / (1 - self.load) * 20 / one.rate * self._draw.uniform(0.7, 1.3)
                one.in_flight = int(lasts * self.load + self._draw.random())
            if one.job_seconds:
                one.in_flight = sum(self._draw.random() < one.job_seconds * rate / 10 for _ in range(10))
                one.timed += jobs
                one.timed_seconds += sum(self._draw.expovariate(1 / one.job_seconds) for _ in range(jobs))
            clock = self.time + 3600 * (self.time >= one.clock_jumps_at)
            self._left[name] = self.time, Heartbeat(
                host=one.host or name, process=7, pipeline=one.pipeline, plan_id=one.plan, headrace_version=one.version,
                started_unix_seconds=one.began if one.began_by_its_clock is None else one.began_by_its_clock,
                at_unix_seconds=clock, lasted_seconds=self.time - one.began, every_seconds=5.0, delivered=one.delivered,
                failed=one.failed, received=one.delivered + one.failed, in_flight=one.in_flight, slots=SLOTS,
                has_ended=self.time >= min(one.ends_at, one.fails_at), timed=one.timed, timed_seconds=one.timed_seconds,
                error="OSError: no space left" if self.time >= one.fails_at else "",
            )  # fmt: skip


def compare(fleet: Fleet, seconds: float = 600.0, **options: Any) -> FleetComparison:
    """Compare by the fleet's own clock."""
    return compare_fleet(fleet, seconds, sleep=fleet.sleep, now=fleet.now, **options)


def fleet_with(new: dict[str, Any] | None = None, load: float = 1.0, seed: int = 1) -> Fleet:
    """Return three workers of one Plan and, since ten minutes, one of another."""
    old = {f"old-{number}": Machine("aaa") for number in range(3)}
    return Fleet(load, seed, **old, new=Machine("bbb", **{"began": BEGAN - 600, **(new or {})}))


@pytest.mark.parametrize(
    ("new", "load", "verdict", "says"),
    [
        ({}, 1.0, "no worse", "failures: "),
        ({"rate": 40.0}, 1.0, "no worse", "in 0 of "),
        ({"rate": 10.0}, 1.0, "worse", "over 25% slower: worse for sure"),
        ({"rate": 10.0}, 0.5, "worse", "over 25% slower: worse for sure"),
        ({"failing": 0.1}, 1.0, "worse", "jobs of the new workers failed"),
        ({"rate": 0.0}, 1.0, "worse", "over 25% slower: worse for sure"),
    ],
)
def test_what_is_found(new: dict[str, Any], load: float, verdict: str, says: str) -> None:
    """It ends as soon as it is known, and names both sides."""
    found = compare(fleet_with(new, load), 3600.0)
    assert found.verdict == verdict
    assert found.seconds < 3600
    assert any(says in line for line in found.says)
    assert (found.new.runs, found.others.runs) == (("bbb",), ("aaa",))
    assert (found.new.workers, found.others.workers) == (1, 3)


def test_one_that_is_the_same_is_seldom_called_worse() -> None:
    """Of 100 changes that change nothing, 2.5 % at most, or a few more by chance. Five minutes show it of every third."""
    loads = [0.5 if seed % 2 else 1.0 for seed in range(100)]
    found = [compare(fleet_with(load=load, seed=seed), 300.0).verdict for seed, load in enumerate(loads)]
    assert found.count("worse") <= 6
    assert found.count("no worse") >= 20


@pytest.mark.parametrize("others", [2, 10])
def test_jobs_that_last_long_are_no_slowness(others: int) -> None:
    """In ten seconds one worker often ends none of them where several others end one: not only the new one's."""
    old = {f"old-{number}": Machine("aaa", rate=1 / 30) for number in range(others)}
    found = compare(Fleet(**old, new=Machine("bbb", rate=1 / 30, began=BEGAN - 600)), 1800.0)
    assert found.findings[1].verdict != "worse", found.says


def test_a_fleet_with_little_to_do_does_not_hide_a_slow_plan() -> None:
    """Most heartbeats find no job in a worker, however long jobs take; so it is not known for long."""
    fleet = fleet_with({"rate": 60.0}, load=0.05)
    for number in range(3):
        fleet.machines[f"old-{number}"].rate = 300.0
    found = compare(fleet, 1200.0)
    assert found.findings[1].verdict != "no worse", found.says


def test_a_worker_counts_once_it_is_warm() -> None:
    """It finds out first which servers do not answer; the others know by now."""
    found = compare(fleet_with({"began": BEGAN + 5, "fails_before": BEGAN + 30}), 600.0)
    assert found.verdict == "no worse", found.says


def test_a_clock_that_jumps() -> None:
    """Time is the place's."""
    found = compare(fleet_with({"clock_jumps_at": BEGAN + 25}), 100.0)
    assert found.new.rate == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize("at", [0.0, BEGAN + 3600])
def test_a_clock_that_was_set_after_the_start(at: float) -> None:
    """Whose Plan is new, and since when it is warm, is by how long a worker has run."""
    found = compare(fleet_with({"began_by_its_clock": at}), 100.0)
    assert (found.new.runs, found.others.runs) == (("bbb",), ("aaa",))
    assert found.new.jobs > 0


@pytest.mark.parametrize(("before", "age"), [("aaa", 5000), ("bbb", 900)])
def test_a_worker_that_was_started_again_is_not_new(before: str, age: float) -> None:
    """The others ended and came back since, with what ran there; or the new Plan is one that ran everywhere before."""
    fleet = fleet_with()
    gone = {f"gone-{n}": Machine(before, began=BEGAN - age, ends_at=BEGAN - 700, host=f"old-{n}") for n in range(3)}
    for number in range(3):
        fleet.machines[f"old-{number}"].began = BEGAN - (60 if before == "aaa" else 690)
    found = compare(Fleet(**gone, **fleet.machines), 50.0)
    assert (found.new.runs, found.others.runs) == (("bbb",), ("aaa",))


def test_a_new_worker_that_falls_silent_is_worse_at_once() -> None:
    """It was killed, or the run ended by an error; one that ended orderly has not."""
    found = compare(fleet_with({"dies_at": BEGAN + 30}))
    assert found.verdict == "worse"
    assert found.new.gone == 1
    assert found.seconds < 80
    assert "1 new worker fell silent or ended by an error, and none of 3 others." in found.says
    assert compare(fleet_with({"fails_at": BEGAN + 30})).verdict == "worse"
    assert compare(fleet_with({"ends_at": BEGAN + 30}), 100.0).new.gone == 0


def test_what_falls_silent_on_both_sides_is_nobodys_fault() -> None:
    """A machine room without power tells nothing of a Plan."""
    fleet = fleet_with({"dies_at": BEGAN + 30})
    fleet.machines["old-1"].dies_at = BEGAN + 30
    found = compare(fleet, 200.0)
    assert (found.new.gone, found.others.gone) == (1, 1)
    assert found.verdict == "open"


def test_an_old_worker_that_was_lost_earlier_hides_no_crash() -> None:
    """It is another cause; but where as large a share of the others is lost, the new ones do no worse."""
    fleet = fleet_with({"dies_at": BEGAN + 200}, load=0.02)
    fleet.machines["old-1"].dies_at = BEGAN + 30
    found = compare(fleet, 400.0)
    assert (found.verdict, found.new.gone, found.others.gone) == ("worse", 1, 1)
    fleet = Fleet(
        0.02, old=Machine("aaa", dies_at=BEGAN + 30), other=Machine("aaa"), new=Machine("bbb", began=BEGAN - 600)
    )
    fleet.machines |= {"new-2": Machine("bbb", began=BEGAN - 600, dies_at=BEGAN + 200)}
    assert compare(fleet, 400.0).verdict == "open"


def test_a_worker_that_fails_again_and_again_is_seen() -> None:
    """Each time a service manager begins it again, it is gone before anybody has looked twice."""
    again = {
        f"again-{n}": Machine("bbb", began=BEGAN + 20 * n, fails_at=BEGAN + 20 * n + 4, host="new")
        for n in range(1, 20)
    }
    found = compare(
        Fleet(0.02, old=Machine("aaa"), new=Machine("bbb", began=BEGAN - 600, ends_at=BEGAN + 15), **again), 300.0
    )
    assert found.verdict == "worse"


def test_a_slow_plan_at_one_job_a_worker() -> None:
    """1.6 times as slow is found in a quarter of an hour, though a heartbeat sees one job or none; the same is not accused."""
    old = {f"old-{number}": Machine("aaa", rate=1.0, job_seconds=0.5) for number in range(3)}
    for seconds, verdicts in ((0.8, {"worse"}), (0.5, {"no worse", "open"})):
        fleet = Fleet(**old, new=Machine("bbb", rate=1.0, job_seconds=seconds, began=BEGAN - 600))
        found = compare(fleet, 900.0)
        assert found.verdict in verdicts, found.says


def test_what_would_tell_is_said() -> None:
    """A time where the counts come nearer to an answer, else how many jobs are missing."""
    found = compare(fleet_with({"rate": 10.0}), 70.0)
    assert found.verdict == "open"
    assert "more would tell" in found.findings[1].says
    assert found.findings[1].known_in_seconds is not None
    idle = compare(Fleet(a=Machine("aaa", rate=0.0), b=Machine("bbb", rate=0.0, began=BEGAN - 600)), 60.0)
    assert "no data yet: 0 jobs of the new workers ended and 0 others; it takes some 10" in idle.findings[1].says


def test_versions_of_one_plan() -> None:
    """Where all run the same Plan, another version of headrace is what is new."""
    fleet = fleet_with({"rate": 10.0, "version": "2.0"})
    fleet.machines["new"].plan = "aaa"
    found = compare(fleet, new="2")
    assert (found.verdict, found.new.runs, found.others.runs) == ("worse", ("2.0",), ("1.0",))


def test_a_version_whose_name_begins_like_the_other() -> None:
    """A release after its candidate: what began last is new all the same."""
    fleet = Fleet(old=Machine("aaa", version="1.0rc1"), new=Machine("aaa", version="1.0", began=BEGAN - 600))
    assert compare(fleet, 20.0).new.runs == ("1.0",)


def test_other_pipelines_are_others_business() -> None:
    """They leave heartbeats in the same place, and do other jobs."""
    fleet = fleet_with({"rate": 10.0})
    fleet.machines["other"] = Machine("ccc", rate=1.0, pipeline="other:pipeline", began=BEGAN - 5)
    fleet.sleep(5.0)
    found = compare(fleet)
    assert (found.new.runs, found.others.runs, found.others.workers) == (("bbb",), ("aaa",), 3)


def test_the_new_one_may_come_later() -> None:
    """A restart takes a while; what all say until then is told."""
    fleet = fleet_with({"rate": 10.0})
    fleet.machines["new"].began = BEGAN + 45
    fleet._left.pop("new")
    said: list[str] = []
    assert compare(fleet, say=said.append).verdict == "worse"
    assert "3 workers there, and no two run another Plan or version" in said[0]
    assert said[1].startswith("app:pipeline: new is bbb on 1 worker, beside aaa on 3 workers; looks every 10.0 s")
    assert len(said) == 2


def test_a_place_that_cannot_be_read_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done meanwhile is found by the next look; one that never can be read is said."""
    fleet = fleet_with({"rate": 10.0})
    read = fleet.read_all

    def read_later() -> Iterator[Left]:
        if int(fleet.time - BEGAN) % 30 < 20:
            raise PlaceUnavailable("gone")
        yield from read()

    monkeypatch.setattr(fleet, "read_all", read_later)
    told: list[str] = []
    found = compare(fleet, 3600.0, tell=told.append, say=told.append)
    assert found.verdict == "worse"
    assert {"waiting: gone", "not looked: gone"} <= set(told)
    monkeypatch.setattr(fleet, "read_all", lambda: (_ for _ in ()).throw(PlaceUnavailable("gone")))
    with pytest.raises(PlaceUnavailable, match="gone"):
        compare(fleet, 60.0)


@pytest.mark.parametrize(("new", "says"), [(None, "change one machine first"), ("zzz", "--new zzz")])
def test_nothing_to_compare(new: str | None, says: str) -> None:
    """All run the same when the time is up; or nothing of this name."""
    fleet = fleet_with() if new else Fleet(a=Machine("aaa"), b=Machine("aaa"))
    with pytest.raises(SettingsError, match=says):
        compare(fleet, 20.0, new=new)


def test_ctrl_c_keeps_what_is_known() -> None:
    """Counts of the looks before."""
    fleet = fleet_with()

    def sleep(seconds: float) -> None:
        if fleet.time > BEGAN + 25:
            raise KeyboardInterrupt
        fleet.sleep(seconds)

    found = compare_fleet(fleet, 600.0, sleep=sleep, now=fleet.now)
    assert found.verdict == "open"
    assert found.new.jobs > 0


@pytest.mark.parametrize(("rate", "status", "heading"), [(20.0, 0, "no worse"), (5.0, 1, "worse")])
def test_the_command(
    rate: float, status: int, heading: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 no worse, 1 worse; 4 where it is not known, and 2 where all run the same."""
    fleet = fleet_with({"rate": rate})
    by_its_clock = comparing.compare_fleet

    def compare_by_its_clock(*given: Any, **options: Any) -> FleetComparison:
        return by_its_clock(*given, **options, sleep=fleet.sleep, now=fleet.now)

    monkeypatch.setattr("headrace.monitor.fleet.place.open_place", lambda _: fleet)
    monkeypatch.setattr(comparing, "compare_fleet", compare_by_its_clock)
    assert main(["fleet", "compare", "there", "--for", "20s"]) == 4
    said = capsys.readouterr()
    assert said.out.startswith("Not known. app:pipeline was looked at for 20.0 s.")
    assert "headrace fleet: app:pipeline: new is bbb on 1 worker" in said.err
    assert main(["fleet", "compare", "there", "--for", "1h"]) == status
    assert capsys.readouterr().out.startswith(f"The new workers are {heading}.")


def test_the_command_where_all_run_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One worker cannot differ from itself."""
    FolderPlace(tmp_path).put("a", encode_document(Heartbeat(
        host="a", process=1, pipeline="p", plan_id="x", headrace_version="1", started_unix_seconds=1.0,
        at_unix_seconds=2.0, every_seconds=5.0,
    )))  # fmt: skip
    assert main(["fleet", "compare", str(tmp_path), "--for", "10ms"]) == 2
    assert "1 worker there" in capsys.readouterr().err

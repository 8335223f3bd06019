"""`--on` refuses, before anything is begun, what does not go together; and when what dies is not begun again."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cli.on_ray import Deaths, _count_delivering, _look_if_possible
from headrace.pipeline.gathering import Gathered
from headrace.ray.crew import Crewed
from headrace.ray.leases import Lease, Report
from headrace.sources.portions import Portion

JOBS = """import headrace as hr
from headrace.delivery.collect import Collect

stages = [hr.stage("same", lambda path: 1)]
pipeline = hr.Pipeline(hr.folder("photos"), stages=stages, delivery=hr.jsonl("own.jsonl"))
called = hr.Pipeline(hr.folder("photos"), stages=stages, delivery=hr.callback("http://localhost/x"))
queued = hr.Pipeline(hr.queue("sqlite:///jobs.db"), stages=stages)
kept = hr.Pipeline(hr.folder("photos"), stages=stages, delivery=Collect())
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("on_ray_jobs.py").write_text(JOBS)
    Path("photos").mkdir()
    Path("there.jsonl").touch()
    Path("r-0-of-2.jsonl").touch()


RESULTS = ["--results", "r3.jsonl"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pipeline", "--workers", "2"], "say where, with --on ray"),
        (["pipeline", "--portions", "2"], "say where, with --on ray"),
        (["pipeline", "--on", "", *RESULTS], "--on is ray"),
        (["pipeline", "--on", "rays", *RESULTS], "--on is ray"),
        (["pipeline", "--on", "http://here:1", *RESULTS], "--on is ray"),
        (["pipeline", "--on", "ray://", *RESULTS], "--on is ray"),
        (["pipeline", "--on", "ray://host:abc", *RESULTS], "the port is 'abc'; expected a number"),
        (["pipeline", "--on", "host:70000", *RESULTS], "the port is '70000'; expected a number"),
        (["pipeline", "--on", "ray"], "one place for the results of all workers (JsonLines)"),
        (["called", "--on", "ray"], "--checkpoint DIR"),
        (["pipeline", "--on", "ray", "--shard", "0/2", *RESULTS], "--shard is for one worker"),
        (["pipeline", "--on", "ray", "--metrics", "9000", *RESULTS], "--metrics is for one worker"),
        (["queued", "--on", "ray", "--resume"], "a queue itself keeps what is not done"),
        (["pipeline", "--on", "ray", "--results", "there.jsonl"], "is there already"),
        (["pipeline", "--on", "ray", "--results", "r.jsonl"], "go on with --resume"),
        (["pipeline", "--on", "ray", "--results", "r.jsonl", "--resume", "--portions", "3"], "those of 2 portions"),
        (["pipeline", "--on", "ray", "--results", "none.jsonl", "--resume"], "there are none"),
        (["pipeline", "--on", "ray", "--results", "s3://b/r", "--resume"], "say --portions as at the first start"),
    ],
)
def test_what_does_not_go_together_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what to do; no Ray is needed to say so."""
    pipeline, *more = words
    assert main(["run", f"on_ray_jobs.py:{pipeline}", *more]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As for any package that is not installed."""
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["run", "on_ray_jobs.py:pipeline", "--on", "ray", *RESULTS]) == 3
    assert "pip install 'headrace[ray]'" in " ".join(capsys.readouterr().err.split())


def test_sigterm_while_a_cluster_is_joined(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ray's own handler calls `sys.exit` with the signal's number, which no code of the user's did."""
    Path("photos", "a.jpg").touch()
    monkeypatch.setattr("headrace.ray.cluster.RayCluster", lambda *_, **__: sys.exit(signal.SIGTERM))
    assert main(["run", "on_ray_jobs.py:pipeline", "--on", "ray", *RESULTS]) == 130
    assert capsys.readouterr().err == "headrace: interrupted\n"


def lease(number: int = 0) -> Lease:
    """Return one of three."""
    args = argparse.Namespace(shard=Portion(number, 3), results="r3.jsonl", checkpoint=None)
    return Lease(f"portion {number}/3", number, args)


def place() -> Lease:
    """Return one at a queue."""
    return Lease("worker 0", 0, argparse.Namespace(shard=None))


def came_to(left: int, delivered: int) -> Gathered:
    """Return what became of a portion."""
    ids = {str(number) for number in range(delivered)}
    return Gathered(portion=Portion(0, 3), results=Path("r"), delivered=ids, rejected=0, given_up=0, left=left)


def count_tries(deaths: Deaths, *leases: Lease, seconds: float = 1.0) -> int:
    """Return after how many deaths of leases in turn it is enough; 200: after none of these."""
    return next((tries for tries in range(200) if deaths.enough_because(leases[tries % len(leases)], seconds)), 200)


def test_a_portion_that_comes_no_further_is_given_up() -> None:
    """After ten tries."""
    deaths = Deaths(100, lambda lease: came_to(left=5, delivered=5))
    assert count_tries(deaths, lease()) == 10
    assert deaths.enough_because(lease(), 1.0) == "portion 0/3 died 12 times in a row and came no further"


def test_a_portion_that_never_begins_is_given_up() -> None:
    """However long each try takes, such as one that lists a bucket until there is no memory left."""
    assert count_tries(Deaths(100, _look_if_possible), lease(), seconds=3600) == 10


def test_a_pipeline_that_kills_with_each_item_ends() -> None:
    """Each portion comes further, by items that are given up; but nothing is delivered by any of them."""
    left = iter(range(1000, 0, -1))
    deaths = Deaths(20, lambda lease: came_to(next(left), 0))
    assert count_tries(deaths, *map(lease, range(3))) == 20
    assert deaths.enough_because(lease(), 1.0).startswith("22 deaths in a row, and none that died had delivered more")
    delivered = iter(range(1, 1000))
    assert count_tries(Deaths(20, lambda lease: came_to(next(left), next(delivered))), *map(lease, range(3))) == 200


def test_deaths_while_others_deliver_do_not_end_the_run() -> None:
    """Only portions that died are looked at: those that are done say what they delivered."""
    left, done = iter(range(1000, 0, -1)), iter(number // 15 for number in range(1000))
    deaths = Deaths(20, lambda lease: came_to(next(left), 0), lambda: next(done))
    assert count_tries(deaths, *map(lease, range(3))) == 200


def test_a_portion_without_results_does_not_count_as_delivering() -> None:
    """All of it was given up."""

    def report(delivered: int) -> Report:
        return Report(status=0, host="here", document=json.dumps({"counters": {"delivered": delivered}}).encode())

    reports = [report(3), report(0), Report(status=0, host="here")]
    assert _count_delivering(Crewed(done=[(lease(), one) for one in reports])) == 1


def test_workers_of_a_queue_die_as_often_as_they_like_but_not_at_once() -> None:
    """A service goes on for months."""
    assert count_tries(Deaths(20, lambda lease: None), place(), seconds=3600) == 200
    deaths = Deaths(20, lambda lease: None)
    assert count_tries(deaths, place(), seconds=1) == 10
    assert deaths.enough_because(place(), 1.0) == "worker 0 died 12 times in a row within 60 s of its start"


def test_what_became_of_a_portion_without_results_says_its_checkpoint() -> None:
    """As where the program's own delivery sends them away."""
    for name in "abcd":
        Path("photos", f"{name}.jpg").touch()
    portion = Portion(0, 2)
    assert main(["run", "on_ray_jobs.py:kept", "--shard", str(portion), "--checkpoint", "kept"]) == 0
    args = argparse.Namespace(shard=portion, results=None, checkpoint=str(Path("kept", portion.name)))
    found = _look_if_possible(Lease("portion 0/2", 0, args))
    assert found is not None
    assert found.delivered == {one for one in ("a.jpg", "b.jpg", "c.jpg", "d.jpg") if portion.holds(one)}
    assert (found.left, found.rejected, found.given_up) == (0, 0, 0)

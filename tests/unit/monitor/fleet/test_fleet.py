"""Heartbeats of a fleet: what a run leaves, what is made of it, and that strangers and broken places harm nobody."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.base.documents import encode_document
from headrace.base.errors import SettingsError
from headrace.base.plan import SourcePlan
from headrace.base.protocols import Source
from headrace.cli import main
from headrace.monitor.fleet.beating import FleetWatch
from headrace.monitor.fleet.place import FolderPlace, Left, PlaceUnavailable, RedisPlace, open_place
from headrace.monitor.fleet.status import read_fleet
from headrace.monitor.published import forget_published, publish
from headrace.runs.formats.fleet import FleetDocument
from headrace.runs.formats.heartbeat import Heartbeat
from headrace.testing import ListSource

NOW = 1_000_000.0


def beat(**others: Any) -> Heartbeat:
    """Return a heartbeat of a worker that does well."""
    given = {
        "host": "node-a", "process": 7, "pipeline": "app:pipeline", "plan_id": "abc", "headrace_version": "1.0",
        "every_seconds": 5.0, "started_unix_seconds": NOW - 100, "at_unix_seconds": NOW - 2, "rate": 10.0, "in_flight": 3,
        "slots": 8, "idle_seconds": 1.0,
    }  # fmt: skip
    return Heartbeat(**{**given, **others})


class Kept:
    """A place in memory, at NOW. What it has was left when it says so, by clocks that are right, but by the one given."""

    def __init__(self, clock_ahead: float = 0.0, **beats: Heartbeat | bytes) -> None:
        self.beats = beats
        self.clock_ahead = clock_ahead

    def put(self, worker: str, content: bytes) -> None:
        """Keep it."""
        self.beats[worker] = content

    def now(self) -> float:
        """Return the time."""
        return NOW

    def read_all(self) -> Iterator[Left]:
        """Give all."""
        for name, one in self.beats.items():
            if isinstance(one, bytes):
                yield Left(name, one, 0.0)
            else:
                age = NOW - (one.at_unix_seconds - self.clock_ahead)
                yield Left(name, encode_document(one), age)


def status(clock_ahead: float = 0.0, **beats: Heartbeat | bytes) -> FleetDocument:
    """Return the view of these at NOW."""
    return read_fleet(Kept(clock_ahead, **beats))


@pytest.mark.parametrize(
    ("others", "state", "says"),
    [
        ({}, "works", ""),
        ({"in_flight": 0, "rate": 0.0}, "idle", ""),
        ({"in_flight": 0, "rate": 0.0, "idle_seconds": 9999.0}, "idle", ""),
        ({"at_unix_seconds": NOW - 14}, "works", ""),
        ({"at_unix_seconds": NOW - 16}, "silent", "no heartbeat for 16.0 s, 3 jobs in it"),
        ({"at_unix_seconds": NOW - 50, "every_seconds": 20.0}, "works", ""),
        ({"at_unix_seconds": NOW - 61, "every_seconds": 20.0}, "silent", "no heartbeat"),
        ({"at_unix_seconds": NOW - 5000, "has_ended": True}, "ended", ""),
        (
            {"has_ended": True, "error": "OSError: no space left"},
            "failed",
            "it ended by an error: OSError: no space left",
        ),
        ({"longest_call_seconds": 61.0}, "stuck", "a call of a stage lasts 61.0 s"),
        ({"idle_seconds": 61.0}, "stuck", "3 jobs in it, and none ended for 61.0 s"),
        ({"is_braked": True}, "works", "nothing succeeds"),
        ({"open_breakers": 2}, "works", "2 servers not called now"),
        ({"drifting": ("decode is slower", "luma")}, "works", "not as usual: decode is slower, luma"),
    ],
)
def test_what_a_worker_is(others: dict[str, Any], state: str, says: str) -> None:
    """By its newest heartbeat, and how old that is."""
    (worker,) = status(a=beat(**others)).workers
    assert worker.state == state
    assert says in worker.says
    assert bool(says) == bool(worker.says)


@pytest.mark.parametrize(
    ("ahead", "says"), [(40.0, "its clock is 40.0 s ahead"), (-3000.0, "its clock is 50.0 min behind"), (9.0, "")]
)
def test_a_clock_that_is_wrong_makes_nobody_silent(ahead: float, says: str) -> None:
    """The place says how old a heartbeat is; what the worker says of the time is shown beside it."""
    document = status(ahead, a=beat(at_unix_seconds=NOW + ahead - 2))
    (worker,) = document.workers
    assert (worker.state, worker.says) == ("works", says)
    assert (worker.age_seconds, worker.clock_ahead_seconds) == pytest.approx((2.0, ahead))
    assert any("clock of 1 worker is wrong" in line for line in document.says) == bool(says)


def test_a_dead_worker_whose_clock_was_ahead_is_silent() -> None:
    """Its last heartbeat is from the future by its own clock, and a minute old by the place's."""
    (worker,) = status(3600.0, a=beat(at_unix_seconds=NOW + 3540)).workers
    assert worker.state == "silent"
    assert "no heartbeat for 60.0 s" in worker.says
    assert "its clock is 60.0 min ahead" in worker.says


@pytest.mark.parametrize(
    "lost", [{"at_unix_seconds": NOW - 60}, {"at_unix_seconds": NOW - 60, "has_ended": True, "error": "OSError"}]
)
@pytest.mark.parametrize(
    ("other", "is_replaced"),
    [
        ({"started_unix_seconds": NOW - 50}, True),
        ({"started_unix_seconds": NOW - 50, "slot": 1}, False),
        ({"started_unix_seconds": NOW - 50, "host": "node-b"}, False),
        ({"started_unix_seconds": NOW - 50, "pipeline": "other:pipeline"}, False),
        ({"started_unix_seconds": NOW - 90}, False),
        ({"started_unix_seconds": NOW - 50, "at_unix_seconds": NOW - 30}, False),
    ],
)
def test_a_worker_that_was_begun_again_is_no_alarm_for_a_day(
    lost: dict[str, Any], other: dict[str, Any], is_replaced: bool
) -> None:
    """A supervisor or service manager began another in its place, so all is well; elsewhere, or before, it is another one."""
    document = status(a=beat(**lost), b=beat(**other))
    states = {worker.name: worker.state for worker in document.workers}
    assert (states["a"] == "replaced") == is_replaced
    assert ("1 worker lost within a day, and begun again." in document.says) == is_replaced


def test_a_folder_says_how_old_a_heartbeat_is(tmp_path: Path) -> None:
    """By when the file was written; and asking for its time leaves nothing there."""
    place = FolderPlace(tmp_path)
    place.put("a", encode_document(beat(at_unix_seconds=time.time() + 5000)))
    path = tmp_path / "a.heartbeat.json"
    os.utime(path, (path.stat().st_mtime - 100,) * 2)
    (worker,) = read_fleet(place).workers
    assert worker.state == "silent"
    assert 99 < worker.age_seconds < 200
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_only_reads_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the time is this machine's."""
    FolderPlace(tmp_path).put("a", encode_document(beat(at_unix_seconds=time.time())))

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert [worker.state for worker in read_fleet(FolderPlace(tmp_path)).workers] == ["works"]


def test_one_view_of_all() -> None:
    """Sums are of those that are there; Plans and versions that differ are said; what needs a look comes first."""
    document = status(
        a=beat(),
        b=beat(host="node-b", plan_id="xyz", rate=5.0, drifting=("luma",)),
        c=beat(host="node-c", at_unix_seconds=NOW - 100, rate=99.0),
        d=beat(host="node-d", has_ended=True, rate=99.0),
    )
    assert [worker.name for worker in document.workers] == ["c", "a", "b", "d"]
    assert (document.rate, document.in_flight, document.slots) == (15.0, 6, 16)
    assert document.plans == {"abc": 1, "xyz": 1}
    assert document.says[0].startswith("2 workers on 2 machines: 15/s, 6 jobs in flight of 16")
    assert "1 worker silent." in document.says
    assert any(line.startswith("They run 2 Plans: abc on 1, xyz on 1") for line in document.says)
    assert not any("versions" in line for line in document.says)
    assert "Not as usual: luma on 1." in document.says
    assert msgspec.json.decode(encode_document(document), type=FleetDocument) == document


def test_what_is_no_heartbeat_is_counted() -> None:
    """Damaged, cut, of another kind, from a later version, or with numbers that are none."""
    whole = encode_document(beat())
    document = status(
        a=beat(), b=b"", c=b"{", d=whole[:-9], e=b"[1]", f=b"\xff\xfe", g=json.dumps({"schema": "other"}).encode(),
        h=encode_document(beat(schema="headrace.heartbeat/9")), i=whole.replace(b'"rate":10.0', b'"rate":"x"'),
        j=encode_document(beat(every_seconds=0.0)),
    )  # fmt: skip
    assert len(document.workers) == 1
    assert document.unreadable == 9
    assert "9 files or keys could not be read" in document.says[-1]


@pytest.mark.parametrize(
    "wrong",
    [{"rate": 1e308}, {"rate": -5.0}, {"in_flight": 2**62}, {"slots": -7}, {"at_unix_seconds": 1e300}, {"host": "h" * 2000},
     {"longest_call_seconds": 1e300}, {"process": -2}, {"drifting": ("x",) * 11}, {"drifting": ("x" * 2000,)}],
)  # fmt: skip
def test_what_no_worker_says_spoils_no_sum(wrong: dict[str, Any]) -> None:
    """It is counted as what it is, and the others are shown as they are."""
    found = status(a=beat(), b=beat(**wrong))
    assert (found.rate, found.in_flight, found.slots, found.unreadable) == (10.0, 3, 8, 1)
    assert found.says[-1] == "1 file or key could not be read as a heartbeat."


def test_a_name_stays_in_its_line() -> None:
    """A line break in the name of a host makes no row of the table."""
    from headrace.cli.fleet import as_text

    assert "evil row:7 " in as_text(status(a=beat(host="evil\nrow")))


def test_workers_of_long_ago_are_forgotten() -> None:
    """After a day nobody looks for them."""
    assert status(a=beat(at_unix_seconds=NOW - 90_000)).workers == ()


def run_with(place: Any, **options: Any) -> None:
    """Run ten jobs beside a place."""
    pipeline = hr.Pipeline(hr.items(range(10)), stages=[hr.stage("same", lambda value: value)], delivery=hr.collect())
    hr.run(pipeline, watch=FleetWatch(place, **options))


def test_a_run_leaves_a_last_heartbeat(tmp_path: Path) -> None:
    """In a folder that is made for it, with what it did; nothing else is left there."""
    run_with(FolderPlace(tmp_path / "new" / "fleet"), slot=3)
    (path,) = (tmp_path / "new" / "fleet").iterdir()
    left = msgspec.json.decode(path.read_bytes(), type=Heartbeat)
    assert (left.process, left.slot, left.has_ended) == (os.getpid(), 3, True)
    assert (left.received, left.delivered, left.failed, left.in_flight) == (10, 10, 0, 0)
    assert (left.timed, left.timed_seconds > 0, left.error) == (10, True, "")
    assert left.slots > 0
    assert left.plan_id
    (worker,) = read_fleet(FolderPlace(tmp_path / "new" / "fleet")).workers
    assert worker.state == "ended"


def test_a_run_that_ends_by_an_error_says_so(tmp_path: Path) -> None:
    """It did not end in good order, and what it names of secrets is hidden."""

    class Broken(Source):
        def open(self, settings: SourcePlan) -> None:
            """Do nothing."""

        def receive(self, limit: int, wait_seconds: float) -> None:
            raise RuntimeError("redis://:hunter2@cache/0")

    with pytest.raises(RuntimeError):
        hr.run(
            hr.Pipeline(Broken(), stages=[hr.stage("same", lambda value: value)], delivery=hr.collect()),
            watch=FleetWatch(FolderPlace(tmp_path)),
        )
    document = read_fleet(FolderPlace(tmp_path))
    assert document.workers[0].state == "failed"
    assert document.workers[0].says.startswith("it ended by an error: RuntimeError: redis://")
    assert "hunter2" not in document.workers[0].says
    assert document.says == ("No worker is there.", "1 worker failed.")


def test_a_run_tells_what_drifts(tmp_path: Path) -> None:
    """What its monitors raise an alarm of, whichever they are; not what they only measure."""

    def work(value: int) -> int:
        publish("headrace_drift_score", 2.0, "luma")
        publish("headrace_drift_alarm", 1.0, "luma")
        publish("headrace_drift_alarm", 0.0, "width")
        publish("headrace_performance_drift_alarm", 1.0, "decode")
        return value

    pipeline = hr.Pipeline(hr.items(range(10)), stages=[hr.stage("work", work)], delivery=hr.collect())
    hr.run(pipeline, watch=FleetWatch(FolderPlace(tmp_path)))
    forget_published()
    (path,) = tmp_path.iterdir()
    assert msgspec.json.decode(path.read_bytes(), type=Heartbeat).drifting == ("decode is slower", "luma")


def test_a_run_that_does_not_open_leaves_none(tmp_path: Path) -> None:
    """It had nothing in hand; a heartbeat of it, ended by a signal before it can say so, would be missed for a day."""

    class Absent(Source):
        def open(self, settings: SourcePlan) -> None:
            time.sleep(0.3)
            raise SettingsError("no such queue")

        def receive(self, limit: int, wait_seconds: float) -> None:
            return None

    with pytest.raises(SettingsError):
        hr.run(
            hr.Pipeline(Absent(), stages=[hr.stage("same", lambda value: value)], delivery=hr.collect()),
            watch=FleetWatch(FolderPlace(tmp_path / "fleet"), every_seconds=0.01),
        )
    assert not (tmp_path / "fleet").exists()


def test_workers_of_the_same_name_and_moment_are_two(tmp_path: Path) -> None:
    """As in containers that share a host's name, whose processes have the same number."""
    for _ in range(2):
        run_with(FolderPlace(tmp_path))
    assert len(read_fleet(FolderPlace(tmp_path)).workers) == 2


def test_a_worker_that_was_idle_is_not_stuck_with_its_first_job(tmp_path: Path) -> None:
    """What counts is how long it has had jobs of which none ends."""

    class Late(ListSource):
        def receive(self, limit: int, wait_seconds: float) -> Any:
            time.sleep(0 if opened.is_set() else 0.6)
            opened.set()
            return super().receive(limit, wait_seconds)

    opened = threading.Event()
    beats: list[Heartbeat] = []

    class Place(FolderPlace):
        def put(self, worker: str, content: bytes) -> None:
            beats.append(msgspec.json.decode(content, type=Heartbeat))

    hr.run(
        hr.Pipeline(Late([b"x"]), stages=[hr.stage("wait", lambda value: time.sleep(0.2))], delivery=hr.collect()),
        watch=FleetWatch(Place(tmp_path), every_seconds=0.01),
    )
    empty = max(beat.at_unix_seconds for beat in beats if not beat.in_flight and not beat.received)
    at_work = [beat for beat in beats if beat.in_flight]
    assert at_work
    assert all(beat.idle_seconds < beat.at_unix_seconds - empty + 0.3 for beat in at_work)


class Broken:
    """A place at which nothing can be left."""

    def put(self, worker: str, content: bytes) -> None:
        """Fail."""
        raise PlaceUnavailable("no room")

    def now(self) -> float:
        """Return the time."""
        return NOW

    def read_all(self) -> Iterator[Left]:
        """Give nothing."""
        return iter(())


def test_a_place_that_fails_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """And the run goes on."""
    with caplog.at_level(logging.WARNING, "headrace"):
        run_with(Broken(), every_seconds=0.001)
    assert sum("a heartbeat cannot be left" in record.message for record in caplog.records) == 1


def test_old_files_are_removed(tmp_path: Path) -> None:
    """Of heartbeats, and of nothing else."""
    old, other = tmp_path / "a.heartbeat.json", tmp_path / "notes.txt"
    for path in (old, other):
        path.write_text("{}")
        os.utime(path, (time.time() - 90_000,) * 2)
    run_with(FolderPlace(tmp_path))
    assert not old.exists()
    assert other.exists()


def test_what_strangers_put_into_the_folder(tmp_path: Path) -> None:
    """Pipes, folders, links and large files are counted, and nobody waits for them."""
    os.mkfifo(tmp_path / "a.heartbeat.json")
    (tmp_path / "b.heartbeat.json").mkdir()
    (tmp_path / "c.heartbeat.json").symlink_to("nowhere")
    (tmp_path / "d.heartbeat.json").write_bytes(b" " * 1_000_000 + encode_document(beat()))
    (tmp_path / "e.heartbeat.json").write_bytes(encode_document(beat(at_unix_seconds=time.time())))
    document = read_fleet(FolderPlace(tmp_path))
    assert [worker.state for worker in document.workers] == ["works"]
    assert document.unreadable == 4


def test_places() -> None:
    """A folder, Redis, and what is neither."""
    assert isinstance(open_place("/mnt/fleet"), FolderPlace)
    assert isinstance(open_place("redis://cache/0"), RedisPlace)
    with pytest.raises(SettingsError, match="sqs://"):
        open_place("sqs://jobs")


def test_a_name_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stranger's file spoils no JSON."""
    FolderPlace(tmp_path).put(os.fsdecode(b"\xff"), encode_document(beat(at_unix_seconds=time.time())))
    assert main(["fleet", "status", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["workers"][0]["name"] == "\ufffd"


@pytest.mark.parametrize("sign", ["/", "#", "?"])
@pytest.mark.parametrize("begins", ["hun", "12"])
@pytest.mark.parametrize("user", ["", "me"])
def test_a_password_that_is_not_quoted(user: str, begins: str, sign: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is misuse, and no part of it is shown, also where the address reads as one of a host and a port."""
    assert main(["fleet", "status", f"redis://{user}:{begins}{sign}ter@127.0.0.1:1/0"]) == 2
    said = capsys.readouterr().err
    assert "cannot be understood" in said
    assert "hun" not in said
    assert "ter@" not in said


def test_a_sign_in_a_queues_parameter_is_none_of_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    """A queue's address is a fleet's too."""
    assert main(["fleet", "status", "redis://:hunter2@127.0.0.1:1/0?queue=jobs@night"]) == 3
    assert "hunter2" not in capsys.readouterr().err


def test_a_redis_that_is_not_there() -> None:
    """It is said without the password."""
    with pytest.raises(PlaceUnavailable) as caught:
        list(RedisPlace("redis://:hunter2@127.0.0.1:1/0?queue=x").read_all())
    assert "hunter2" not in str(caught.value)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """0 if all is well, 1 if somebody is silent or nobody is there, 3 if the folder is not, 2 without a place."""
    monkeypatch.delenv("HEADRACE_FLEET", raising=False)
    assert main(["fleet", "status"]) == 2
    assert main(["fleet", "status", str(tmp_path / "nowhere")]) == 3
    assert main(["fleet", "status", str(tmp_path)]) == 1
    place = FolderPlace(tmp_path)
    place.put("a", encode_document(beat(at_unix_seconds=time.time(), host="evil\x1b[31m\nhost")))
    monkeypatch.setenv("HEADRACE_FLEET", str(tmp_path))
    capsys.readouterr()
    assert main(["fleet", "status"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "works" in out
    place.put("b", encode_document(beat(at_unix_seconds=time.time() - 60)))
    os.utime(tmp_path / "b.heartbeat.json", (time.time() - 60,) * 2)
    assert main(["fleet", "status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["schema"] == "headrace.fleet/1"


def test_run_takes_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own name and by the environment."""
    (tmp_path / "fleet_app.py").write_text(
        "import headrace as hr\n"
        "pipeline = hr.Pipeline(hr.items([1, 2]), stages=[hr.stage('same', abs)], delivery=hr.collect())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["-q", "run", "fleet_app:pipeline", "--fleet", "one"]) == 0
    monkeypatch.setenv("HEADRACE_FLEET", "two")
    assert main(["-q", "run", "fleet_app:pipeline"]) == 0
    assert [len(list((tmp_path / name).iterdir())) for name in ("one", "two")] == [1, 1]

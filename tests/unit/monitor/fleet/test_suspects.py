"""What workers tell one another of jobs that kill them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.policies.blame import Record
from headrace.monitor.fleet.place import open_place
from headrace.monitor.fleet.suspects import MOST_RECORDS, SharedSuspects
from headrace.sources.queue_source import QueueSource

QUEUE = "redis://host/jobs"


def part(folder: Path, name: str) -> SharedSuspects:
    """Return the part of a process."""
    return SharedSuspects(open_place(str(folder), "suspects"), name)


def test_all_hear_what_one_knows_and_leave_it_once(tmp_path: Path) -> None:
    """Of their own queue alone; and who only heard of it leaves no file, nor does a fleet without a death."""
    first, second, other = part(tmp_path, "first"), part(tmp_path, "second"), part(tmp_path, "other")
    assert second(QUEUE, {}) == {}
    assert not list(tmp_path.iterdir())
    record = Record(deaths=1, crashes=1, cause="SIGSEGV")
    assert first(QUEUE, {"a": record}) == {}
    heard = second(QUEUE, {})
    assert heard == {"a": record}
    assert other("sqlite:///other", {}) == {}
    second(QUEUE, heard)
    assert [file.name for file in tmp_path.iterdir()] == ["first.suspects.msgpack"]
    second(QUEUE, {"a": Record(deaths=2, crashes=2, blamed=True, cause="SIGSEGV")})
    assert first(QUEUE, {"a": record})["a"].blamed
    assert first(QUEUE, {"a": record})["a"].crashes == 2


def test_the_first_worker_of_a_fleet_finds_no_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It makes it with its first heartbeat; that nobody left a suspect yet is no warning."""
    assert part(tmp_path / "fleet", "first")(QUEUE, {}) == {}
    assert not caplog.records


def test_damaged_and_many(tmp_path: Path) -> None:
    """What cannot be read says nothing, and no process leaves more than a place holds."""
    (tmp_path / "broken.suspects.msgpack").write_bytes(b"\xff\x00")
    known = {f"{number:0200}": Record(deaths=1, crashes=1, cause="x" * 500) for number in range(2 * MOST_RECORDS)}
    assert part(tmp_path, "first")(QUEUE, known) == {}
    heard = part(tmp_path, "second")(QUEUE, {})
    assert list(heard) == list(known)[MOST_RECORDS:]


def test_a_place_that_fails_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once."""
    (tmp_path / "file").write_text("no folder")
    broken = part(tmp_path / "file", "first")
    for _ in range(2):
        assert broken(QUEUE, {"a": Record(deaths=1, crashes=1)}) == {}
    assert [record.message for record in caplog.records if "cannot tell one another" in record.message][1:] == []
    assert "cannot tell one another" in caplog.text
    QueueSource(f"sqlite:///{tmp_path}/jobs.db").share_suspects(broken)  # without a slot there is nobody to tell

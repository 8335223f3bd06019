"""What workers and supervisor tell each other."""

from __future__ import annotations

from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.base import crash_recovery
from headrace.base.errors import HeadraceError
from headrace.base.in_flight import InFlightTable
from headrace.base.policies.blame import BlameBook, Death, Known, Record, Redriven
from headrace.base.worker_slot import WorkerSlot

CRASH = Death("SIGSEGV", True, ["a"], ())


def slot_and_supervisors_end() -> tuple[WorkerSlot, Connection]:
    """Return a slot that knows of two crashes, and the other end of its pipe."""
    ours, theirs = Pipe()
    blame = BlameBook()
    blame.note_death(CRASH)
    blame.note_death(CRASH)
    return WorkerSlot(0, 1, 1, InFlightTable(4), blame, theirs), ours


def test_a_redriven_message_is_forgotten_and_the_supervisor_hears_of_it() -> None:
    """Its first delivery after two deaths ends what was known of it, here for its later deliveries and elsewhere by message."""
    slot, supervisor = slot_and_supervisors_end()
    assert [slot.record("a", count) for count in (1, 2, 3)] == [None, None, None]
    assert msgspec.msgpack.decode(supervisor.recv_bytes(), type=Redriven) == Redriven("a")


def test_what_another_worker_saw_redriven_is_forgotten() -> None:
    """A worker that hears of it judges the third delivery afresh, which it would have condemned."""
    slot, supervisor = slot_and_supervisors_end()
    known = slot.record("a", 3)
    supervisor.send_bytes(msgspec.msgpack.encode(Redriven("a")))
    slot.hear()
    assert known is not None
    assert known.blamed
    assert slot.record("a", 3) is None
    assert slot.table.num_heard == 1


def test_what_another_worker_found_is_known() -> None:
    """Records that a dead supervisor left reach workers that live, and are added to what they know."""
    slot, supervisor = slot_and_supervisors_end()
    left = {"a": Record(deaths=1, excused=1), "b": Record(deaths=3, excused=3)}
    supervisor.send_bytes(msgspec.msgpack.encode(Known(left)))
    slot.hear()
    a, b = slot.record("a", 9), slot.record("b", 9)
    assert a is not None
    assert b is not None
    assert (a.deaths, b.excused) == (3, 3)


def test_runs_that_cannot_open_their_queue_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends what it began: neither a folder nor a process that counts as alive stays behind."""
    monkeypatch.setattr(crash_recovery, "SHARED_MEMORY", tmp_path)
    before = set(crash_recovery._ours)
    pipeline = hr.Pipeline(
        hr.queue("redis://127.0.0.1:1/0", drain=True), stages=[hr.stage("same", str)], delivery=hr.collect()
    )
    for _ in range(2):
        with pytest.raises(HeadraceError):
            hr.run(pipeline)
    assert list(tmp_path.glob("*/*")) == []
    assert crash_recovery._ours == before


def test_a_worker_that_is_to_serve_does_its_work_once_it_serves() -> None:
    """Its models are open before that; other workers do theirs from then on."""
    for serves in (False, True):
        slot = slot_and_supervisors_end()[0]
        if serves:
            slot.expect_serving()
        assert not slot.does_its_work
        slot.table.beat()
        assert slot.does_its_work is not serves
        slot.note_serving()
        assert slot.does_its_work

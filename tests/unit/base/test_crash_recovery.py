"""What a killed process leaves behind is found by the next one of the same queue, once, and by nobody else."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base import crash_recovery
from headrace.base.crash_recovery import RecoveryFolder
from headrace.base.policies.blame import BlameBook, Death, Record

QUEUE = "redis://host/0?queue=jobs"


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put what is left behind into a folder of the test."""
    monkeypatch.setattr(crash_recovery, "SHARED_MEMORY", tmp_path)
    before = set(crash_recovery._ours)
    yield tmp_path
    crash_recovery._ours.clear()
    crash_recovery._ours.update(before)


def created() -> RecoveryFolder:
    """Return a recovery folder of this process."""
    recovery = RecoveryFolder.create()
    assert recovery is not None
    return recovery


def kill_after(live: Callable[[], object]) -> None:
    """Let a child process do something and die by SIGKILL."""
    pid = os.fork()
    if pid == 0:
        try:
            live()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def serve_with_three(queue: str = QUEUE) -> None:
    """Have one message in work, one waiting and one delivered, and know of an earlier death of two."""
    recovery = created()
    recovery.serve(queue)
    book = BlameBook()
    book.note_death(Death("SIGKILL from outside", False, ["a", "b"], []))
    recovery.keep(book)
    table = recovery.table("0-1")
    places = [table.enter(name, f"receipt-{name}", time.monotonic()) for name in "abc"]
    table.work(places[0], 1)
    table.note_delivery(places[2])


def excused(book: BlameBook) -> dict[str, int]:
    """Return how many deliveries of each message are excused."""
    return {name: record.excused for name, record in book.records.items()}


def test_a_killed_process_leaves_what_it_knew_and_what_it_had() -> None:
    """Deliveries that ended with it are added to those it knew of; one that was in work alone counts."""
    kill_after(serve_with_three)
    (left,) = created().serve(QUEUE)
    assert excused(left.book) == {"a": 1, "b": 2}
    assert {record.deaths for record in left.book.records.values()} == {2}
    assert sorted((message.receipt, message.delivered) for message in left.messages) == [
        ("receipt-a", False),
        ("receipt-b", False),
        ("receipt-c", True),
    ]


def test_it_is_taken_over_once(memory: Path) -> None:
    """The second who asks finds nothing, and nothing stays behind when the first has counted it and ends."""
    kill_after(serve_with_three)
    first, second = created(), created()
    (left,) = first.serve(QUEUE)
    assert second.serve(QUEUE) == []
    first.keep(left.book, left.folder)
    first.end({})
    second.end({})
    assert list(memory.glob("*/*")) == []


def test_others_are_left_alone() -> None:
    """Neither the folder of another queue nor that of a process that lives is taken over."""
    kill_after(lambda: serve_with_three("redis://host/0?queue=others"))
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        serve_with_three()
        os.write(ready[1], b"!")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    assert created().serve(QUEUE) == []
    os.write(done[1], b"!")
    os.waitpid(pid, 0)


def test_an_heir_that_is_killed_too_loses_nothing() -> None:
    """What was taken over and not counted yet is found inside the heir's own folder."""
    kill_after(serve_with_three)
    kill_after(lambda: created().serve(QUEUE))
    (left,) = created().serve(QUEUE)
    assert excused(left.book) == {"a": 1, "b": 2}
    assert len(left.messages) == 3


def test_a_death_is_not_counted_twice() -> None:
    """A supervisor that is killed between noting its worker's death and removing the table leaves one death."""

    def note_and_die() -> None:
        serve_with_three()
        recovery = created()
        recovery.serve(QUEUE)
        table = recovery.table("0-1")
        table.enter("x", "receipt", 0.0)
        book = BlameBook()
        book.note_death(Death("SIGSEGV", True, [], ["x"]))
        recovery.drop = lambda name: None  # type: ignore[method-assign]
        recovery.keep(book, "0-1")

    kill_after(note_and_die)
    left = created().serve(QUEUE)
    assert {name: count for one in left for name, count in excused(one.book).items()}["x"] == 1


@pytest.mark.parametrize("damage", ["blame", "0-1.table"])
@pytest.mark.parametrize("content", [b"", b"\xff\x00what", b"hrtable1" + bytes(400)])
def test_what_is_damaged_is_left_out(
    memory: Path, damage: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is cut off or another version's costs what was in it, is said, and ends nobody."""
    kill_after(serve_with_three)
    (file,) = memory.glob(f"*/*/{damage}")
    file.write_bytes(content)
    (left,) = created().serve(QUEUE)
    assert len(caplog.records) == 1
    assert excused(left.book) == ({"a": 0, "b": 1} if damage == "blame" else {"a": 1, "b": 1})


def test_receipts_of_another_boot_are_not_used(memory: Path) -> None:
    """Where the folder outlived the machine's clock deliveries are excused, and receipts left to their timeout."""
    kill_after(serve_with_three)
    (label,) = memory.glob("*/*/queue")
    this_boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    label.write_text(label.read_text().replace(this_boot, "another boot"))
    (left,) = created().serve(QUEUE)
    assert excused(left.book) == {"a": 1, "b": 2}
    assert left.messages == []


def test_an_orderly_end_leaves_what_is_known(memory: Path) -> None:
    """After a drain of a queue that goes on there is no table, and excuses are there for the next."""

    def end() -> None:
        recovery = created()
        recovery.serve(QUEUE)
        recovery.table("0-1").enter("x", "receipt", 0.0)
        book = BlameBook()
        book.note_death(Death("SIGSEGV", True, [], ["a"]))
        recovery.keep(book)
        recovery.end(book.records)

    kill_after(end)
    assert not list(memory.glob("*/*/*.table"))
    (left,) = created().serve(QUEUE)
    assert excused(left.book) == {"a": 1}


def test_what_nobody_takes_over_is_removed(memory: Path) -> None:
    """After two weeks, and after a minute where it had not even opened its queue."""
    kill_after(serve_with_three)
    kill_after(created)
    for folder in memory.glob("*/*"):
        os.utime(folder, times=(0, time.time() - 3600.0))
    created()
    assert len(list(memory.glob("*/*/queue"))) == 1
    for folder in memory.glob("*/*"):
        os.utime(folder, times=(0, time.time() - 15 * 86400.0))
    created()
    assert len(list(memory.glob("*/*/queue"))) == 0


def test_a_folder_that_others_may_write_to_is_not_used(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody may make names in shared memory: what is not this user's alone is neither read nor written."""
    (memory / f"headrace.{os.geteuid()}").mkdir(mode=0o777)
    (memory / f"headrace.{os.geteuid()}").chmod(0o777)
    assert RecoveryFolder.create() is None
    assert "is not a folder of this user alone" in caplog.text


def test_a_machine_without_shared_memory(
    memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is kept there, which is logged."""
    monkeypatch.setattr(crash_recovery, "SHARED_MEMORY", memory / "missing")
    assert RecoveryFolder.create() is None
    assert "will not be known after a kill" in caplog.text


def test_shared_memory_that_is_removed(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is asked of a recovery folder whose files are gone ends nobody, and is logged once."""
    recovery = created()
    shutil.rmtree(memory / f"headrace.{os.geteuid()}")
    table = recovery.table("0-1")
    assert table.enter("a", "receipt", 0.0).slot is not None
    assert recovery.serve(QUEUE) == []
    assert recovery.read_recovered("other").messages == []
    recovery.keep(BlameBook(), "0-1")
    recovery.drop("0-1")
    recovery.end({"a": Record()})
    assert [record.message for record in caplog.records if "will not be known" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1
    table.close()


def test_what_cannot_be_noted_is_counted_by_the_next(memory: Path) -> None:
    """A table stays while the blame book finds no room; once it does the death is in it, and the table goes."""
    recovery = created()
    table = recovery.table("0-1")
    (folder,) = memory.glob("*/*")
    (folder / ".blame").mkdir()  # in its way, as a full memory would be
    recovery.keep(BlameBook(), "0-1")
    assert (folder / "0-1.table").exists()
    (folder / ".blame").rmdir()
    recovery.keep(BlameBook())
    assert not (folder / "0-1.table").exists()
    assert crash_recovery._read_blame(folder, BlameBook()) == ["0-1"]
    table.close()


@pytest.mark.parametrize("target", ["/dev/zero", "..", "/dev/shm"])
@pytest.mark.parametrize("name", ["x.table", "loop", "blame", "pipe.table"])
def test_only_regular_files_are_read(memory: Path, name: str, target: str) -> None:
    """A link in what was left leads nowhere, and a pipe is not waited for; the rest is read."""
    kill_after(serve_with_three)
    (folder,) = memory.glob("*/*")
    if name.startswith("pipe"):
        os.mkfifo(folder / name)
    else:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
    (left,) = created().serve(QUEUE)
    assert len(left.messages) == 3


def test_what_is_too_large_is_not_read(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A table of a terabyte, which takes no room as a file, is left out."""
    kill_after(serve_with_three)
    (table,) = memory.glob("*/*/0-1.table")
    os.truncate(table, 2**40)
    (left,) = created().serve(QUEUE)
    assert left.messages == []
    assert "no regular file of at most" in caplog.text


def test_shared_memory_that_is_full(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A table that finds no room is one that ends with the process; one that fills up later enters no more."""
    recovery = created()
    table = recovery.table("0-1")

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    assert table.enter("a", "receipt", 0.0).slot is None
    other = recovery.table("1-1")
    assert other.enter("a", "receipt", 0.0).slot is not None
    assert "will not be known after a kill" in caplog.text
    table.close()
    other.close()

"""The journal, and what workers have in hand."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.runs.in_flight_file import InFlightFile, read_in_flight
from headrace.runs.journal import Journal, Locked


def write(path: Path, *records: dict[str, object]) -> None:
    """Begin a journal with a header and write records."""
    journal = Journal(path)
    journal.begin({"header": 1})
    for record in records:
        journal.append(record)
    journal.close()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """The header and the records come back in order."""
    write(tmp_path / "j", {"a": 1}, {"b": "é\n"})
    journal = Journal(tmp_path / "j")
    assert (journal.header, journal.records, journal.num_damaged) == ({"header": 1}, [{"a": 1}, {"b": "é\n"}], 0)
    journal.close()


def test_every_cut_leaves_whole_records(tmp_path: Path) -> None:
    """Wherever a journal was cut off, what comes before is read, and what is written after it too."""
    path = tmp_path / "j"
    write(path, {"a": 1}, {"b": 2})
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        journal = Journal(path)
        num_before = len(journal.records) + (journal.header is not None)
        assert num_before == whole[:end].count(b"\n")
        journal.append({"c": 3})
        journal.close()
        assert path.read_bytes() == whole[: whole.rfind(b"\n", 0, end) + 1] + b'{"c":3}\n'


def test_one_at_a_time(tmp_path: Path) -> None:
    """A second one is refused, in this process and in another, until the first is closed."""
    journal = Journal(tmp_path / "j")
    with pytest.raises(Locked):
        Journal(tmp_path / "j")
    script = (
        "import sys; from pathlib import Path; from headrace.runs.journal import *\ntry: Journal(Path(sys.argv[1]))\n"
    )
    script += "except Locked: print('locked')"
    told = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "j")], capture_output=True, text=True, check=True
    )
    assert told.stdout == "locked\n"
    journal.close()
    Journal(tmp_path / "j").close()


def test_begun_anew_with_what_was_known(tmp_path: Path) -> None:
    """Another header takes the place of the first one, with the records that are given, and the lock goes along."""
    write(tmp_path / "j", {"a": 1}, {"b": 2})
    journal = Journal(tmp_path / "j")
    journal.begin({"header": 2}, journal.records[:1])
    journal.append({"c": 3})
    with pytest.raises(Locked):
        Journal(tmp_path / "j")
    journal.close()
    assert (tmp_path / "j").read_bytes() == b'{"header":2}\n{"a":1}\n{"c":3}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["j"]


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace", "close"])
def test_killed_while_it_begins_anew(tmp_path: Path, call: str) -> None:
    """Wherever the kill comes, all that was known is there, before the change or after it."""
    write(tmp_path / "j", {"a": 1})
    script = f"""
import os, signal, sys
from pathlib import Path
from headrace.runs.journal import Journal
journal = Journal(Path(sys.argv[1]))
def kill(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(Path if {call!r} == "replace" else os, {call!r}, kill)
journal.begin({{"header": 2}}, journal.records)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "j")], check=False)
    assert killed.returncode == -signal.SIGKILL
    journal = Journal(tmp_path / "j")
    assert journal.header in ({"header": 1}, {"header": 2})
    assert journal.records == [{"a": 1}]
    journal.begin({"header": 3}, journal.records)
    journal.close()
    assert (tmp_path / "j").read_bytes() == b'{"header":3}\n{"a":1}\n'


def test_no_room_to_begin_anew(tmp_path: Path) -> None:
    """On a full disk the old content stays, and the journal goes on behind it."""
    write(tmp_path / "j", {"a": 1})
    journal = Journal(tmp_path / "j")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="no space"):
            journal.begin({"header": "x" * 200}, journal.records)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    journal.append({"b": 2})
    journal.close()
    assert (tmp_path / "j").read_bytes() == b'{"header":1}\n{"a":1}\n{"b":2}\n'


def test_a_journal_that_is_closed(tmp_path: Path) -> None:
    """What a worker that was left behind would still write is dropped."""
    write(tmp_path / "j")
    journal = Journal(tmp_path / "j")
    journal.close()
    journal.append({"late": 1})
    journal.close()
    assert (tmp_path / "j").read_bytes() == b'{"header":1}\n'


def test_what_workers_have_in_hand(tmp_path: Path) -> None:
    """Each thread's last items are there, whatever it had before; ids may be of any length."""
    hands = InFlightFile(tmp_path / "h")
    hands.stage_started("fetch", ["old", "older"])
    hands.stage_started("fetch", ["new"])
    thread = threading.Thread(target=hands.stage_started, args=("decode", ["x" * 5000, "é"]))
    thread.start()
    thread.join()
    assert set(read_in_flight(tmp_path / "h")) == {"new", "x" * 5000, "é"}
    hands.stage_started("fetch", [f"{number}" * 1000 for number in range(1000)])
    assert "0" * 1000 in read_in_flight(tmp_path / "h")
    hands.close()
    hands.stage_started("fetch", ["late"])
    hands.close()


@pytest.mark.parametrize("content", [b"", b"\0" * 20_000, b"\xff" * 20_000, b"\x05\0\0\0\x91\xa3ab"])
def test_hands_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    """A file that is missing or damaged names nobody."""
    assert read_in_flight(tmp_path / "h") == []
    (tmp_path / "h").write_bytes(content)
    assert read_in_flight(tmp_path / "h") == []

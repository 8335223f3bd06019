"""`headrace submit` and `headrace queue` on a SQLite queue."""

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base.errors import SettingsError, SourceError
from headrace.base.records import Burial, Message
from headrace.cli import queue as queue_command
from headrace.cli import submit
from headrace.sources.jobs import decode_message
from headrace.sources.sqlite_queue import SqliteQueue


class Bench:
    """A queue's address, and commands on it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = folder / "jobs.db"
        self.address = f"sqlite:///{self.path}"
        self._capsys = capsys

    def submit(self, *arguments: str) -> str:
        """Run `headrace submit` on the queue and return what it prints."""
        parser = argparse.ArgumentParser()
        submit.add_arguments(parser)
        assert submit.run(parser.parse_args([self.address, *arguments])) == 0
        return self._capsys.readouterr().out

    def queue(self, action: str, *arguments: str) -> str:
        """Run `headrace queue` on the queue and return what it prints."""
        parser = argparse.ArgumentParser()
        queue_command.add_arguments(parser)
        assert queue_command.run(parser.parse_args([action, self.address, *arguments])) == 0
        return self._capsys.readouterr().out

    def messages(self) -> list[Message]:
        """Return what is in the queue."""
        queue = SqliteQueue(self.path)
        messages = cast("list[Message]", queue.peek(100))
        queue.close()
        return messages

    def kill(self, reason: str) -> None:
        """Dead-letter the first message."""
        queue = SqliteQueue(self.path)
        assert queue.dead_letter([Burial(queue.receive(1)[0], reason)]) == {}
        queue.close()


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    """Return commands on a queue that does not exist yet."""
    return Bench(tmp_path, capsys)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Make a folder with two images and a note."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("b.jpg", "a.png", "notes.txt"):
        (folder / name).write_bytes(name.encode())
    return folder


def test_urls_are_submitted(bench: Bench) -> None:
    """URLs become jobs with task, callback and attributes; ids are printed."""
    out = bench.submit("https://e.com/1", "--task", "t", "--callback", "https://e.com/cb", "--attribute", "order=7=x")
    job = decode_message(bench.messages()[0])
    assert (job.payload, job.task) == ("https://e.com/1", "t")
    assert job.attributes == {"order": "7=x", "callback": "https://e.com/cb"}
    assert out.splitlines() == [f"1 job sent to {bench.address}?queue=jobs", f"{job.id}  https://e.com/1"]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_is_for_terminals(is_terminal: bool, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a line is written over; what is kept in a file has none of it."""
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    bench.submit(*(f"https://e.com/{number}" for number in range(1001)))
    err = stderr.getvalue()
    assert ("100 of 1001 sent\r" in err) == is_terminal
    assert "\\r" not in err
    assert is_terminal or not err


def test_a_folder_stands_for_its_images(bench: Bench, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder's images are submitted in order by absolute path."""
    monkeypatch.chdir(photos.parent)
    bench.submit("photos")
    assert [decode_message(message).payload for message in bench.messages()] == [photos / "a.png", photos / "b.jpg"]


def test_files_travel_inline(bench: Bench, photos: Path) -> None:
    """With --inline the message holds the file's bytes, and where they came from as an attribute."""
    bench.submit(str(photos / "b.jpg"), "--inline")
    job = decode_message(bench.messages()[0])
    assert (job.payload, job.attributes) == (b"b.jpg", {"path": str(photos / "b.jpg")})


def test_a_list_is_submitted(bench: Bench, tmp_path: Path) -> None:
    """--from takes one URL or path per line, without comments."""
    (tmp_path / "list").write_text("# photos\nhttps://e.com/1\n\nhttps://e.com/2\n")
    out = json.loads(bench.submit("--from", str(tmp_path / "list"), "--json"))
    assert (out["schema"], out["count"]) == ("headrace.submit/1", 2)
    assert [job["payload"] for job in out["jobs"]] == ["https://e.com/1", "https://e.com/2"]
    assert [decode_message(message).id for message in bench.messages()] == [job["id"] for job in out["jobs"]]


def test_the_input_is_submitted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """--from - reads the input."""
    monkeypatch.setattr("sys.stdin", io.StringIO("https://e.com/1\n"))
    bench.submit("--from", "-")
    assert len(bench.messages()) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ([], SettingsError, "nothing to submit"),
        (["nowhere.jpg"], SourceError, "nowhere.jpg does not exist"),
        (["https://e.com/1", "--attribute", "order"], SettingsError, "KEY=VALUE"),
        (["--from", "nowhere.txt"], SettingsError, "--from nowhere.txt"),
    ],
)
def test_what_cannot_be_submitted(bench: Bench, arguments: list[str], error: type[Exception], said: str) -> None:
    """A mistake is told, and no queue is made by it."""
    with pytest.raises(error, match=said):
        bench.submit(*arguments)
    assert not bench.path.exists()


@pytest.mark.parametrize("url", ["s3://photos/1.jpg", "fsspec://zip://p::/a.zip", "ftp://nas/1.jpg", "rtsp://camera/1"])
def test_addresses_that_no_worker_fetches_are_refused(bench: Bench, url: str) -> None:
    """Before anything is sent: else every one of its jobs would be rejected."""
    with pytest.raises(SettingsError, match=r"workers fetch http, https and file addresses and paths.*open_queue"):
        bench.submit("https://example.com/1.jpg", url)
    assert not bench.path.exists()


def test_stats(bench: Bench) -> None:
    """Stats count every state."""
    bench.submit("https://e.com/1", "https://e.com/2")
    bench.kill("test")
    answer = json.loads(bench.queue("stats", "--json"))
    assert {key: answer[key] for key in ("schema", "visible", "in_flight", "delayed", "dead")} == {
        "schema": "headrace.queue/1",
        "visible": 1,
        "in_flight": 0,
        "delayed": 0,
        "dead": 1,
    }
    lines = bench.queue("stats").splitlines()
    assert lines[1].split() == ["visible", "1"]
    assert lines[5].split()[0] == "oldest"


def test_peek_shows_bodies(bench: Bench) -> None:
    """Peek shows ids and bodies, and leaves the messages."""
    bench.submit("https://e.com/1", "https://e.com/2")
    assert "https://e.com/1" in bench.queue("peek", "-n", "1")
    assert "https://e.com/2" not in bench.queue("peek", "-n", "1")
    answer: dict[str, Any] = json.loads(bench.queue("peek", "--json"))
    assert [json.loads(one["body"])["url"] for one in answer["messages"]] == ["https://e.com/1", "https://e.com/2"]


def test_peek_shows_reasons(bench: Bench) -> None:
    """Dead letters are shown with their reason."""
    bench.submit("https://e.com/1")
    bench.kill("fetch: 404")
    assert "reason  fetch: 404" in bench.queue("peek", "--dead")
    assert bench.queue("peek") == "no messages\n"


def test_redrive(bench: Bench) -> None:
    """Redrive moves dead letters back and says how many."""
    bench.submit("https://e.com/1")
    bench.kill("test")
    assert bench.queue("redrive").startswith("1 dead letter moved back")
    assert len(bench.messages()) == 1


def test_purge_needs_a_yes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal and without --yes nothing is removed."""
    bench.submit("https://e.com/1")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(SettingsError, match="--yes"):
        bench.queue("purge")
    assert len(bench.messages()) == 1
    assert bench.queue("purge", "--yes").startswith("1 message removed")
    assert bench.messages() == []


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        """Say that a person is there."""
        return True


@pytest.mark.parametrize(("typed", "left"), [("y\n", 0), ("\n", 1), ("", 1)])
def test_purge_asks(bench: Bench, monkeypatch: pytest.MonkeyPatch, typed: str, left: int) -> None:
    """At a terminal, purge asks, and anything but yes is a no."""
    bench.submit("https://e.com/1")
    monkeypatch.setattr("sys.stdin", _Terminal(typed))
    if left:
        with pytest.raises(SettingsError, match="nothing was removed"):
            bench.queue("purge")
    else:
        bench.queue("purge")
    assert len(bench.messages()) == left


def test_looking_makes_no_file(bench: Bench) -> None:
    """A queue file that does not exist is an error, and is not made."""
    with pytest.raises(SourceError, match="does not exist"):
        bench.queue("stats")
    assert not bench.path.exists()


def test_ids_begin_with_the_name_of_the_file(bench: Bench, photos: Path) -> None:
    """Results can be told apart by eye; submitting a file again makes another job."""
    for _ in range(2):
        bench.submit(str(photos / "b.jpg"), "https://e.com/photos/a.png?width=3")
    ids = [decode_message(message).id for message in bench.messages()]
    assert len(set(ids)) == 4
    assert sorted(id_.rpartition("-")[0] for id_ in ids) == ["a.png", "a.png", "b.jpg", "b.jpg"]

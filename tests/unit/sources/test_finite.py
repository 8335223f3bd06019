"""Sources that end: folder and list of URLs."""

import itertools
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import SourceError
from headrace.base.plan import SourcePlan
from headrace.base.records import DELIVERED, Job, Outcome, OutcomeKind
from headrace.sources.finite import Entry, FiniteSource
from headrace.sources.folder import Folder
from headrace.sources.urls import UrlList

RETRY = Outcome(OutcomeKind.RETRY, "failed")


def opened(source: FiniteSource, **plan: int) -> FiniteSource:
    """Return the source, opened."""
    source.open(SourcePlan(**plan))
    return source


def take(source: FiniteSource, limit: int = 100) -> list[Job]:
    """Return what can be received now."""
    jobs = source.receive(limit, 0.0)
    assert jobs is not None
    return jobs


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Make a folder of images and other files."""
    for name in ("b.jpg", "a/z.PNG", "a/notes.txt", ".hidden.jpg", ".cache/c.jpg"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    return tmp_path


def test_a_folder_gives_its_images_in_order(photos: Path) -> None:
    """Images of any case below the folder come sorted, with relative ids; hidden and other files do not."""
    jobs = take(opened(Folder(photos)))
    assert [job.id for job in jobs] == ["a/z.PNG", "b.jpg"]
    assert [job.payload for job in jobs] == [photos / "a/z.PNG", photos / "b.jpg"]
    assert [job.sequence for job in jobs] == [0, 1]


def test_a_name_that_is_not_unicode(tmp_path: Path) -> None:
    """A file whose name is not UTF-8 is done like any other; its id is, because ids go into JSON."""
    name = b"caf\xe9.jpg"
    (tmp_path / os.fsdecode(name)).touch()
    (job,) = take(opened(Folder(tmp_path)))
    assert (job.id, job.payload) == ("caf\\udce9.jpg", tmp_path / os.fsdecode(name))


def test_a_folder_alone(photos: Path) -> None:
    """Without recursion, folders below do not count."""
    assert [job.id for job in take(opened(Folder(photos, recursive=False)))] == ["b.jpg"]


def test_other_names(photos: Path) -> None:
    """Patterns of ours replace the images."""
    assert [job.id for job in take(opened(Folder(photos, patterns=["*.TXT"])))] == ["a/notes.txt"]


def test_a_pattern_of_paths(photos: Path) -> None:
    """A pattern names files itself; ids are relative to its fixed part."""
    assert [job.id for job in take(opened(Folder(photos / "**" / "z.*")))] == ["a/z.PNG"]
    assert [job.id for job in take(opened(Folder(str(photos / "a" / "*.txt"))))] == ["notes.txt"]


def test_one_file(photos: Path) -> None:
    """A file is a source of one job."""
    assert [job.id for job in take(opened(Folder(photos / "b.jpg")))] == ["b.jpg"]


@pytest.mark.parametrize("name", ["nowhere", "nowhere/*.jpg", "a/*.gif"])
def test_a_folder_without_files_is_named(photos: Path, name: str) -> None:
    """A path that gives nothing is an error with the path, at open."""
    with pytest.raises(SourceError, match=str(photos / name).replace("*", r"\*")):
        opened(Folder(photos / name))


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    """A folder without images says what it looked for."""
    with pytest.raises(SourceError, match=r"\*\.jpg"):
        opened(Folder(tmp_path))


def test_urls_from_a_file(tmp_path: Path) -> None:
    """One URL per line, without comments and empty lines; ids are unique."""
    file = tmp_path / "urls.txt"
    file.write_text("# photos\n\nhttps://e.com/1\n  https://e.com/2  \nhttps://e.com/1\n")
    jobs = take(opened(UrlList(file)))
    assert [job.payload for job in jobs] == ["https://e.com/1", "https://e.com/2", "https://e.com/1"]
    assert [job.id for job in jobs] == ["https://e.com/1", "https://e.com/2", "https://e.com/1#2"]


def test_a_line_that_is_no_url_is_named(tmp_path: Path) -> None:
    """A wrong line is told with file, line and text, at open."""
    file = tmp_path / "urls.txt"
    file.write_text("# photos\nhttps://e.com/1\nphoto.jpg\n")
    (tmp_path / "photo.jpg").write_bytes(b"image")
    with pytest.raises(SourceError, match=r"urls\.txt: entry 3 is not a URL: 'photo\.jpg'; .* come from a folder"):
        opened(UrlList(file))
    with pytest.raises(SourceError, match=r"the list of URLs: entry 1 is not a URL: '/"):
        opened(UrlList([str(tmp_path / "photo.jpg")]))


def test_files_from_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are relative to the list, wherever the run stands; absolute ones are as they are; ids are unique."""
    monkeypatch.chdir("/")
    (tmp_path / "with space.jpg").write_bytes(b"image")
    file = tmp_path / "paths.txt"
    file.write_text(f"with space.jpg\n{tmp_path / 'gone.jpg'}\nwith space.jpg\n")
    jobs = take(opened(UrlList(file)))
    assert [job.payload for job in jobs] == [
        tmp_path / name for name in ("with space.jpg", "gone.jpg", "with space.jpg")
    ]
    assert [job.id for job in jobs] == ["with space.jpg", str(tmp_path / "gone.jpg"), "with space.jpg#2"]


def test_a_list_whose_first_file_is_missing(tmp_path: Path) -> None:
    """Where it was looked for is said before the run: the paths may be meant from elsewhere, or be no paths."""
    file = tmp_path / "paths.txt"
    file.write_text("photos/1.jpg\n")
    with pytest.raises(
        SourceError, match=rf"'photos/1\.jpg'; there is no {tmp_path}/photos/1\.jpg\. Paths are relative"
    ):
        opened(UrlList(file))


def test_a_list_of_files_with_a_url(tmp_path: Path) -> None:
    """A list is of one kind, so that nobody who writes into one of addresses can have a file read; passwords are not shown."""
    (tmp_path / "1.jpg").write_bytes(b"image")
    file = tmp_path / "paths.txt"
    file.write_text("1.jpg\nhttps://me:secret@e.com/1\n")
    with pytest.raises(SourceError, match=r"entry 2 is a URL, and those before it are files") as caught:
        opened(UrlList(file))
    assert "secret" not in str(caught.value)


def test_a_missing_list_is_named(tmp_path: Path) -> None:
    """A list that cannot be read is an error with its path."""
    with pytest.raises(SourceError, match=r"none\.txt"):
        opened(UrlList(str(tmp_path / "none.txt")))


def test_an_empty_list_is_an_error() -> None:
    """A list without URLs is a mistake rather than a run of nothing."""
    with pytest.raises(SourceError, match="no URL"):
        opened(UrlList([]))


def test_the_end_comes_after_the_last_answer() -> None:
    """While a job is out it may still come back: [] until it is settled, then None for ever."""
    source = opened(UrlList(["https://e.com/1"]))
    (job,) = take(source)
    assert source.receive(1, 0.0) == []
    job.settle(DELIVERED)
    assert source.receive(1, 0.0) is None
    assert source.receive(1, 0.0) is None
    assert source.statistics().delivered == 1


def test_a_retry_comes_again() -> None:
    """A job to be retried comes again with the next attempt, and after the last is counted as dead-lettered."""
    source = opened(UrlList(["https://e.com/1"]), max_receives=2)
    (job,) = take(source)
    job.settle(RETRY)
    (again,) = take(source)
    assert (again.id, again.attempt, again.sequence) == (job.id, 2, 0)
    again.settle(RETRY)
    assert source.receive(1, 0.0) is None
    counts = source.statistics()
    assert (counts.received, counts.retried, counts.dead_lettered) == (1, 1, 1)


def test_a_delayed_retry_is_waited_for() -> None:
    """Receive waits for a retry that becomes due in its time."""
    source = opened(UrlList(["https://e.com/1"]))
    (job,) = take(source)
    job.settle(Outcome(OutcomeKind.RETRY, delay_seconds=0.02))
    assert source.receive(1, 0.0) == []
    jobs = source.receive(1, 10.0)
    assert jobs is not None
    assert jobs[0].attempt == 2


def test_a_returned_job_is_no_attempt() -> None:
    """A returned job is offered again at once as the same attempt."""
    source = opened(UrlList(["https://e.com/1"]))
    take(source)[0].settle(Outcome(OutcomeKind.RETURNED))
    assert take(source)[0].attempt == 1


def test_close_ends_it() -> None:
    """After close nothing more is given out."""
    source = opened(UrlList(["https://e.com/1", "https://e.com/2"]))
    take(source, 1)[0].settle(DELIVERED)
    source.close()
    assert source.receive(1, 0.0) is None


def test_it_can_be_pickled() -> None:
    """A source can be sent to another process and opened there."""
    source = opened(UrlList(["https://e.com/1"]))
    copy = pickle.loads(pickle.dumps(source))
    assert [job.id for job in take(opened(copy))] == ["https://e.com/1"]


def test_before_open() -> None:
    """Using a source before opening it says so."""
    with pytest.raises(RuntimeError, match="open the source"):
        UrlList(["https://e.com/1"]).receive(1, 0.0)


class Waiting(FiniteSource):
    """Its jobs come when they come: each read waits for a permit."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(1)
        self.asked = threading.Semaphore(0)

    def entries(self) -> Iterator[Entry]:
        """Give jobs without an end."""
        for number in itertools.count():
            self.asked.release()
            self.permits.acquire()
            yield Entry(str(number), b"x")


def test_what_is_worked_on_ends_while_the_next_job_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of outcomes is not held while the iterator waits; what comes after the end is no job."""
    monkeypatch.setattr("headrace.sources.finite._SLOW_SECONDS", 0.0)
    source = Waiting()
    source.open(SourcePlan())
    jobs = source.receive(10, 0.0)
    assert jobs is not None
    assert len(jobs) == 1  # ten were asked for; what came is not held back for what comes slowly
    assert source.asked.acquire(timeout=30)
    later: list[list[Job] | None] = []
    receiver = threading.Thread(target=lambda: later.append(source.receive(10, 0.0)), daemon=True)
    receiver.start()
    assert source.asked.acquire(timeout=30)  # it waits in the iterator
    jobs[0].settle(DELIVERED)
    assert source.statistics().delivered == 1
    assert source.receive(10, 0.0) == []  # another receiver does not wait there as well
    source.close()
    source.permits.release()
    receiver.join(30)
    assert (later, source.statistics().received) == ([None], 1)

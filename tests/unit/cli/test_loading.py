"""What a user names on the command line: a pipeline and a source."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import SettingsError
from headrace.cli.loading import load_pipeline, parse_results, parse_source
from headrace.delivery.parquet import Parquet
from headrace.sources.folder import Folder
from headrace.sources.queue_source import QueueSource
from headrace.sources.urls import UrlList

PIPELINE = """
import headrace as hr

pipeline = hr.Pipeline(source=hr.urls(["https://e.com/1"]), stages=[hr.stage("a", str)])


def make():
    return pipeline


def broken():
    raise OSError("no weights")


number = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the working folder, with a pipeline in `mine.py`, and forget afterwards what was imported from it."""
    (tmp_path / "mine.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("target", ["mine:pipeline", "mine.py:pipeline", "mine.py", "mine:make", "./mine.py:make"])
def test_a_pipeline_is_found(target: str) -> None:
    """A module, a file, a function that makes one, or the attribute left out."""
    assert load_pipeline(target).name == target


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("none.py:pipeline", r"none\.py does not exist; expected MODULE:ATTRIBUTE"),
        ("none:pipeline", "there is no module 'none' here or installed"),
        ("mine:other", r"mine has no attribute 'other'; it defines pipeline"),
        ("mine:number", r"mine:number is a int, expected a headrace\.Pipeline"),
        ("mine:broken", r"mine:broken failed: OSError: no weights \(.*mine\.py:12\)"),
    ],
)
def test_what_is_not_a_pipeline(target: str, said: str) -> None:
    """The error says what was looked for and what is there."""
    with pytest.raises(SettingsError, match=said):
        load_pipeline(target)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("\n\n1 / 0", r"faulty cannot be imported: ZeroDivisionError: division by zero \(.*faulty\.py:3\)"),
        (
            "import not_there",
            r"faulty cannot be imported: ModuleNotFoundError: No module named 'not_there' \(.*:1\)",
        ),
        # Its own name begins with that of the module it misses.
        ("import fault", "faulty cannot be imported: ModuleNotFoundError: No module named 'fault'"),
        ("def", r"faulty cannot be imported: SyntaxError: .*\(faulty\.py, line 1\)"),
        (
            "import headrace as hr\n\nhr.Pipeline(hr.folder('x'), module=hr.Module)",
            r"faulty cannot be imported: SettingsError: module is the class Module; .*\(.*faulty\.py:3\)",
        ),
    ],
)
def test_a_module_that_breaks_says_where(folder: Path, content: str, said: str) -> None:
    """The error names the user's own file and line."""
    (folder / "faulty.py").write_text(content)
    with pytest.raises(SettingsError, match=said):
        load_pipeline("faulty.py:pipeline")


def test_a_file_that_bears_a_known_name(folder: Path) -> None:
    """A file called like a module that is there already is not silently taken for it."""
    (folder / "json.py").write_text(PIPELINE)
    with pytest.raises(
        SettingsError, match=r"json\.py bears the name of another module, json \(.*__init__\.py\): rename the file"
    ):
        load_pipeline("json.py:pipeline")


def test_an_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no list of processes shows the password in it; a file of a Secret ends with a line break."""
    from headrace.cli import make_parser

    monkeypatch.setenv("QUEUE", " redis://:secret@cache/0\n")
    words = ["run", "jobs.py:pipeline", "--source", "env:QUEUE", "--results", "env:QUEUE"]
    args = make_parser(words).parse_args(words)
    assert args.source == args.results == "redis://:secret@cache/0"
    for words in (["queue", "stats", "env:QUEUE"], ["submit", "env:QUEUE", "x"]):
        assert make_parser(words).parse_args(words).queue == "redis://:secret@cache/0"
    for missing in ("env:", "env:NOT_THERE"):
        words = ["run", "jobs.py:pipeline", "--source", missing]
        with pytest.raises(SystemExit):
            make_parser(words).parse_args(words)


def test_sources(folder: Path) -> None:
    """An address is a queue, a .txt file a list of URLs, anything else a folder, file or pattern."""
    (folder / "list.txt").write_text("https://e.com/1\n")
    assert isinstance(parse_source("sqlite:///jobs.db", drain=False), QueueSource)
    assert isinstance(parse_source("list.txt", drain=False), UrlList)
    assert isinstance(parse_source("photos", drain=False), Folder)


@pytest.mark.parametrize(
    "address", ["https://e.com/list.txt", "HTTP://e.com/a/b/today.URLS?sig=x.y", "https://e.com/a.lst#b"]
)
def test_an_http_address_that_ends_like_a_list_is_one(address: str) -> None:
    """Nothing is downloaded yet; where a list has another name, Python's `hr.urls` takes it."""
    assert isinstance(parse_source(address, drain=False), UrlList)


def test_other_http_addresses_are_those_of_queues() -> None:
    """SQS names its queues so, also one whose parameter ends like a list."""
    assert isinstance(parse_source("https://sqs.eu-west-1.amazonaws.com/123456789012/jobs", drain=False), QueueSource)
    with pytest.raises(SettingsError, match="the queue's address"):
        parse_source("https://e.com/jobs?list=a.txt", drain=False)


def test_draining_a_queue_that_is_not_there(tmp_path: Path) -> None:
    """A mistyped queue file is refused, and not made."""
    with pytest.raises(SettingsError, match="does not exist"):
        parse_source(f"sqlite:///{tmp_path}/typo.db", drain=True)
    assert not list(tmp_path.glob("typo*"))


@pytest.mark.parametrize("name", ["x.csv", "x.CSV", "a/x.json", "x.db", "x.tar.gz"])
def test_results_in_a_kind_of_file_that_is_none_are_refused(name: str, tmp_path: Path) -> None:
    """They became a folder of that name; where there is one, or a slash says so, they still do."""
    with pytest.raises(
        SettingsError, match=r"no kind of file that results are written into; name a file such as .*x.*\.jsonl"
    ):
        parse_results(str(tmp_path / name))
    assert isinstance(parse_results(f"{tmp_path / name}/"), Parquet)
    (tmp_path / name).mkdir(parents=True)
    assert isinstance(parse_results(str(tmp_path / name)), Parquet)


@pytest.mark.parametrize("name", ["results", "results.v2", "2026.11", "all.parquet"])
def test_other_names_are_folders(name: str, tmp_path: Path) -> None:
    """Whatever is behind a dot."""
    assert isinstance(parse_results(str(tmp_path / name)), Parquet)


@pytest.mark.parametrize("name", ["a.csv", "a.JSONL", "a.jpg"])
def test_a_file_of_lines_is_said_to_be_one_item(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A text model would answer once for all of them, and nobody would notice."""
    (tmp_path / name).write_bytes(b"a\r\nb\r\n")
    assert isinstance(parse_source(str(tmp_path / name), drain=False), Folder)
    assert ("is one item, and not one for each of its lines" in caplog.text) == (name != "a.jpg")

"""Run folders and Plans that somebody else made: read as data, shown escaped, and nothing outside is touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.base.errors import RunFolderError
from headrace.cli import main
from headrace.diagnose.evidence import collect
from headrace.runs.reader import read_run

MODULE = """
import headrace as hr

pipeline = hr.Pipeline(
    hr.folder("files", patterns=["*.bin"]),
    stages=[hr.fetch("fetch"), hr.emulated("sieve", seconds=0.002)],
    delivery=hr.jsonl("results.jsonl"),
)
"""
#: Takes the place of a stage's name wherever it stands.
HOSTILE = "../</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\x07\r\n]]>sieve"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profiled run of 150 items."""
    folder = tmp_path_factory.mktemp("workplace")
    (folder / "jobs.py").write_text(MODULE)
    (folder / "files").mkdir()
    for number in range(150):
        (folder / "files" / f"{number:03}.bin").write_bytes(b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        patch.delitem(sys.modules, "jobs", raising=False)
        assert main(["profile", "jobs:pipeline", "--set", "sieve.workers=1", "-o", "run"]) == 0
    return folder / "run"


@pytest.fixture
def run(profiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of that run, to be spoilt."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_LEDGER", str(tmp_path / "ledger.sqlite"))
    shutil.copytree(profiled, tmp_path / "run")
    return tmp_path / "run"


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return JSON with every text and number changed, also texts that are keys."""
    if isinstance(value, dict):
        return {change(key): replaced(part, change) for key, part in value.items()}
    return [replaced(part, change) for part in value] if isinstance(value, list) else change(value)


def rename(value: Any) -> Any:
    """Return a text with the hostile name in place of the stage's."""
    return value.replace("sieve", HOSTILE) if isinstance(value, str) else value


def rewrite_json(run: Path, change: Callable[[Any], Any]) -> None:
    """Change every value in the JSON files of a run."""
    for file in run.glob("*.json"):
        file.write_text(json.dumps(replaced(json.loads(file.read_text()), change)))


def rewrite_spans(run: Path) -> None:
    """Change the name of the stage in the spans, and make ids of items paths."""
    for file in (run / "spans").glob("*.parquet"):
        table = pq.read_table(file)
        for name, change in (("stage", rename), ("unit_id", lambda text: f"../../{HOSTILE}{text}"), ("thread", rename)):
            column = pa.array([change(text) for text in table.column(name).to_pylist()])
            table = table.set_column(table.schema.get_field_index(name), name, column)
        pq.write_table(table, file)


#: Every command that reads a run folder.
READING = (
    ["diagnose", "run"],
    ["diagnose", "run", "--json"],
    ["report", "run", "-o", "page.html", "--force"],
    ["report", "run", "--trace", "trace.json", "--force"],
    ["whatif", "run", "--set", "fetch.workers=2", "--untrusted"],
    ["ledger", "list"],
)


def answers(capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[list[str], str]]:
    """Yield each command with what it printed; an exception of Python's own would end the test."""
    for arguments in READING:
        capsys.readouterr()
        status = main(arguments)
        printed = capsys.readouterr()
        assert status in (0, 1, 2, 3, 4), arguments
        assert "Traceback" not in printed.err
        yield arguments, printed.out + printed.err


def test_names_are_shown_and_never_obeyed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Markup, control characters and paths in names come out escaped: on the terminal, in pages and traces."""
    rewrite_json(run, rename)
    rewrite_spans(run)
    line = {"job_id": HOSTILE, "attempt": 1, "outcome": "rejected", "reason": HOSTILE, "settled_unix_seconds": 1.0}
    (run / "errors.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line)[:20])
    before = sorted(run.parent.parent.iterdir())
    shown = 0
    for arguments, printed in answers(capsys):
        assert not _CONTROL.search(printed), arguments
        shown += "alert(1)" in printed
    assert shown  # the names did reach the commands
    pages = [file for file in (Path("page.html"), Path("run") / "report.html") if file.exists()]
    assert pages
    for page in pages:
        text = page.read_text()
        assert "<script>alert(1)" not in text
        assert "<img src=x" not in text
        assert "alert(1)" in text
    assert sorted(run.parent.parent.iterdir()) == before


def test_links_devices_and_pipes_are_not_followed(run: Path, tmp_path: Path, watch_files: Callable[..., Any]) -> None:
    """Each file of a run folder in turn is a link out of it, a link to a device, or a pipe: not opened, and said."""
    secret = tmp_path / "secret"
    files = [
        run / name for name in ("run.json", "errors.jsonl", "profiling.json", "resources.parquet", "states.parquet")
    ]
    for number, file in enumerate([*files, *(run / "spans").iterdir()]):
        content = file.read_bytes()
        secret.write_bytes(content)
        with watch_files(secret) as watch:
            # The link to what is watched for each, and the others by turns: a diagnosis takes a while.
            others = (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path.name))
            for spoil in (lambda path: path.symlink_to(secret), others[number % 3]):
                file.unlink()
                spoil(file)
                try:
                    problems = collect(read_run(run)).problems
                except RunFolderError as error:
                    problems = (str(error),)
                assert any(file.name in problem for problem in problems), file
            assert not watch.was_opened(), file
        file.unlink()
        file.write_bytes(content)


def test_a_link_to_a_device_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says which file it is and what to do."""
    (run / "run.json").unlink()
    (run / "run.json").symlink_to("/dev/zero")
    assert main(["diagnose", "run"]) == 2
    assert "run.json cannot be read: it is a link that leads out of the run folder" in capsys.readouterr().err


def test_replacing_a_run_removes_nothing_elsewhere(run: Path, tmp_path: Path) -> None:
    """`--force` over a folder whose parts are links leaves what they lead to."""
    from headrace.runs.run_folder import RunFolder

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for part, name in (("spans", "mine.parquet"), ("resources", "mine.jsonl"), ("hot_spots", "mine.json")):
        shutil.rmtree(run / part, ignore_errors=True)
        (run / part).symlink_to(elsewhere)
        (elsewhere / name).write_text("mine")
    (run / "report.html").unlink(missing_ok=True)
    (run / "report.html").symlink_to(elsewhere / "page.html")
    (elsewhere / "page.html").write_text("mine")
    other = tmp_path / "other"
    RunFolder.create(other)
    (run / "worker-0-1").symlink_to(other)
    RunFolder.create(run, force=True)
    assert (other / "run.json").exists()
    assert {file.read_text() for file in elsewhere.iterdir() if file.suffix != ".tmp"} == {"mine"}
    assert len(list(elsewhere.iterdir())) == 4


@pytest.mark.parametrize(
    "name", ["run.json", "errors.jsonl", "profiling.json", "resources/vm-1.jsonl", "states/vm-1.jsonl"]
)
def test_depth(run: Path, name: str) -> None:
    """JSON nested a hundred thousand deep is a file that cannot be read, and no overflow of the stack."""
    (run / name).parent.mkdir(exist_ok=True)
    (run / "resources.parquet").unlink()
    (run / "states.parquet").unlink()
    (run / name).write_text('{"x":' * 100_000 + "\n" + "[" * 100_000 + "\n")
    try:
        problems = collect(read_run(run)).problems
    except RunFolderError as error:
        problems = (str(error),)
    assert any(Path(name).name in problem for problem in problems)


@pytest.mark.parametrize("number", [10**30, -(10**30), 1e308, -1, 0, 2**63], ids=str)
def test_absurd_numbers(run: Path, capsys: pytest.CaptureFixture[str], number: float) -> None:
    """Whatever the numbers in a run are, each command ends with an answer or an error of headrace's."""

    def change(value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return number if is_number and value not in (1, 2, 3) else value  # versions stay readable

    rewrite_json(run, change)
    assert [arguments for arguments, _ in answers(capsys)] == list(READING)


def test_many_equal_rows_are_not_unpacked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A span file of a megabyte that would be gigabytes in memory is left out, and said to be."""
    (file,) = list((run / "spans").glob("*.parquet"))[:1]
    row = pq.read_table(file).slice(0, 1)
    many = pa.concat_tables([row] * 6).combine_chunks()
    with pq.ParquetWriter(file, row.schema, compression="zstd") as writer:
        block = many.take(pa.array([0] * 1_000_000))
        for _ in range(6):
            writer.write_table(block)
    assert file.stat().st_size < 2_000_000
    main(["diagnose", "run"])
    printed = capsys.readouterr()
    assert "6,000,000 rows" in printed.out + printed.err


HOSTILE_PLANS = {
    "depth": "x = " + "[" * 100_000,
    "nested tables": "[" + ".".join("a" * 3 for _ in range(20_000)) + "]",
    "huge integer": f"[stages.sieve]\nworkers = 1{'0' * 5000}",
    "huge workers": "[stages.sieve]\nworkers = 1000000000",
    "huge float": "[run]\ngrace_seconds = 1e400",
    "not a number": "[run]\ngrace_seconds = nan",
    "code": "[model]\nengine = \"__import__('os').system('touch PWNED')\"",
    "module path": '[model]\nengine = "os.path"',
    "path out": '[model]\nartifact = "../../../../etc/passwd"',
    "device": '[model]\nartifact = "/dev/zero"',
    "python tags": "!!python/object/apply:os.system ['touch PWNED']",
    "binary": "\x00\x01\x02",
    "version": "version = 99",
}


@pytest.mark.parametrize("case", HOSTILE_PLANS)
def test_plans_are_data(
    tmp_path: Path, case: str, make_pipeline_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hostile Plan is refused, or it is a Plan that can be run: never code, an endless wait or a traceback."""
    plan = tmp_path / "plan.toml"
    plan.write_text(HOSTILE_PLANS[case])
    status = main(["run", "jobs:pipeline", "--plan", str(plan)])
    printed = capsys.readouterr()
    assert status in (0, 2, 3)
    assert "Traceback" not in printed.err
    assert len(printed.err) < 20_000
    assert not list(tmp_path.rglob("PWNED"))
    assert not Path("PWNED").exists()


@pytest.fixture
def make_pipeline_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with the pipeline and three files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "jobs", raising=False)
    (tmp_path / "jobs.py").write_text(MODULE)
    (tmp_path / "files").mkdir()
    for number in range(3):
        (tmp_path / "files" / f"{number}.bin").write_bytes(b"x")
    return tmp_path

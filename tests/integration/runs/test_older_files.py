"""Files that older headraces wrote are read by this one; those of newer ones are refused with what to do."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from headrace.base.errors import LedgerError, RunFolderError, SettingsError, SourceError
from headrace.base.plan import Plan
from headrace.base.records import SCHEMA_VERSION
from headrace.cli import main
from headrace.ledger.ledger import Ledger
from headrace.runs.reader import read_run
from headrace.runs.span_files import SPAN_SCHEMA
from headrace.sources.sqlite_queue import SqliteQueue

pytestmark = pytest.mark.smoke

OLDER = Path(__file__).with_name("older")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """Return a copy of the older files: opening some brings them to the newest version."""
    shutil.copytree(OLDER, tmp_path / "older")
    return tmp_path / "older"


@pytest.mark.parametrize("version", [1, 2])
def test_ledgers(older: Path, version: int) -> None:
    """An older ledger keeps its entries, takes new ones, and is in the newest version from then on."""
    path = older / f"ledger_v{version}.sqlite"
    with Ledger(path, must_exist=True) as ledger:
        newest, oldest = ledger.predictions()
        assert (oldest.says, newest.says) == ("work.workers=2", "work.workers=3")
        assert oldest.measured is not None
        assert oldest.measured.ratio.mid == 1.45
        assert newest.measured is None
        document = ledger.prediction("p1").document
        assert document is not None
        assert ledger.write_prediction(document) == "p3"
        ledger.attempts.accept(older / "plan.toml", "version = 1\n", why="better")  # a table of version 2
    with Ledger(path, must_exist=True) as ledger:
        assert len(ledger.predictions()) == 3
        assert len(ledger.attempts.decisions()) == 1


def test_queues(older: Path) -> None:
    """A queue file keeps what waits, what was lent and what died, with their counts."""
    queue = SqliteQueue(older / "queue_v1.sqlite")
    messages = queue.receive(10)
    assert sorted((message.body, message.receive_count) for message in messages) == [
        (b'{"url": "http://example.com/2.jpg"}', 2),  # was lent long ago
        (b'{"url": "http://example.com/3.jpg"}', 1),
    ]
    (dead,) = queue.peek(10, dead=True)
    assert (dead.body, dead.reason) == (b'{"url": "http://example.com/1.jpg"}', "not an image")
    assert queue.send([b"{}"])
    queue.close()


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_run_folders(older: Path, version: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of each schema version so far is read whole and can be diagnosed; there is one for every version."""
    run = read_run(older / f"run_v{version}")
    assert run.info.schema_version == version
    assert run.info.status == "finished"
    assert run.problems == []
    assert run.spans().schema == SPAN_SCHEMA
    assert run.spans().column("stage").to_pylist().count("work") == 6
    assert set(run.spans().column("weight").to_pylist()) == {1}
    assert main(["diagnose", str(run.path)]) in (0, 4)
    assert "Traceback" not in capsys.readouterr().err
    assert main(["report", str(run.path), "-o", str(older / "page.html")]) == 0


def test_plans(older: Path) -> None:
    """A Plan's file of version 1 means today what it meant."""
    plan = Plan.load(older / "plan_v1.toml")
    assert (plan.stages["work"].workers, plan.stages["work"].max_wait_seconds) == (3, 0.005)
    assert (plan.decode.scale, plan.model.engine, plan.model.options) == ("full", "emulated", {"launch_seconds": 0.001})
    assert (plan.source.receivers, plan.run.grace_seconds) == (2, 20)


RESUMED = """
import headrace as hr

def work(value):
    return len(value)

files = hr.Pipeline(hr.folder("items"), stages=[hr.fetch("fetch"), hr.stage("work", work)], delivery=hr.jsonl("files.jsonl"))
"""


def test_checkpoints(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that an older headrace began is ended by this one: what has a result is not done again."""
    folder = older / "resume_v1"
    (folder / "items").mkdir()
    for number in range(1, 41):
        (folder / "items" / f"{number}.jpg").write_text(f"x{number}\n")
    (folder / "app.py").write_text(RESUMED)
    journal = (folder / "checkpoint").rename(folder / "part.jsonl.checkpoint") / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"the folder /items"', json.dumps(f"the folder {folder / 'items'}")))
    before = (folder / "part.jsonl").read_text()
    monkeypatch.chdir(folder)
    assert main(["run", "app.py:files", "--results", "part.jsonl", "--resume"]) == 0
    after = (folder / "part.jsonl").read_text()
    assert after.startswith(before)
    ids = [json.loads(line)["id"] for line in after.splitlines()]
    assert (len(before.splitlines()), len(ids), len(set(ids))) == (10, 40, 40)


def test_a_plan_of_a_newer_headrace(older: Path) -> None:
    """A run folder of this version whose Plan has settings that came later is refused with what to do, not misread."""
    (plan,) = read_run(older / "run_v3").info.plans.values()
    assert Plan.from_record(plan).plan_id
    with pytest.raises(
        SettingsError, match=r"none that this headrace knows: .*'of_tomorrow'.* pip install -U headrace"
    ):
        Plan.from_record({**plan, "model": {"of_tomorrow": 1}})


def test_newer_files_say_what_to_do(older: Path) -> None:
    """Of a newer version nothing is guessed: the message names both versions, and the file stays as it is."""
    for name in ("ledger_v2.sqlite", "queue_v1.sqlite"):
        with sqlite3.connect(older / name) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
    content = [(older / name).read_bytes() for name in ("ledger_v2.sqlite", "queue_v1.sqlite")]
    with pytest.raises(LedgerError, match="has version 99; this headrace knows versions up to"):
        Ledger(older / "ledger_v2.sqlite")
    with pytest.raises(SourceError, match="version 99; this headrace reads version"):
        SqliteQueue(older / "queue_v1.sqlite")
    assert [(older / name).read_bytes() for name in ("ledger_v2.sqlite", "queue_v1.sqlite")] == content
    (older / "run_v2" / "run.json").write_text('{"schema_version": 99}')
    with pytest.raises(RunFolderError, match="schema version 99, and this headrace reads up to"):
        read_run(older / "run_v2")
    (older / "plan_v1.toml").write_text("version = 99\n")
    with pytest.raises(SettingsError, match="the only version this headrace knows"):
        Plan.load(older / "plan_v1.toml")

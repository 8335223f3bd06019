"""What the board finds, reads and says, of good folders and bad."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.monitor.board import finding
from headrace.monitor.board.answers import answer_all
from headrace.monitor.board.finding import MOST_DEPTH, Finder
from headrace.monitor.board.links import Links
from headrace.monitor.board.page import render_board
from headrace.monitor.board.records import Record
from headrace.monitor.board.server import newest_unadvised
from headrace.report.markup import raw
from headrace.runs.formats.drift import DRIFT_SCHEMA
from headrace.runs.formats.incident import IncidentDocument, IncidentTrigger, Stretch


def make_run(folder: Path) -> Path:
    """Return a run folder of a small run."""
    stages = [hr.stage("work", lambda number: number)]
    pipeline = hr.Pipeline(hr.items(range(20)), stages=stages, delivery=hr.collect(), name="jobs:pipeline")
    hr.run(pipeline, output=folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, one of them below another folder."""
    folder = tmp_path_factory.mktemp("team")
    make_run(folder / "first")
    make_run(folder / "2026" / "second")
    return folder


def change_info(run: Path, **changes: object) -> None:
    """Change what `run.json` says."""
    file = run / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def texts(records: list[Record], now: float | None = None) -> dict[str, str]:
    """Return {first words of a question: the answer} as markup."""
    answers = answer_all(records, {}, now or time.time(), Links(is_served=True))
    return {" ".join(answer.question.split()[:2]): " ".join(answer.lines) for answer in answers}


def test_runs_are_found_wherever_they_are(runs: Path) -> None:
    """The newest first, with the figures of `run.json`; spans are not looked into."""
    found = Finder([runs]).look()
    assert [record.name for record in found.records] == ["2026/second", "first"]
    assert found.records[0].run is not None
    assert (found.records[0].run.pipeline, found.records[0].run.delivered) == ("jobs:pipeline", 20)
    assert found.records[0].run.state == "finished"
    assert not found.passed_over


def test_drift_is_news_while_the_page_is_open(tmp_path: Path) -> None:
    """A folder that still records is shown, and what its scores say later is shown then."""
    (tmp_path / "watch" / "windows").mkdir(parents=True)
    scores = tmp_path / "watch" / "scores.json"
    finder = Finder([tmp_path])
    for verdict, windows in (("recording", 8), ("drift", 60)):
        document = {
            "schema": DRIFT_SCHEMA,
            "verdict": verdict,
            "says": ["it is so"],
            "folder": "watch",
            "windows": windows,
        }
        scores.write_text(json.dumps({**document, "items": 900, "began": None, "ended": None}))
        (record,) = finder.look().records
        assert record.facts["verdict"] == verdict


def test_what_is_damaged_is_named_and_breaks_nothing(tmp_path: Path) -> None:
    """A cut run.json, one of a newer headrace, a ledger that is none, a folder without rights, an incident of rubbish."""
    good = make_run(tmp_path / "good")
    for name, text in {"cut": "{", "newer": '{"schema_version": 99}', "list": "[]", "deep": "[" * 100_000}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    (tmp_path / "what").mkdir()
    (tmp_path / "what" / "run.json").write_text((good / "run.json").read_text())
    (tmp_path / "what" / "incident.json").write_text('{"schema": "headrace.incident/1"}')
    odd = {
        "words": {"summary": {"latency_seconds": "no", "throughput_per_second": "fast"}},
        "past": {"started_unix_seconds": -1e18}, "future": {"ended_unix_seconds": 1e18},
    }  # fmt: skip
    for name, changes in odd.items():
        shutil.copytree(good, tmp_path / name)
        change_info(tmp_path / name, **changes)
    (tmp_path / "ledger.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(52) + b"hrlg" + bytes(100))
    found = Finder([tmp_path]).look()
    troubles = {record.name: record.trouble for record in found.records if record.trouble}
    assert set(troubles) == {"cut", "newer", "list", "deep", "what", "ledger.sqlite", *odd}
    assert all(troubles.values())
    page = render_board("team", found, {}, time.time())
    assert "newer headrace" in page
    assert "good" in page


def test_links_that_lead_out_are_not_followed(runs: Path, tmp_path: Path) -> None:
    """Nor is a run.json that is a link."""
    (tmp_path / "out").symlink_to(runs)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "run.json").symlink_to(runs / "first" / "run.json")
    assert not Finder([tmp_path]).look().records


def test_pipes_are_waited_for_by_nobody(tmp_path: Path) -> None:
    """Whatever they are called: what nobody writes to would be opened for ever."""
    for folder, names in (
        ("run", ["run.json"]),
        ("drift", ["scores.json"]),
        ("loop", ["loop.json"]),
        ("a", ["b.sqlite"]),
    ):
        (tmp_path / folder / "windows").mkdir(parents=True)
        (tmp_path / folder / "runs").mkdir()
        for name in names:
            os.mkfifo(tmp_path / folder / name)
    make_run(tmp_path / "good")
    os.mkfifo(tmp_path / "good" / "spans" / "more.parquet")
    assert [record.name for record in Finder([tmp_path]).look().records] == ["good"]


def test_of_too_many_folders_the_newest_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the page says that there are more."""
    good = make_run(tmp_path / "x")
    for number in range(8):
        shutil.copytree(good, tmp_path / f"run-{number}")
        os.utime(tmp_path / f"run-{number}", (1e9 + number,) * 2)
    shutil.rmtree(good)
    monkeypatch.setattr(finding, "MOST_FOLDERS", 4)
    found = Finder([tmp_path]).look()
    assert {record.name for record in found.records} == {"run-5", "run-6", "run-7"}
    assert any("at most 4 are looked at" in line for line in found.passed_over)


def test_what_is_too_deep_is_told(tmp_path: Path) -> None:
    """A board of / must end."""
    deep = tmp_path.joinpath(*(f"d{number}" for number in range(MOST_DEPTH + 2)))
    deep.mkdir(parents=True)
    found = Finder([tmp_path]).look()
    assert any("deep" in line for line in found.passed_over)


def test_only_what_changed_is_read_again(runs: Path) -> None:
    """A board looks every few seconds."""
    finder = Finder([runs])
    first = {record.id: record for record in finder.look().records}
    change_info(runs / "first", pipeline="other:pipeline")
    second = {record.id: record for record in finder.look().records}
    names = {record.name: second[record.id] is record for record in first.values()}
    assert names == {"first": False, "2026/second": True}
    change_info(runs / "first", pipeline="jobs:pipeline")


@pytest.mark.parametrize(("kind", "expected"), [("slo", "It was slow."), ("asked", "Nothing."), ("signal", "Nothing.")])
def test_an_incident_that_somebody_asked_for_broke_nothing(kind: Any, expected: str, tmp_path: Path) -> None:
    """A snapshot may be taken at any time."""
    stretch = Stretch(
        from_unix_seconds=1.0, to_unix_seconds=9.0, jobs=80, rate=10.0, latency=0.5, p99=None, failed_share=0.0
    )
    incident = IncidentDocument(
        id="i", pipeline="m:p", plan_id="p", host="h", process=1, headrace_version="0",
        trigger=IncidentTrigger(kind=kind, says="said"), written_unix_seconds=9.0, incident=stretch, says="It was slow.",
        baseline=None, baseline_source="", bottleneck="", changes=(), unchanged=(),
    )  # fmt: skip
    record = Record(kind="incident", path=tmp_path, name="i", at=time.time(), incident=incident)
    assert expected in texts([record])["What broke"]


def test_a_run_whose_process_is_gone_was_killed(tmp_path: Path) -> None:
    """It says that it runs; whether it does shows in the lock on its folder."""
    run = make_run(tmp_path / "run")
    change_info(run, status="running", ended_unix_seconds=None)
    record = Finder([tmp_path]).look().records[0]
    assert record.run is not None
    assert (record.run.state, record.run.delivered) == ("killed", 20)
    assert "was killed" in texts([record])["What broke"]
    place = os.open(run, os.O_RDONLY)
    fcntl.flock(place, fcntl.LOCK_EX)
    try:
        record = Finder([tmp_path]).look().records[0]
    finally:
        os.close(place)
    assert record.run is not None
    assert record.run.state == "runs"
    assert "20 delivered" in texts([record])["What runs"]


def test_two_runs_of_a_pipeline_are_compared(tmp_path: Path) -> None:
    """In words, with what it proves."""
    for name, rate, began in (("a", 100.0, 1000.0), ("b", 60.0, 2000.0)):
        run = make_run(tmp_path / name)
        summary = json.loads((run / "run.json").read_text())["summary"]
        change_info(run, summary={**summary, "throughput_per_second": rate}, started_unix_seconds=began)
    said = texts(list(Finder([tmp_path]).look().records), now=3000.0)["What changed"]
    assert "100/s, now 60/s (x0.60; one run each, which proves little)" in said
    assert "/compare?run=" in said


def test_the_workers_of_a_service_are_one_run(tmp_path: Path) -> None:
    """Their rates are summed up, and a service that somebody ended is no run that was cut off."""
    now = time.time()
    for began, name, delivered in ((now - 100, "monday", 100), (now - 50, "tuesday", 400)):
        for worker in ("worker-0-0", "worker-1-0"):
            run = make_run(tmp_path / name / worker)
            counters = {"received": delivered, "delivered": delivered}
            times = {"started_unix_seconds": began, "ended_unix_seconds": began + 10}
            change_info(run, **times, counters=counters, served=True, status="interrupted")
    records = list(Finder([tmp_path]).look().records)
    assert {record.run.state for record in records if record.run} == {"finished"}
    assert "jobs:pipeline: 20/s, now 80/s (x4.00; one run each" in texts(records)["What changed"]


def test_a_run_in_vain_is_said_to_have_broken(tmp_path: Path) -> None:
    """Nothing was delivered, and it ended orderly."""
    run = make_run(tmp_path / "vain")
    counters = json.loads((run / "run.json").read_text())["counters"]
    change_info(run, counters={**counters, "delivered": 0, "rejected": 3, "retried": 17})
    assert "0 delivered, 3 failed, 17 to be tried again" in texts(list(Finder([tmp_path]).look().records))["What broke"]


def test_markup_in_names_is_text(tmp_path: Path) -> None:
    """Names of folders and pipelines are whatever their makers wrote."""
    run = make_run(tmp_path / "<img src=x onerror=alert(1)>")
    change_info(run, pipeline="</script><b>x:pipeline")
    page = render_board("<b>team", Finder([tmp_path]).look(), {}, time.time(), script=raw("0"))
    assert "<img src=x" not in page
    assert "</script><b>x" not in page
    assert "&lt;img src=x" in page


def test_a_page_in_a_file_links_to_nothing(runs: Path) -> None:
    """Its reader has no server."""
    page = render_board("team", Finder([runs]).look(), {}, time.time())
    assert 'href="/' not in page
    assert "<form" not in page
    assert "connect-src" not in page


def test_each_pipeline_is_advised_once(runs: Path) -> None:
    """Of its newest run; where nothing can be said of that, of the one before."""
    found = Finder([runs]).look()
    first = newest_unadvised(found, {})
    assert first is not None
    assert first.name == "2026/second"
    assert newest_unadvised(found, {first.id: "do it"}) is None
    second = newest_unadvised(found, {first.id: ""})
    assert second is not None
    assert second.name == "first"

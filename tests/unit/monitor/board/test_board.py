"""What the board finds, reads and says, of good folders and bad."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.base.documents import encode_document
from headrace.base.policies.canary import CanaryPolicy
from headrace.ledger.ledger import Ledger
from headrace.monitor.board import finding
from headrace.monitor.board.advising import make_advice
from headrace.monitor.board.answers import answer_all
from headrace.monitor.board.finding import MOST_DEPTH, Finder, Found
from headrace.monitor.board.kinds import KINDS, Kind
from headrace.monitor.board.links import Links
from headrace.monitor.board.page import render_board
from headrace.monitor.board.reading import describe_loop
from headrace.monitor.board.records import Advice, Record
from headrace.monitor.board.server import newest_unadvised
from headrace.monitor.review.reviewing import Review
from headrace.monitor.review.store import make_room
from headrace.report.loop_page import render_loop
from headrace.report.markup import raw
from headrace.runs.canary_folder import CanaryFolder
from headrace.runs.formats.comparison import ComparisonDocument, Side
from headrace.runs.formats.diagnosis import DiagnosisDocument, Finding, Remedy, VerdictClass
from headrace.runs.formats.drift import DRIFT_SCHEMA
from headrace.runs.formats.gate import GateDocument
from headrace.runs.formats.incident import IncidentDocument, IncidentTrigger, Stretch
from headrace.runs.formats.loop import LoopAsked, LoopDocument
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.review import VerdictLine
from tests.unit.monitor.review.folders import make_folder


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


def test_what_becomes_of_a_canary_is_news_too(tmp_path: Path) -> None:
    """Its lock is as old as its folder: what changes is its state."""
    folder = CanaryFolder(tmp_path / "canary")
    state = folder.start(hr.Plan(), CanaryPolicy())
    os.utime(folder.path / "lock", (1.0, 1.0))
    finder = Finder([tmp_path])
    (before,) = finder.look().records
    assert before.facts["state"] == "running"
    folder.write(state.done("rolled back", time.time(), "it is bad", "user"))
    (after,) = finder.look().records
    assert after.facts["state"] == "rolled back"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.is_folder], ids=lambda kind: kind.name)
def test_whatever_changes_in_a_folder_is_read(kind: Kind, tmp_path: Path) -> None:
    """Each file that makes the folder what it is, and each that is written later, even in its place."""
    names = {*kind.marks - {"samples"}, *(pattern.replace("*", "one") for pattern in kind.changing)}
    files = [tmp_path / name for name in sorted(names)]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}")
    versions = {kind.version(tmp_path)}
    for number, file in enumerate(files, 1):
        file.write_text("{}" + number * " ")
        versions.add(kind.version(tmp_path))
    assert len(versions) == 1 + len(files)


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


@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
def test_pipes_beside_what_is_good_are_named(suffix: str, tmp_path: Path) -> None:
    """Beside a ledger, where SQLite would wait for them or remove them, and in a folder of drift that has learnt."""
    file = tmp_path / "ledger.sqlite"
    Ledger(file).close()
    os.mkfifo(f"{file}{suffix}")
    (tmp_path / "drift" / "windows").mkdir(parents=True)
    (tmp_path / "drift" / "baseline.json").write_text("{}")
    os.mkfifo(tmp_path / "drift" / "scores.json")
    records = {record.name: record.trouble for record in Finder([tmp_path]).look().records}
    assert set(records) == {"ledger.sqlite", "drift"}
    assert all("pipe" in trouble for trouble in records.values())
    assert Path(f"{file}{suffix}").is_fifo()


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


@pytest.mark.parametrize(
    ("kind", "expected"), [("slo", ": Said. It was slow."), ("asked", "Nothing."), ("signal", "Nothing.")]
)
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


def test_what_a_run_has_written_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a night has thousands of files of spans, and a board looks every few seconds."""
    run = make_run(tmp_path / "run")
    change_info(run, status="running", ended_unix_seconds=None)
    read: list[Path] = []
    read_table = pq.read_table

    def count_reads(file: Path, **options: Any) -> Any:
        read.append(file)
        return read_table(file, **options)

    monkeypatch.setattr("headrace.monitor.board.reading.pq.read_table", count_reads)
    finder = Finder([tmp_path])
    for _ in range(2):
        (record,) = finder.look().records
        assert record.run is not None
        assert record.run.delivered == 20
        change_info(run, host="another")  # so that it is read again
    assert len(read) == len(list((run / "spans").glob("*.parquet"))) == 1


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


def test_deaths_of_workers_are_told_once_by_their_causes(tmp_path: Path) -> None:
    """One line for all that died of a run, not a line for each; what the supervisor counted stands beside it."""
    for life in (1, 2, 3):
        change_info(make_run(tmp_path / "two" / f"worker-0-{life}"), status="running", ended_unix_seconds=None)
    deaths = [{"worker": 0, "life": life, "cause": "SIGSEGV"} for life in (1, 2, 3)]
    noted = {"outcomes": {"delivered": 1234}, "deaths": 3, "last_deaths": deaths}
    (tmp_path / "two" / "supervised.json").write_text(json.dumps(noted))
    found = Finder([tmp_path]).look()
    assert [record.run.state for record in found.records if record.run] == ["killed"] * 3
    broke = texts(list(found.records))["What broke"]
    assert "two: 3 deaths: 3 of SIGSEGV" in broke
    assert "was killed" not in broke
    assert "1,234 delivered by several worker processes; 3 deaths" in render_board("b", found, {}, time.time())


def test_portions_of_a_run_are_one_run(tmp_path: Path) -> None:
    """As workers: the rate is that of all."""
    now = time.time()
    for began, name, delivered in ((now - 100, "monday", 100), (now - 50, "tuesday", 400)):
        for portion in ("shard-0-of-2", "shard-1-of-2"):
            run = make_run(tmp_path / name / portion)
            times = {"started_unix_seconds": began, "ended_unix_seconds": began + 10}
            change_info(run, **times, counters={"received": delivered, "delivered": delivered})
    assert "20/s, now 80/s (x4.00" in texts(list(Finder([tmp_path]).look().records))["What changed"]


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
    assert newest_unadvised(found, {first.id: Advice(says="do it")}) is None
    second = newest_unadvised(found, {first.id: None})
    assert second is not None
    assert second.name == "first"


def test_what_a_ledger_is_given_shows_while_its_writer_is_at_work(tmp_path: Path) -> None:
    """A search keeps it open for minutes; until it is closed, what is new stands in a file beside it."""
    (tmp_path / "plan.toml").write_text("")
    Ledger.open(tmp_path / "ledger.sqlite").close()
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        finder = Finder([tmp_path])
        (before,) = finder.look().records
        ledger.attempts.accept(tmp_path / "plan.toml", "[run]\n", why="faster")
        (after,) = finder.look().records
    assert before.ledger is not None
    assert after.ledger is not None
    assert [len(one.ledger.decisions) for one in (before, after) if one.ledger] == [0, 1]


def test_names_stay_as_they_are_and_paths_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline's name gets no large letter; a Plan below the folder where the board began is named from there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with Ledger.open(tmp_path / "runs" / "ledger.sqlite") as ledger:
        (tmp_path / "runs" / "plan.toml").write_text("")
        ledger.attempts.accept(tmp_path / "runs" / "plan.toml", "[run]\n", why="faster")
    (loop,) = [Record(kind="loop", path=tmp_path, name="loop", at=1.0, facts={"says": "slow.py:pipeline, asked for"})]
    found = Finder([tmp_path]).look()
    page = render_board("team", Found([*found.records, loop], []), {}, time.time())
    assert ">slow.py:pipeline, asked for." in page
    assert ": runs/plan.toml was accepted by" in page
    assert str(tmp_path) not in page
    assert page.count('<div class="stacked">') == 2


def test_what_is_being_looked_at_is_said(runs: Path) -> None:
    """A diagnosis takes seconds, and each pipeline has its turn."""
    records = list(Finder([runs]).look().records)
    assert "is being looked at; what to do appears here" in texts(records)["What should"]


# --- advice


def diagnose(
    verdict: str, says: str, remedies: Sequence[Remedy] = (), stage: str | None = "decode"
) -> DiagnosisDocument:
    """Return a diagnosis with a verdict."""
    finding = Finding(
        verdict=VerdictClass(verdict), stage=stage, cause="", says=says, rule="r", confidence="low", gain=None,
        evidence=(), remedies=tuple(remedies),
    )  # fmt: skip
    return DiagnosisDocument(
        run="r", headrace_version="0", pipeline="jobs:pipeline", plan_id="p", throughput=1.0, first=finding,
        runner_up=None, next_bottleneck=None, candidates=(), bounds=(), simulated_throughput=None,
        experiment="headrace profile jobs:pipeline --isolate",
    )  # fmt: skip


LONG = "the simulation finds decode, but what was measured does not bear it out: the way into decode is 65% full"
DECIDE = Remedy(says="run each stage alone", command="headrace profile jobs:pipeline --isolate")
WORKERS = Remedy(
    says="give decode a worker for each core", settings=("decode.workers=4",), ratio=Estimate(1.7, 1.9, 2.1)
)


def test_what_is_not_known_is_said_in_a_sentence_and_the_rest_on_a_click() -> None:
    """An inconclusive diagnosis has reasons for an engineer; a lead reads what to type."""
    told = make_advice(diagnose("INCONCLUSIVE", LONG, [DECIDE, WORKERS]), "The run does not tell what limits it.")
    assert (told.says, told.to_do) == ("The run does not tell what limits it.", "Run each stage alone.")
    assert told.command == DECIDE.command
    assert LONG not in told.says + told.to_do
    assert LONG[1:] in told.why


def test_advice_is_the_remedy_that_is_predicted_to_gain_most() -> None:
    """With the stage and the prediction; nothing limits what is healthy."""
    told = make_advice(diagnose("DECODE", "it decodes", [DECIDE, WORKERS]), "Decoding takes the cores.")
    assert told.says == "Decoding takes the cores. Stage: decode."
    assert told.to_do == (
        "Give decode a worker for each core. Predicted: 1.90 times the throughput (1.70 to 2.10)."
    )  # fmt: skip
    assert (told.settings, told.command) == (("decode.workers=4",), "")
    little = Remedy(says="more receivers", ratio=Estimate(0.9, 1.0, 1.1))
    assert make_advice(diagnose("DECODE", "it decodes", [little]), "It.").to_do.startswith("Nothing that headrace")
    assert make_advice(diagnose("DECODE", "it decodes", [little, DECIDE]), "It.").to_do == "Run each stage alone."
    healthy = make_advice(diagnose("HEALTHY", "no single resource limits", [WORKERS], None), "Nothing limits the run.")
    assert (healthy.says, healthy.to_do) == ("Nothing limits the run. Nothing needs to be done.", "")


def test_the_page_shows_advice_with_its_reasons_folded(runs: Path) -> None:
    """The reason stands in a fold, the command as one can be copied."""
    found = Finder([runs]).look()
    advice = {found.records[0].id: Advice(says="What limits it is not known.", why=LONG, command="headrace profile it")}
    page = render_board("team", found, advice, time.time(), script=raw("0"))
    assert "What limits it is not known. <code>headrace profile it</code><details>" in page
    assert page.index("<details>") < page.index(LONG)


# --- comparisons, reviews, loops


def make_comparison(ratio: float) -> ComparisonDocument:
    """Return a comparison that says something."""
    sides = [Side(name=name, pipeline="jobs:pipeline", plan_id="p") for name in ("before.toml", "after.toml")]
    return ComparisonDocument(
        a=sides[0], b=sides[1], metric="throughput", unit="1/s", higher_is_better=True, paired=True, num_pairs=8,
        ratio=ratio, ratio_low=ratio - 0.1, ratio_high=ratio + 0.1, margin=0.02, budget=None, verdict="better",
        is_regression=False, pairs_needed=None, says=("B is faster than A",),
    )  # fmt: skip


def test_comparisons_in_files_are_found(tmp_path: Path) -> None:
    """What `compare -o` and `gate -o` write, by its schema; other JSON files are none of ours."""
    compared = make_comparison(1.4)
    gate = GateDocument(verdict="passed", max_slowdown=0.05, seconds=9.0, says="it may pass", comparison=compared)
    (tmp_path / "compared.json").write_bytes(encode_document(compared, indent=True))
    (tmp_path / "gate.json").write_bytes(encode_document(gate))
    (tmp_path / "labels.json").write_text('{"a": "headrace.other/1"}')
    (tmp_path / "cut.json").write_bytes(encode_document(compared)[:100])
    records = {record.name: record for record in Finder([tmp_path]).look().records}
    assert set(records) == {"compared.json", "gate.json", "cut.json"}
    assert records["cut.json"].trouble
    assert records["gate.json"].comparison == compared
    assert "A is before.toml, B is after.toml. B is faster than A." in texts(list(records.values()))["What was"]
    page = render_board("team", Finder([tmp_path]).look(), {}, time.time())
    assert page.count('<span class="badge ok">better</span>') == 2


def test_of_a_folder_full_of_json_files_the_newest_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data set may have a file for each image, and a board looks every few seconds."""
    monkeypatch.setattr(finding, "_MOST_FILES", 3)
    opened: list[str] = []

    def note(path: str) -> bytes:
        opened.append(path)
        return b""

    monkeypatch.setattr(finding, "read_head", note)
    for number in range(9):
        (tmp_path / f"{number}.json").write_text("{}")
    assert not Finder([tmp_path]).look().records
    assert len(opened) == 3


def test_a_review_shows_what_waits_and_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody has looked, and after each verdict; the board itself begins no round."""
    monkeypatch.chdir(tmp_path)
    folder = make_folder(tmp_path / "team" / "reviews", {"cat": 20})
    make_room(folder, 2**30, 30.0, time.time())  # as a run does when it begins
    finder = Finder([tmp_path / "team"])
    (record,) = finder.look().records
    assert "nobody has looked at them yet" in record.facts["says"]
    assert record.command == "headrace review team/reviews"
    assert not list(folder.glob("rounds/*"))
    assert "headrace review team/reviews" in texts([record])["What should"]
    review = Review(folder)
    item = review.list_open(1)[0]
    review.record([VerdictLine(item=item, verdict="correct")])
    (record,) = finder.look().records
    assert record.facts["says"].startswith("1 of ")
    assert "100.0% of" in record.facts["says"]


def test_a_loop_says_how_far_it_has_come(tmp_path: Path) -> None:
    """In a sentence: what was asked, whether it is met, and what came of it."""
    asked = LoopAsked(pipeline="jobs:pipeline", source="", goals=("throughput=100/s",), rate=100.0)
    document = LoopDocument(
        headrace_version="0", asked=asked, folder="loop", ledger="l", budget_seconds=None, stopped="goal met",
        is_met=True, throughput_before=98.6, throughput_after=127.0, ratio=Estimate(1.29, 1.31, 1.36),
        plan_file="loop/plan.toml", says=("the goals are met; 6 steps in 3.5 min",),
    )  # fmt: skip
    assert describe_loop(document) == (
        "jobs:pipeline, asked for throughput=100/s: met; 98.6/s before, 127/s after; x1.31 (1.29 to 1.36) by blocks in turn; "
        "the goals are met; 6 steps in 3.5 min"
    )
    page = render_loop(document, describe_loop(document))
    assert "The goals are met" in page
    assert "headrace ledger rollback loop/plan.toml" in page
    going = describe_loop(LoopDocument(headrace_version="0", asked=asked, folder="l", ledger="l", budget_seconds=None))
    assert going == "jobs:pipeline, asked for throughput=100/s; not ended yet, 0 steps done"

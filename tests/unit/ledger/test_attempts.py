"""Attempts are kept for good; decisions are a stack that can be taken back step by step."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import LedgerError
from headrace.cli import main
from headrace.ledger import database
from headrace.ledger.ledger import Ledger
from headrace.runs.formats.events import Event
from headrace.runs.formats.ledger import LedgerDocument
from headrace.runs.formats.optimization import Artifact, Asked, Attempt, Expected
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.variants import Gate, ValidationDocument, VariantSide


def make_attempt(**fields: Any) -> Attempt:
    """Return an attempt; keywords replace fields."""
    side = VariantSide(name="net.onnx@onnx", variant={"engine": "onnx"}, open_seconds=0.1)
    gate = Gate(name="parity", outcome="rejected", says="relative L2 0.4 | too far")
    known: dict[str, Any] = {
        "model": "ab" * 32, "technique": "int8", "kind": "lossy", "hypothesis": "is faster", "candidate": "int8.onnx@onnx",
        "settings": {"artifact": "int8.onnx", "engine": "onnx", "threads": 1, "options": {}},
        "artifact": Artifact(sha256="cd" * 32, file="int8.onnx", num_bytes=25), "verdict": "reject", "gate": "parity",
        "says": "relative L2 0.4 | too far", "speedup": Estimate(1.9, 2.0, 2.1), "seconds": 3.0, "key": "k1",
        "validation": ValidationDocument(
            a=side, b=side, verdict="reject", says="no", gates=(gate,), batch=1, golden="noise", golden_sha256="ef" * 32,
            num_items=64,
        ),
    }  # fmt: skip
    return Attempt(**{**known, **fields})


WITH_GOLDEN = Asked(max_drop=0.01, alpha=0.05, golden="held_out", golden_sha256="ef" * 32)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """An empty ledger in a file."""
    with Ledger(tmp_path / "ledger.sqlite") as made:
        yield made


def command(ledger: Ledger, *arguments: str) -> int:
    """Run `headrace ledger`."""
    return main(["ledger", *arguments, "--ledger", str(ledger.path)])


def test_an_attempt_comes_back_whole(ledger: Ledger) -> None:
    """By its id, by its key, and in lists, the newest first."""
    written = ledger.attempts.write_attempt(make_attempt())
    ledger.attempts.write_attempt(make_attempt(technique="bf16", key="k2"))
    assert written.id == "a1"
    assert ledger.attempts.attempt("a1") == written
    assert ledger.attempts.recall("k1") == written
    assert ledger.attempts.recall("k3") is None
    assert [one.id for one in ledger.attempts.attempts()] == ["a2", "a1"]
    assert [one.id for one in ledger.attempts.attempts(technique="int")] == ["a1"]
    for wrong in ("a9", "p1", "a", "ax"):
        with pytest.raises(LedgerError):
            ledger.attempts.attempt(wrong)


def test_uses_of_a_golden_set_are_counted(ledger: Ledger) -> None:
    """Only where it judged the accuracy."""
    ledger.attempts.write_attempt(make_attempt())
    ledger.attempts.write_attempt(make_attempt(drop=Estimate(0.0, 0.001, 0.002)))
    assert ledger.attempts.golden_uses("ef" * 32) == 1


def test_attempts_and_decisions_cannot_be_changed(ledger: Ledger, tmp_path: Path) -> None:
    """Not even past headrace."""
    ledger.attempts.write_attempt(make_attempt())
    ledger.attempts.accept(tmp_path / "plan.toml", "version = 1\n", why="better")
    with sqlite3.connect(ledger.path) as connection:
        for statement in ("DELETE FROM attempts", "UPDATE decisions SET why = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="only ever added"):
                connection.execute(statement)


def test_decisions_are_taken_back_one_by_one(ledger: Ledger, tmp_path: Path) -> None:
    """To the Plan before, and at last to none."""
    plan = tmp_path / "plan.toml"
    ledger.attempts.accept(plan, "one", why="first")
    ledger.attempts.accept(plan, "two", why="second")
    ledger.attempts.rollback(plan)
    assert plan.read_text() == "one"
    ledger.attempts.accept(plan, "three", why="third")
    ledger.attempts.rollback(plan, why="slower in production")
    assert plan.read_text() == "one"
    assert ledger.attempts.rollback(plan).after is None
    assert not plan.exists()
    with pytest.raises(LedgerError, match="nothing to take back"):
        ledger.attempts.rollback(plan)
    assert [one.action for one in ledger.attempts.decisions()] == [
        "rollback", "rollback", "accept", "rollback", "accept", "accept",
    ]  # fmt: skip


def test_a_file_that_somebody_changed_is_not_lost(ledger: Ledger, tmp_path: Path) -> None:
    """Only with --force."""
    plan = tmp_path / "plan.toml"
    ledger.attempts.accept(plan, "one", why="first")
    plan.write_text("mine")
    with pytest.raises(LedgerError, match="--force"):
        ledger.attempts.rollback(plan)
    assert plan.read_text() == "mine"
    ledger.attempts.rollback(plan, force=True)
    assert not plan.exists()
    assert ledger.attempts.decisions()[0].before == "mine"


def test_a_file_has_one_name(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another folder, and by a relative way, it is the same decision."""
    (tmp_path / "sub").mkdir()
    ledger.attempts.accept(tmp_path / "plan.toml", "one", why="first")
    monkeypatch.chdir(tmp_path / "sub")
    ledger.attempts.rollback(Path("../plan.toml"))
    assert not (tmp_path / "plan.toml").exists()


def test_two_rollbacks_at_once_take_back_two(ledger: Ledger, tmp_path: Path) -> None:
    """One after the other, whoever comes first."""
    plan = tmp_path / "plan.toml"
    for text in ("one", "two", "three"):
        ledger.attempts.accept(plan, text, why=text)
    with Ledger(ledger.path) as other, ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(one.attempts.rollback, plan) for one in (ledger, other)]:
            done.result()
    assert plan.read_text() == "one"


def test_what_cannot_be_written_is_not_decided(ledger: Ledger, tmp_path: Path) -> None:
    """A folder in the file's place: an error, and no decision."""
    (tmp_path / "plan.toml").mkdir()
    with pytest.raises(LedgerError, match=r"plan\.toml"):
        ledger.attempts.accept(tmp_path / "plan.toml", "one", why="first")
    assert ledger.attempts.decisions() == []


def test_a_ledger_of_before_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with predictions alone takes attempts after it was opened."""
    with monkeypatch.context() as before:
        before.setattr(database, "LEDGER", dataclasses.replace(database.LEDGER, migrations=database.MIGRATIONS[:1]))
        database.connect(tmp_path / "old.sqlite").close()
    with Ledger(tmp_path / "old.sqlite") as ledger:
        assert ledger.attempts.write_attempt(make_attempt()).id == "a1"


def test_the_commands_show_and_take_back(ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """List, show, why-not, render and rollback say what was tried and who decided."""
    ledger.attempts.write_attempt(make_attempt())
    plan = tmp_path / "plan.toml"
    ledger.attempts.accept(plan, '[model]\nartifact = "int8.onnx"\n', attempt_id="a1", why="twice as fast")
    for arguments, expected in (
        (("list",), "reject (parity)"), (("list",), "twice as fast"), (("show", "a1"), "relative L2 0.4"),
        (("why-not", "int8"), "too far"), (("render",), "| a1 |"), (("list", "--json"), '"attempts"'),
        (("show", "a1", "--plan"), 'artifact = "int8.onnx"'),
    ):  # fmt: skip
        assert command(ledger, *arguments) == 0
        assert expected in capsys.readouterr().out
    assert command(ledger, "rollback", str(plan), "--why", "too slow") == 0
    assert "too slow" in capsys.readouterr().out
    assert not plan.exists()
    assert command(ledger, "rollback", str(plan)) == 2
    assert command(ledger, "why-not", "pruning") == 2


def test_a_ledger_without_events_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds stays readable, and events are written beside it."""
    with monkeypatch.context() as before:
        before.setattr(database, "LEDGER", dataclasses.replace(database.LEDGER, migrations=database.MIGRATIONS[:2]))
        with Ledger(tmp_path / "old.sqlite") as ledger:
            ledger.attempts.write_attempt(make_attempt(drop=Estimate(0.0, 0.001, 0.002)))
    with Ledger(tmp_path / "old.sqlite") as ledger:
        assert ledger.events.write(Event(kind="validation", says="alike", golden_sha256="ef" * 32)).id == "e1"
        assert ledger.attempts.attempt("a1").technique == "int8"
        assert ledger.attempts.golden_uses("ef" * 32) == 2


def test_events_are_found_by_what_they_are_about(ledger: Ledger) -> None:
    """By kind, by the beginning of a technique, by attempt; the newest first, and none can be changed."""
    for event in (
        Event(kind="skip", technique="int8", says="no data"), Event(kind="skip", technique="bf16", says="no flags"),
        Event(kind="replay", technique="int8", attempt="a1", says="the same"),
    ):  # fmt: skip
        ledger.events.write(event)
    assert [one.id for one in ledger.events.events()] == ["e3", "e2", "e1"]
    assert [one.says for one in ledger.events.events("skip", technique="int")] == ["no data"]
    assert [one.kind for one in ledger.events.events(attempt="a1")] == ["replay"]
    with sqlite3.connect(ledger.path) as connection, pytest.raises(sqlite3.IntegrityError, match="only ever added"):
        connection.execute("DELETE FROM events")


def test_why_not_answers_for_what_was_never_tried(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """With the reason, told once, and what would change it; an unknown technique is told what is known."""
    for _ in range(2):
        ledger.events.write(Event(kind="skip", technique="int8", says="it needs data", would_change="give --data"))
    assert command(ledger, "why-not", "int8") == 0
    told = capsys.readouterr().out
    assert told.count("int8 was not tried: it needs data") == 1
    assert told.startswith("e2, ")
    assert "what would change it: give --data" in told
    assert command(ledger, "why-not", "pruning") == 2
    assert "it knows int8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "int8-equalized"),
        ({"technique": "bf16"}, "whether it matters"),
        ({"technique": "shadow", "gate": "shadow", "verdict": "inconclusive", "drop": None}, "more traffic"),
        ({"gate": "speed"}, "--again"),
        ({"verdict": "inconclusive", "says": "not asked on the golden set: 8 were already; faster"}, "--budget"),
        ({"verdict": "inconclusive", "drop": None}, "(--golden), and a gain"),
        ({"verdict": "inconclusive", "drop": None, "asked": WITH_GOLDEN}, "change it: a gain in speed that is sure"),
        ({"verdict": "inconclusive", "drop": Estimate(0.0, 0.001, 0.009)}, "more golden items"),
        ({"verdict": "accept", "gate": None}, None),
    ],
)
def test_why_not_says_what_would_change_it(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], expected: str | None
) -> None:
    """By the gate that turned it down, or what left it open; nothing of what was accepted."""
    ledger.attempts.write_attempt(make_attempt(**fields))
    assert command(ledger, "why-not", fields.get("technique", "int8")) == 0
    told = capsys.readouterr().out
    assert ("int8-equalized" in told) == (expected == "int8-equalized")
    assert (expected is None) == ("what would change it" not in told)
    assert (expected or "") in told


def test_an_attempt_says_what_it_was_judged_by(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """Machine, versions, sets with their hashes, settings; in `show`, and once for all alike in `render`."""
    asked = Asked(
        max_drop=0.01, alpha=0.00625, pipeline="jobs:pipeline", data="train", data_sha256="12" * 32, golden="held_out",
        golden_sha256="ef" * 32, versions={"openvino": "2026.1"}, machine="AMD EPYC (AuthenticAMD 26/2/1), 2 cores",
    )  # fmt: skip
    for _ in range(2):
        ledger.attempts.write_attempt(make_attempt(asked=asked, hardware="0123456789ab"))
    wanted = (
        "AMD EPYC (AuthenticAMD 26/2/1)",
        "0123456789ab",
        "openvino 2026.1",
        "train (sha256 1212",
        "1 points of top1",
    )
    for arguments in (("show", "a1"), ("render",)):
        assert command(ledger, *arguments) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert all(one in told for one in wanted), told
    assert "- a2, a1: machine: AMD" in told


def test_a_list_of_one_pipeline_says_what_it_leaves_out(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """Attempts whose sets it prepared are shown; the others are counted."""
    ledger.attempts.write_attempt(make_attempt(asked=Asked(max_drop=0.01, alpha=0.05, pipeline="jobs:pipeline")))
    ledger.attempts.write_attempt(make_attempt())
    assert command(ledger, "list", "--pipeline", "jobs:pipeline") == 0
    told = capsys.readouterr()
    assert "a1" in told.out
    assert "a2" not in told.out
    assert "not shown: 1 attempt, 0 decisions" in told.err


def test_what_was_expected_stands_beside_what_came(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """In `show` with its source and the pipeline's share; in lists and `render` as a range."""
    predicted = Expected(low=2.5, high=8.3, source="ResNet-18", whole_low=1.1, whole_high=1.25, run="runs/today")
    ledger.attempts.write_attempt(make_attempt(predicted=predicted))
    ledger.events.write(Event(kind="pipeline", attempt="a1", says="end to end 1.2 times", prediction="p4"))
    wanted = {
        ("show", "a1"): (
            "expected: 2.5 to 8.3 times as fast by itself, as measured on ResNet-18; 1.10 to 1.25 times the throughput",
            "measured by itself 2.00 (1.90 to 2.10), below what was expected", "(predicted by p4)",
        ),
        ("list",): ("2.5 to 8.3",), ("render",): ("| 2.5 to 8.3 | 2.00",),
    }  # fmt: skip
    for arguments, parts in wanted.items():
        assert command(ledger, *arguments) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert all(part in told for part in parts), told


def test_an_event_is_shown_by_its_id(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it is about; one that is not there is refused."""
    ledger.events.write(Event(kind="replay", technique="int8", attempt="a1", verdict="accept", says="the same"))
    assert command(ledger, "show", "e1") == 0
    told = capsys.readouterr().out
    assert "replay of int8 of a1, accept" in told
    assert "the same" in told
    assert command(ledger, "show", "e2") == 2
    assert "has no event e2" in capsys.readouterr().err
    assert command(ledger, "show", "e1", "--plan") == 2


def write_events(ledger: Ledger) -> None:
    """Write one attempt, two times the same reason not to try a technique, and a measured pipeline."""
    ledger.attempts.write_attempt(make_attempt())
    for _ in range(2):
        ledger.events.write(Event(kind="skip", technique="fp16", says="no instructions for it"))
    ledger.events.write(Event(kind="pipeline", attempt="a1", technique="int8", says="end to end 1.2 times"))


def test_a_list_says_how_many_events_there_are(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """And how to see them; a ledger without any says nothing of them."""
    ledger.attempts.write_attempt(make_attempt())
    assert command(ledger, "list") == 0
    assert "event" not in capsys.readouterr().out
    write_events(ledger)
    assert command(ledger, "list") == 0
    told = capsys.readouterr().out
    assert told.endswith(f"3 events (2 skips, 1 pipeline): headrace ledger list --events --ledger {ledger.path}\n")
    assert "no instructions" not in told


def test_events_are_listed_where_they_are_asked_for(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest first, the same reason once with all its ids, and how many are left out."""
    write_events(ledger)
    assert command(ledger, "list", "--events") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.index("pipeline of int8 of a1: end to end 1.2 times") < told.index(
        "skip of fp16: no instructions for it"
    )
    assert told.count("no instructions") == 1
    assert "e2, e1, " in told
    assert "3 events" not in told
    assert command(ledger, "list", "--events", "-n", "1") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "skip of fp16" not in told
    assert "1 of 3 events (2 skips, 1 pipeline): headrace ledger list --events -n 3" in told


def test_events_of_one_pipeline_are_those_of_its_attempts(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """What is about no attempt may be of any pipeline; as a document likewise."""
    write_events(ledger)
    asked = Asked(max_drop=0.01, alpha=0.05, pipeline="jobs:pipeline")
    ledger.attempts.write_attempt(make_attempt(asked=asked))
    ledger.events.write(Event(kind="replay", attempt="a2", says="it came out the same"))
    assert command(ledger, "list", "--events", "--pipeline", "jobs:pipeline", "--json") == 0
    document = msgspec.json.decode(capsys.readouterr().out, type=LedgerDocument)
    assert [event.id for event in document.events] == ["e4"]

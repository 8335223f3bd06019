"""The ledger as a file that can be trusted: what it keeps, what it refuses, and what it says about files that are none."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import LedgerError
from headrace.ledger import database
from headrace.ledger.ledger import Ledger, hardware_fingerprint, ledger_path
from headrace.runs.formats.prediction import PredictionDocument, TrackRecord
from headrace.runs.formats.profile import Estimate
from headrace.runs.hardware import Hardware
from headrace.testing import FakeClock

Make = Callable[..., PredictionDocument]
MEASURED = Estimate(1.15, 1.25, 1.35)


def test_a_prediction_comes_back_whole(ledger: Ledger, make_document: Make) -> None:
    """What is read is what was written, with the id that it was given."""
    document = make_document()
    id_ = ledger.write_prediction(document)
    entry = ledger.prediction(id_)
    assert id_ == "p1"
    assert entry.document == msgspec.structs.replace(document, id="p1")
    assert entry.change.cost_curves == {"process": {1: 0.5, 8: 1.5}}
    assert (entry.predicted, entry.measured, entry.error) == (Estimate(1.1, 1.2, 1.3), None, None)


def test_predictions_are_listed_newest_first(ledger: Ledger, make_document: Make) -> None:
    """All, the last ones, those of a pipeline, and those with and without a measurement."""
    for pipeline in ("a:a", "b:b", "a:a"):
        ledger.write_prediction(make_document(pipeline=pipeline))
    ledger.write_measurement("p2", MEASURED, "by hand")
    assert [entry.id for entry in ledger.predictions()] == ["p3", "p2", "p1"]
    assert [entry.id for entry in ledger.predictions(last=1)] == ["p3"]
    assert [entry.id for entry in ledger.predictions(pipeline="a:a")] == ["p3", "p1"]
    assert [entry.id for entry in ledger.predictions(measured=True)] == ["p2"]
    assert [entry.id for entry in ledger.predictions(measured=False, last=1)] == ["p3"]
    assert ledger.predictions(last=0) == []


def test_a_measurement_stands_beside_its_prediction(ledger: Ledger, clock: FakeClock, make_document: Make) -> None:
    """The error is that of the middle, signed; the moment is when measuring began."""
    id_ = ledger.write_prediction(make_document())
    clock.advance(60)
    ledger.write_measurement(id_, MEASURED, "24 pairs")
    entry = ledger.prediction(id_)
    assert entry.measured is not None
    assert (entry.measured.ratio, entry.measured.how) == (MEASURED, "24 pairs")
    assert entry.measured.measured_unix_seconds == entry.created_unix_seconds + 60
    assert entry.error == pytest.approx(1.2 / 1.25 - 1)


def test_a_measurement_is_written_once(ledger: Ledger, make_document: Make) -> None:
    """The same ratio again is no second one; another ratio is refused, and the first stays."""
    id_ = ledger.write_prediction(make_document())
    ledger.write_measurement(id_, MEASURED, "24 pairs")
    ledger.write_measurement(id_, MEASURED, "24 pairs")
    with pytest.raises(LedgerError, match=r"p1 was measured before: 1\.25 .*24 pairs"):
        ledger.write_measurement(id_, Estimate(1.1, 1.2, 1.3), "once more")
    entry = ledger.prediction(id_)
    assert entry.measured is not None
    assert entry.measured.ratio == MEASURED


def test_what_was_measured_before_is_no_prediction(ledger: Ledger, clock: FakeClock, make_document: Make) -> None:
    """A measurement that began before the prediction was written is refused, however old the document claims to be."""
    began = clock.unix_seconds()
    clock.advance(30)
    id_ = ledger.write_prediction(make_document(created_unix_seconds=1.0))
    with pytest.raises(LedgerError, match="30 s after this measurement began"):
        ledger.write_measurement(id_, MEASURED, "two runs", measured_at=began)
    assert ledger.prediction(id_).measured is None
    ledger.write_measurement(id_, MEASURED, "two runs", measured_at=began + 30)


def test_a_refused_prediction_is_not_written(ledger: Ledger, make_document: Make) -> None:
    """Nothing was said, so nothing can be scored."""
    with pytest.raises(LedgerError, match=r"no throughput was predicted .*too few"):
        ledger.write_prediction(make_document(ratio=None))
    assert ledger.predictions() == []


@pytest.mark.parametrize("bad", [Estimate(0.0, 1.0, 1.0), Estimate(1.2, 1.1, 1.3), Estimate(1.0, 1.0, float("inf"))])
def test_a_ratio_must_be_one(ledger: Ledger, make_document: Make, bad: Estimate) -> None:
    """Zero, an interval without its middle and infinity are mistakes of the caller."""
    with pytest.raises(ValueError, match="a ratio needs"):
        ledger.write_prediction(make_document(ratio=bad))
    id_ = ledger.write_prediction(make_document())
    with pytest.raises(ValueError, match="a ratio needs"):
        ledger.write_measurement(id_, bad, "by hand")


@pytest.mark.parametrize("bad", ["p9", "x1", "p", "", "p-1", "p1.5", "p²", "p99999999999999999999"])
def test_ids_that_do_not_exist(ledger: Ledger, make_document: Make, bad: str) -> None:
    """Unknown and malformed ids are refused in words."""
    ledger.write_prediction(make_document())
    with pytest.raises(LedgerError, match="ledger list"):
        ledger.prediction(bad)
    with pytest.raises(LedgerError, match="ledger list"):
        ledger.write_measurement(bad, MEASURED, "by hand")


@pytest.mark.parametrize("statement", ["UPDATE predictions SET mid = 9", "DELETE FROM predictions",
                                       "UPDATE measurements SET mid = 9", "DELETE FROM measurements"])  # fmt: skip
def test_entries_are_only_ever_added(ledger: Ledger, make_document: Make, statement: str) -> None:
    """The file itself refuses to change or remove an entry."""
    ledger.write_measurement(ledger.write_prediction(make_document()), MEASURED, "by hand")
    with sqlite3.connect(ledger.path) as connection, pytest.raises(sqlite3.DatabaseError, match="only ever added"):
        connection.execute(statement)
    connection.close()


def test_the_record_is_of_the_newest_measured(ledger: Ledger, make_document: Make) -> None:
    """`last` counts measured predictions; a pipeline may be asked for alone."""
    assert ledger.track_record() == TrackRecord(num=0)
    for ratio, pipeline in ((2.0, "a:a"), (1.25, "b:b"), (1.5, "a:a"), (3.0, "a:a")):
        ledger.write_prediction(make_document(ratio=Estimate(ratio, ratio, ratio), pipeline=pipeline))
    for number in (1, 2, 3):
        ledger.write_measurement(f"p{number}", Estimate(1.25, 1.25, 1.25), "by hand")
    assert ledger.track_record().max_error == pytest.approx(0.6)
    assert ledger.track_record(last=2).max_error == pytest.approx(0.2)
    assert ledger.track_record(pipeline="b:b").max_error == 0


def test_the_file_comes_from_option_variable_or_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this order; an empty variable counts as none."""
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    assert ledger_path() == Path("runs/ledger.sqlite")
    monkeypatch.setenv("HEADRACE_LEDGER", "")
    assert ledger_path() == Path("runs/ledger.sqlite")
    monkeypatch.setenv("HEADRACE_LEDGER", "/data/all.sqlite")
    assert ledger_path() == Path("/data/all.sqlite")
    assert ledger_path("mine.sqlite") == Path("mine.sqlite")


def test_looking_makes_no_file(tmp_path: Path) -> None:
    """Where there is no ledger, `must_exist` says so and leaves nothing behind."""
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger.open(tmp_path / "runs" / "ledger.sqlite", must_exist=True)
    assert list(tmp_path.iterdir()) == []


def test_folders_above_are_made(tmp_path: Path, make_document: Make) -> None:
    """The first prediction makes the folder too."""
    with Ledger.open(tmp_path / "a" / "b" / "ledger.sqlite") as ledger:
        assert ledger.write_prediction(make_document()) == "p1"


def test_a_text_file_is_no_ledger(tmp_path: Path) -> None:
    """What is no SQLite file is refused and left as it is."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 100)
    with pytest.raises(LedgerError, match="damaged or not a ledger"):
        Ledger(path)
    assert path.read_text() == "not a database, " * 100


def test_another_database_is_no_ledger(tmp_path: Path) -> None:
    """A SQLite file of something else is refused and left as it is."""
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE cats (name TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="SQLite file of something else"):
        Ledger(path)
    assert path.read_bytes() == before


def test_a_newer_file_asks_for_a_newer_headrace(tmp_path: Path) -> None:
    """A version that this headrace does not know is refused."""
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LedgerError, match="version 99; this headrace knows versions up to 3: update headrace"):
        Ledger(path)


def test_an_older_file_is_brought_up_to_date(
    tmp_path: Path, make_document: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later migration is applied once, and what was written before stays."""
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        ledger.write_prediction(make_document())
    later = ("CREATE TABLE variants (name TEXT)",)
    newer = dataclasses.replace(database.LEDGER, migrations=(*database.MIGRATIONS, later))
    monkeypatch.setattr(database, "LEDGER", newer)
    for _ in range(2):
        with Ledger(path) as ledger:
            assert [entry.id for entry in ledger.predictions()] == ["p1"]
        with contextlib.closing(database.connect(path)) as connection:
            assert connection.execute("SELECT count(*) FROM variants").fetchone() == (0,)
            assert connection.execute("PRAGMA user_version").fetchone() == (len(database.LEDGER.migrations),)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statements are one transaction: the file stays in the version that it had."""
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    with monkeypatch.context() as patch:
        bad = ("CREATE TABLE half (name TEXT)", "CREATE TABLE nonsense")
        patch.setattr(database, "LEDGER", dataclasses.replace(database.LEDGER, migrations=(*database.MIGRATIONS, bad)))
        with pytest.raises(LedgerError):
            Ledger(path)
    Ledger(path).close()
    with contextlib.closing(database.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    assert "half" not in names
    assert "predictions" in names


def test_a_damaged_file_is_named(tmp_path: Path, make_document: Make) -> None:
    """A file whose pages are overwritten raises LedgerError, whichever call meets them."""
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        for _ in range(50):
            ledger.write_prediction(make_document())
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="damaged"), Ledger(path) as ledger:
        ledger.predictions()


def test_a_folder_that_takes_no_files(make_document: Make) -> None:
    """Where nothing can be made, the message names the options that help."""
    with pytest.raises(LedgerError, match="--ledger FILE or HEADRACE_LEDGER"):
        Ledger("/proc/nothing/ledger.sqlite")
    with pytest.raises(LedgerError, match="--ledger FILE or HEADRACE_LEDGER"):
        Ledger("/proc/ledger.sqlite")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """A path that is a folder, or lies below a file, is refused."""
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be made"):
        Ledger(tmp_path / "file" / "ledger.sqlite")


def test_a_closed_ledger_says_so(tmp_path: Path) -> None:
    """Using it after closing is an error in words; closing twice is none."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="was closed"):
        ledger.predictions()


def test_fingerprints_tell_machines_apart() -> None:
    """Cores, family and flags count; the kernel's version, and what memory it leaves, do not."""
    machine = Hardware(cpu_model="X", num_cores=2, kernel="6.1")
    assert hardware_fingerprint(machine) == hardware_fingerprint(msgspec.structs.replace(machine, kernel="6.2"))
    assert hardware_fingerprint(machine) != hardware_fingerprint(msgspec.structs.replace(machine, num_cores=4))
    assert len(hardware_fingerprint(machine)) == 12
    for change in ({"cpu_id": "AuthenticAMD 25/1/1"}, {"cpu_flags": ("amx_int8",)}, {"memory_bytes": 8 * 2**30}):
        assert hardware_fingerprint(machine) != hardware_fingerprint(msgspec.structs.replace(machine, **change)), change
    built_in = [msgspec.structs.replace(machine, memory_bytes=16 * 2**30 - kept) for kept in (300_000_000, 301_000_000)]
    assert hardware_fingerprint(built_in[0]) == hardware_fingerprint(built_in[1])


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, '"\\ud800"', "{", "7"])
def test_an_entry_of_a_stranger_is_named(tmp_path: Path, make_document: Make, text: str) -> None:
    """Text that no JSON reader takes, or that is of another form, is a LedgerError."""
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        ledger.write_prediction(make_document())
    connection = sqlite3.connect(path)
    with connection:  # the file is the stranger's, who need not keep its rule that predictions stand
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE predictions SET change = ?", (text,))
    connection.close()
    with pytest.raises(LedgerError, match="cannot be read"), Ledger(path) as ledger:
        ledger.predictions()

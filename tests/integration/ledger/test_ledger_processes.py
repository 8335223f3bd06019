"""One ledger and several processes: they write side by side, open a new file at once, and are killed in the middle."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.ledger.ledger import Ledger
from headrace.runs.formats.prediction import PredictionDocument

#: Writes predictions, and for each its measurement, and prints the id of every pair that was confirmed.
_WRITING = """
import sys
from headrace.ledger.ledger import Ledger
from headrace.runs.formats.prediction import Change, PredictedMetric, PredictionDocument
from headrace.runs.formats.profile import Estimate
path, count, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
nothing = PredictedMetric(base=None, predicted=None, ratio=None)
ledger = Ledger(path)
for number in range(count):
    ratio = Estimate(1.0, 1.0 + number / 1000, 9.0)
    document = PredictionDocument(
        created_unix_seconds=1.0, headrace_version="0", run=name, pipeline="a:a", plan_id="", change=Change(),
        says=f"{name} {number} " + "x" * 3000, plan={}, throughput=PredictedMetric(base=1.0, predicted=None, ratio=ratio),
        latency_p50=nothing, latency_p99=nothing, cpu_per_item=nothing, bound_ratio=None, naive_ratio=None, limit_after="",
        simulated_base=None,
    )
    id_ = ledger.write_prediction(document)
    ledger.write_measurement(id_, ratio, "by itself")
    print(id_, flush=True)
ledger.close()
"""


def _start(path: Path, count: int, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITING, str(path), str(count), name], stdout=subprocess.PIPE, text=True
    )


def test_processes_make_and_fill_a_file_at_once(tmp_path: Path) -> None:
    """Four processes that begin without a file lose nothing and share no id."""
    path = tmp_path / "runs" / "ledger.sqlite"
    writers = [_start(path, 25, f"writer{number}") for number in range(4)]
    ids = " ".join(writer.communicate()[0] for writer in writers).split()
    assert [writer.returncode for writer in writers] == [0] * 4
    assert len(ids) == len(set(ids)) == 100
    with Ledger(path) as ledger:
        assert {entry.id for entry in ledger.predictions(measured=True)} == set(ids)
        assert ledger.track_record(last=1000).max_error == 0


@pytest.mark.smoke
def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    """Two writers are killed at work: each confirmed entry is there whole, and the file takes new ones."""
    path = tmp_path / "ledger.sqlite"
    writers = [_start(path, 1_000_000, f"writer{number}") for number in range(2)]
    confirmed: list[str] = []
    for writer in writers:
        assert writer.stdout is not None
        confirmed += [writer.stdout.readline().strip() for _ in range(20)]
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
    for writer in writers:
        confirmed += (writer.communicate()[0] or "").split()
    assert [writer.returncode for writer in writers] == [-signal.SIGKILL] * 2
    with Ledger(path) as ledger:
        found = {entry.id: entry for entry in ledger.predictions()}
        assert set(confirmed) <= set(found)
        assert all(found[id_].measured is not None for id_ in confirmed)
        # At most what a writer had in hand: a prediction that it did not get to measure.
        assert sum(entry.measured is None for entry in found.values()) <= 2
        assert all(ledger.prediction(id_).document is not None for id_ in found)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    after = _start(path, 1, "after")
    assert after.communicate()[0].strip() not in found


_KILLED_INSIDE = """
import os, signal, sys
from headrace.ledger import database
from pathlib import Path
connection = database.connect(Path(sys.argv[1]))
with database.transaction(connection):
    connection.execute("INSERT INTO predictions VALUES (NULL, 1, '', '', '', '', '{}', '', 1, 1, 1, '', '{}')")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_transaction_that_was_cut_off_leaves_nothing(tmp_path: Path) -> None:
    """SIGKILL between the insert and its commit: no entry, and no lock that would keep others out."""
    path = tmp_path / "ledger.sqlite"
    ended = subprocess.run([sys.executable, "-c", _KILLED_INSIDE, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    with Ledger(path) as ledger:
        assert ledger.predictions() == []
    assert _start(path, 1, "after").communicate()[0].strip() == "p1"


def test_reading_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    """While another process holds the write lock, the list is there at once."""
    path = tmp_path / "ledger.sqlite"
    assert _start(path, 3, "first").communicate()[0].split() == ["p1", "p2", "p3"]
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with Ledger(path, must_exist=True) as ledger:
        assert len(ledger.predictions()) == 3
        assert isinstance(ledger.prediction("p1").document, PredictionDocument)
    holder.execute("ROLLBACK")
    holder.close()

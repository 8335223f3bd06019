"""What was written stays whole: processes are killed while they write, and disks are full."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.ledger.ledger import Ledger
from headrace.runs.reader import read_run
from headrace.sources.sqlite_queue import SqliteQueue

#: Writes a run folder as fast as it can: run.json, span files of ten spans, lines of errors; says what is on disk for certain.
_WRITING = """
import sys
from headrace.base.records import Job, Outcome, OutcomeKind, Span
from headrace.runs.errors_log import ErrorLog
from headrace.runs.run_folder import RunFolder
from headrace.runs.span_files import SpanWriter
from headrace.testing import FakeClock
folder = RunFolder.create(sys.argv[1], pipeline="a:a")
spans, errors = SpanWriter(folder.spans, rotate_seconds=1000), ErrorLog(folder.path / "errors.jsonl", max_lines=10**9)
def span(number):
    return Span("item", f"job-{number}", None, "work", "p", "h", 1, "t", 0, 1, "ok", *range(number, number + 5), None, None,
        None, None, None, 0, 1, 1, None, 1)
class Failed:
    id, attempt = "job", 1
for number in range(10**9):
    spans.stage_finished([span(number * 10 + place) for place in range(10)])
    spans.flush()
    errors.job_settled(Failed, Outcome(OutcomeKind.REJECTED, "x" * 500))
    folder.update(warnings=[f"{number}", "y" * (number * 997 % 20_000)])
    print(number, flush=True)
"""


def test_a_run_folder_after_kills(tmp_path: Path) -> None:
    """Ten writers are killed at random: run.json is one that was written, and all confirmed spans and lines are there."""
    moments = random.Random(7)
    for kill in range(10):
        path = tmp_path / str(kill)
        writer = subprocess.Popen([sys.executable, "-c", _WRITING, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(moments.uniform(0, 0.05))  # the random moment: nothing is waited for
        writer.send_signal(signal.SIGKILL)
        confirmed = int(([*writer.stdout.read().split()] or ["0"])[-1])
        writer.wait()
        writer.stdout.close()
        run = read_run(path)
        assert int(run.info.warnings[0]) in (confirmed, confirmed + 1)
        assert len(run.spans()) in ((confirmed + 1) * 10, (confirmed + 2) * 10)
        assert len(run.errors()) in (confirmed + 1, confirmed + 2)
        (problem,) = run.problems  # no damaged file among them
        assert "still running" in problem


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    """A line that was being written when the power went is counted, and those before it are read."""
    from headrace.runs.run_folder import RunFolder

    RunFolder.create(tmp_path / "run").finish("finished")
    line = json.dumps(
        {"job_id": "1", "attempt": 1, "outcome": "rejected", "reason": "é", "settled_unix_seconds": 1.0},
        ensure_ascii=False,
    ).encode()
    for cut in range(1, len(line)):
        (tmp_path / "run" / "errors.jsonl").write_bytes(line + b"\n" + line[:cut])
        run = read_run(tmp_path / "run")
        assert [found.job_id for found in run.errors()] == ["1"]
        assert run.problems == ["1 lines of errors.jsonl cannot be read and are left out"]


_FILLING = """
import resource, sys
from pathlib import Path
kind, path = sys.argv[1:]
if kind == "queue":
    from headrace.sources.sqlite_queue import SqliteQueue
    queue = SqliteQueue(path)
    write = lambda number: queue.send([b"%d " % number + b"x" * 3000])
else:
    from headrace.ledger.ledger import Ledger
    ledger = Ledger(path)
    plan = Path(path).with_name("plan.toml")
    write = lambda number: ledger.attempts.accept(plan, f"# {number} " + "x" * 3000, why=str(number))
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    for number in range(10_000):
        write(number)
        print(number, flush=True)
except Exception as error:
    print(type(error).__name__, error, file=sys.stderr)
"""


@pytest.mark.parametrize("kind", ["queue", "ledger"])
def test_a_full_disk_leaves_what_was_confirmed(tmp_path: Path, kind: str) -> None:
    """When no more can be written the caller gets headrace's error; everything confirmed is there, whole, and it can go on."""
    path = tmp_path / "file.sqlite"
    ended = subprocess.run(
        [sys.executable, "-c", _FILLING, kind, str(path)], capture_output=True, text=True, check=True
    )
    confirmed = [int(number) for number in ended.stdout.split()]
    assert 20 < len(confirmed) < 9_999
    assert ended.stderr.startswith("QueueUnavailable" if kind == "queue" else "LedgerError")
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    if kind == "queue":
        queue = SqliteQueue(path)
        bodies = [int(message.body.split()[0]) for message in queue.receive(10_000)]
        assert bodies == confirmed
        assert queue.send([b"more"])
        queue.close()
    else:
        with Ledger(path) as ledger:
            assert [int(decision.why) for decision in reversed(ledger.attempts.decisions())] == confirmed
            assert (tmp_path / "plan.toml").read_text().startswith("# ")
            ledger.attempts.accept(tmp_path / "plan.toml", "version = 1\n", why="more")

"""The file of jobs that did not succeed."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base.error_origin import Origin
from headrace.base.errors import RunFolderError
from headrace.base.records import DELIVERED, Job, Outcome, OutcomeKind
from headrace.runs.errors_log import MAX_REASON_CHARACTERS, ErrorLog
from headrace.runs.file_names import ERRORS_FILE
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunFolder

REJECTED = Outcome(OutcomeKind.REJECTED, "decode: not an image")


def test_failures_are_written_at_once(folder: RunFolder) -> None:
    """Each delivery that failed has its line before the log is closed; one that succeeded, or waits for its turn, has none."""
    log = ErrorLog(folder.path / ERRORS_FILE)
    log.job_settled(Job("a", b""), DELIVERED)
    log.job_settled(Job("full", b""), Outcome(OutcomeKind.RETURNED, "share.full: it waits", spared=True))
    log.job_settled(Job("b", b"", attempt=3), REJECTED)
    [line] = read_run(folder.path).errors()
    log.close()
    assert (line.job_id, line.attempt, line.outcome, line.reason) == ("b", 3, "rejected", "decode: not an image")


def test_the_file_is_capped_and_the_rest_counted(folder: RunFolder) -> None:
    """After the last line allowed, failures are counted by outcome, and the reader says so."""
    log = ErrorLog(folder.path / ERRORS_FILE, max_lines=2)
    for number in range(5):
        log.job_settled(Job(str(number), b""), REJECTED)
    log.job_settled(Job("r", b""), Outcome(OutcomeKind.RETRY, "later"))
    log.close()
    log.close()
    run = read_run(folder.path)
    assert log.not_written == {"rejected": 3, "retry": 1}
    assert [line.job_id for line in run.errors()] == ["0", "1"]
    assert any("3 rejected, 1 retry" in problem for problem in run.problems)


def test_hostile_text_stays_one_line(folder: RunFolder) -> None:
    """New lines, text that is not Unicode and very long reasons each give one line that can be read."""
    log = ErrorLog(folder.path / ERRORS_FILE)
    log.job_settled(Job("a\udce9", b""), Outcome(OutcomeKind.REJECTED, "one\ntwo\u2028three"))
    log.job_settled(Job("b", b""), Outcome(OutcomeKind.REJECTED, "x" * 10_000))
    log.close()
    first, second = read_run(folder.path).errors()
    assert first.job_id == "a\\udce9"
    assert first.reason == "one\ntwo\u2028three"
    assert MAX_REASON_CHARACTERS < len(second.reason) < MAX_REASON_CHARACTERS + 50


def test_a_damaged_line_is_left_out_and_counted(folder: RunFolder) -> None:
    """A line cut in the middle costs itself and is a problem."""
    log = ErrorLog(folder.path / ERRORS_FILE)
    log.job_settled(Job("a", b""), REJECTED)
    log.close()
    with (folder.path / ERRORS_FILE).open("ab") as file:
        file.write(b'{"job_id": "b", "att')
    run = read_run(folder.path)
    assert [line.job_id for line in run.errors()] == ["a"]
    assert any("1 lines" in problem for problem in run.problems)


def test_full_disk_is_said_once_and_counted(folder: RunFolder) -> None:
    """A disk that takes no more costs lines, never the run."""
    program = """
import logging, resource, sys
from pathlib import Path
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.runs.errors_log import ErrorLog
logging.basicConfig(format="%(message)s")
log = ErrorLog(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
for number in range(10):
    log.job_settled(Job(str(number), b""), Outcome(OutcomeKind.REJECTED, "no image"))
log.close()
print(sum(log.not_written.values()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder.path / ERRORS_FILE)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    kept = len(read_run(folder.path).errors())
    assert kept >= 1
    assert int(done.stdout) == 10 - kept
    assert done.stderr.count("cannot be written") == 1


def test_a_folder_that_is_missing_is_a_clear_error(tmp_path: Path) -> None:
    """A log that cannot be opened says where it should have been."""
    with pytest.raises(RunFolderError, match="missing"):
        ErrorLog(tmp_path / "missing" / ERRORS_FILE)


def test_nothing_is_logged_while_all_is_well(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    """Writing failures of jobs is no failure of the log."""
    log = ErrorLog(folder.path / ERRORS_FILE)
    with caplog.at_level(logging.DEBUG):
        log.job_settled(Job("b", b""), REJECTED)
        log.close()
    assert not caplog.records


def test_a_traceback_is_written_once(folder: RunFolder) -> None:
    """Every line has type and place of the user's error; the frames stand in the first of each."""
    log = ErrorLog(folder.path / ERRORS_FILE)
    for number in range(3):
        origin = Origin("ValueError", "jobs.py", 3 + number // 2, "process", "  File ...")
        log.job_settled(Job(str(number), b""), Outcome(OutcomeKind.RETRY, "no", origin=origin))
    log.close()
    found = [line.origin for line in read_run(folder.path).errors()]
    assert [origin and (origin.place, origin.traceback) for origin in found] == [
        ("jobs.py:3", "  File ..."),
        ("jobs.py:3", ""),
        ("jobs.py:4", "  File ..."),
    ]


def test_lines_of_earlier_versions_are_read(folder: RunFolder) -> None:
    """Lines without the fields that came later are whole."""
    (folder.path / ERRORS_FILE).write_text(
        '{"job_id":"a","attempt":1,"outcome":"rejected","reason":"no","settled_unix_seconds":1.0}\n'
    )
    [line] = read_run(folder.path).errors()
    assert (line.job_id, line.origin, line.excused) == ("a", None, False)

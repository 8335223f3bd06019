"""The log for programs takes all that goes to stderr, and every line of it is JSON."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest

from headrace.base.log_events import EVENTS, FIELDS, EventText, event_fields, trace_id
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.monitor.log.job_events import JobEvents
from headrace.monitor.log.json_log import JsonLog

logger = logging.getLogger("headrace")


class Opened:
    """A log on a pipe."""

    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        self._before, sys.stderr = sys.stderr, os.fdopen(writing, "w")
        self.log = JsonLog(has_thread=False)

    def lines(self) -> list[dict[str, Any]]:
        """Close it and return its lines."""
        self.log.close()
        sys.stderr.close()
        sys.stderr = self._before
        with os.fdopen(self._reading, "rb") as stream:
            found = [json.loads(line) for line in stream]
        assert all({"time", "level", "event", "message", "process"} <= set(line) for line in found)
        assert all(line["event"] in EVENTS for line in found)
        assert all(set(line) <= {"time", "level", "event", "message", *FIELDS} for line in found)
        return found


def test_a_record_becomes_a_line() -> None:
    """With the fields of its event, and without those that have no value."""
    opened = Opened()
    logger.warning("no %d", 7, extra=event_fields("job_rejected", code="decode.bomb", stage="decode", task=""))
    (line,) = opened.lines()
    assert {name: line[name] for name in line if name != "time"} == {
        "level": "warning", "event": "job_rejected", "message": "no 7", "code": "decode.bomb", "stage": "decode",
        "process": os.getpid(),
    }  # fmt: skip


def test_what_users_log_appears() -> None:
    """Under the one name for it, whatever they call their event; below the level nothing does."""
    opened = Opened()
    logging.getLogger("mine").info("bought\n%s", "\x1b[2J", extra={"event": "purchase"})
    logging.getLogger("mine").debug("too little")
    (line,) = opened.lines()
    assert (line["event"], line["logger"], line["message"]) == ("log", "mine", "bought\n\x1b[2J")


def test_a_line_that_cannot_be_made_is_said() -> None:
    """The caller goes on."""

    class Angry:
        def __str__(self) -> str:
            raise OSError("no")

    opened = Opened()
    opened.log.emit(logging.makeLogRecord({"msg": "%s", "args": (Angry(),)}))
    opened.log.emit(logging.makeLogRecord({"msg": "%d", "args": ("not a number",)}))
    assert [line["message"] for line in opened.lines()] == [
        "a line could not be made: OSError",
        "a line could not be made: TypeError",
    ]


def test_what_is_printed_becomes_lines() -> None:
    """Parts of lines are joined; a traceback is one line, and so is a warning."""
    opened = Opened()
    print("one", "two", file=sys.stderr)
    sys.stderr.write("three")
    try:
        raise ValueError("four")
    except ValueError:
        sys.stderr.write("\n")
        traceback.print_exc()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("five", stacklevel=1)
    print("six", end="", file=sys.stderr)
    lines = opened.lines()
    assert [line["event"] for line in lines] == ["stderr", "stderr", "stderr", "warning", "stderr"]
    assert [line["message"] for line in lines][:2] == ["one two", "three"]
    assert lines[2]["message"].startswith("Traceback")
    assert lines[2]["message"].endswith("ValueError: four")
    assert "five" in lines[3]["message"]
    assert lines[4]["message"] == "six"


def test_an_error_has_its_frames() -> None:
    """Of `logger.exception`, in one line."""
    opened = Opened()
    try:
        raise ValueError("here")
    except ValueError:
        logger.exception("it failed")
    (line,) = opened.lines()
    assert line["message"] == "it failed"
    assert line["traceback"].endswith("ValueError: here")


def test_a_flood_is_bounded_and_counted() -> None:
    """However many failures there are: a few lines for each code, and the number of the others."""
    opened = Opened()
    observer, number = JobEvents(), 10_000
    outcome = Outcome(OutcomeKind.REJECTED, "decode: item a: decode.bomb: too big")
    for count in range(number):
        observer.job_settled(Job("a", b""), outcome)
        if count % 1_000 == 0:
            observer.job_settled(Job("a", b""), Outcome(OutcomeKind.REJECTED, "decode: item a: decode.header: bad"))
    lines = opened.lines()
    assert sum(line.get("more", 1) for line in lines if line["code"] == "decode.bomb") == number
    assert sum(line["code"] == "decode.header" for line in lines) == 10
    assert len(lines) < 50
    assert lines[-1]["message"].startswith("and 9,980 more like this in the last")


def test_how_jobs_end() -> None:
    """Each outcome has its event, with the job it is about; what was delivered has none."""
    opened = Opened()
    job = Job(
        "7", b"", task="faces", attributes={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    )
    job.plan_id = "abc"
    observer = JobEvents()
    for kind in OutcomeKind:
        observer.job_settled(job, Outcome(kind, "faces.process: item 7: ValueError: no"))
    job.lost = True
    observer.job_settled(job, Outcome(OutcomeKind.RETURNED, "late"))
    lines = opened.lines()
    assert [line["event"] for line in lines] == [
        "job_rejected", "job_dead_lettered", "job_retried", "job_returned", "lease_lost",
    ]  # fmt: skip
    assert [line["level"] for line in lines] == ["warning", "error", "warning", "info", "warning"]
    for line in lines:
        assert (line["job"], line["task"], line["attempt"], line["plan"]) == ("7", "faces", 1, "abc")
        assert line["trace"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert {line["stage"] for line in lines[:4]} == {"faces.process"}


@pytest.mark.parametrize(
    "given", [None, 7, "", "00-xyz-00f067aa0ba902b7-01", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "-" * 10_000]
)
def test_a_bad_trace_is_none(given: Any) -> None:
    """Senders write what they like."""
    assert trace_id({"traceparent": given}) == ""


def test_what_people_are_told_is_an_event() -> None:
    """A line of a command is a notice or an error, or the event that it says it is."""
    opened = Opened()
    opened.log.tell("headrace: no such file", logging.ERROR)
    opened.log.tell("listening", logging.INFO)
    opened.log.tell(EventText("worker 1 died", "worker_died", logging.ERROR, worker=1, code="SIGKILL"), logging.WARNING)
    lines = opened.lines()
    assert [(line["level"], line["event"], line["message"]) for line in lines] == [
        ("error", "error", "no such file"),
        ("info", "notice", "listening"),
        ("error", "worker_died", "worker 1 died"),
    ]
    assert (lines[2]["worker"], lines[2]["code"]) == (1, "SIGKILL")


def test_the_guide_lists_all_events_and_fields() -> None:
    """Each with its meaning, as the table has it."""
    page = (Path(__file__).parents[4] / "docs" / "guides" / "logs.md").read_text(encoding="utf-8")
    for name, meaning in {**EVENTS, **FIELDS}.items():
        assert f"| `{name}` | {meaning} |" in page


def test_the_code_uses_known_events_alone() -> None:
    """A name that is not in the table would be a `log` line."""
    source = Path(__file__).parents[4] / "src" / "headrace"
    text = "\n".join(file.read_text(encoding="utf-8") for file in source.rglob("*.py"))
    used = set(re.findall(r'event_fields\(\s*"(\w+)"', text)) | set(re.findall(r'"event": "(\w+)"', text))
    assert len(used) > 8
    assert used <= set(EVENTS)

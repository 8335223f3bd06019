"""A line is JSON whatever is in it, has no secret, moves no cursor, and fits a pipe."""

import json
from typing import Any

import pytest

from headrace.base.log_events import FIELDS
from headrace.monitor.log.line import MOST_BYTES, make_line

HOSTILE = [
    "a\nb\r\nc\x00\x1b[31m\x9b2J\u202e\u2028\u2029\x85",
    "\ud800 lone \udfff",
    '"quotes" \\ back',
    "x" * 1_000_000,
    "\x1b" * 100_000,
    "\U0001f600" * 50_000,
    "\ud800" * 50_000,
    ("no space" * 3_000) + "\n" + "tail",
    "",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_one_line(text: str) -> None:
    """Every field may be hostile at once: the line is one, short, plain JSON."""
    line = make_line(0.0, "info", "log", text, dict.fromkeys(FIELDS, text))
    assert len(line) <= MOST_BYTES
    assert line.decode().splitlines(keepends=True) == [line.decode()]
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in line.decode()[:-1])
    assert set(json.loads(line)) == {"time", "level", "event", "message", *FIELDS}


@pytest.mark.parametrize("value", [10**400, -1, True, 1.5, float("nan"), [1], b"\xff"])
def test_any_value_is_json(value: Any) -> None:
    """Whatever a user's `extra` holds."""
    line = make_line(0.0, "info", "log", "x", dict.fromkeys(FIELDS, value))
    assert len(line) <= MOST_BYTES
    json.loads(line, parse_constant=pytest.fail)


def test_what_a_line_says() -> None:
    """Time in UTC with milliseconds, then the fields in their order; what is no field is left out."""
    line = make_line(
        1.5, "error", "job_rejected", "no", {"job": "7", "attempt": 2, "color": "red", "code": "a.b", "task": None}
    )
    assert line == (
        b'{"time": "1970-01-01T00:00:01.500Z", "level": "error", "event": "job_rejected", "message": "no", '
        b'"code": "a.b", "job": "7", "attempt": 2}\n'
    )


def test_the_end_of_a_long_traceback_stays() -> None:
    """Its last line says what happened."""
    frames = "".join(f'  File "a.py", line {number}, in f\n' for number in range(5_000)) + "ValueError: here"
    assert json.loads(make_line(0.0, "error", "log", "x", {"traceback": frames}))["traceback"].endswith(
        "ValueError: here"
    )


@pytest.mark.parametrize("length", [10, 500, 5_000, 8_150, 20_000])
def test_no_cut_shows_half_of_a_secret(length: int) -> None:
    """A text is cut after secrets were taken out, or between words."""
    text = "a " * (length // 2) + "https://user:SECRETSECRET@h/?sig=SECRETSECRET " + "b " * length
    assert b"SECRET" not in make_line(0.0, "info", "log", text, {"job": text})

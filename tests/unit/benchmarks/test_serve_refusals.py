"""How long refusals took within the server, as its benchmark reads it from outside."""

from __future__ import annotations

from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.serve.refusals import Histograms, milliseconds, read_histograms, watch
from headrace.serve.http.connection import Connection
from headrace.serve.http.front import Front
from headrace.serve.http.reading import RequestReader
from headrace.serve.http.request import Answer
from headrace.serve.http.routes import Routes


def test_what_was_counted_meanwhile_is_told(tmp_path: Path) -> None:
    """Of what came before nothing is; each figure is at most a twentieth too high."""
    file = tmp_path / "refusals"
    found = Histograms(file)
    for series in ("seen", "read"):
        found.note(series, 900_000_000)
    before = read_histograms(file)
    for number in range(1, 101):
        found.note("seen", number * 1_000_000)
        found.note("read", number * 1_000)
    told = milliseconds(before, read_histograms(file))
    assert told["seen"]["p50_ms"] == pytest.approx(50, rel=0.06)
    assert told["seen"]["p99_ms"] == pytest.approx(99, rel=0.06)
    assert told["read"]["p99_ms"] == pytest.approx(0.099, rel=0.06)


def test_nothing_has_no_figure_and_extremes_are_counted(tmp_path: Path) -> None:
    """Less than a microsecond, and more than a day."""
    file = tmp_path / "refusals"
    found, before = Histograms(file), read_histograms(file)
    assert milliseconds(before, before)["read"] == {"p50_ms": None, "p99_ms": None}
    found.note("read", 0)
    found.note("read", 10**15)
    assert sum(read_histograms(file)["read"]) == 2


def test_a_watched_front_answers_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its thread answers and what another does; the refusals of both are counted."""
    for owner, name in ((RequestReader, "_begin_request"), (Connection, "_answer_now")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # watching replaces them for good
    file = tmp_path / "refusals"
    watch(file)
    routes = Routes()
    routes.add("GET", "/here", lambda request: Answer(429))
    routes.add("GET", "/elsewhere", lambda request: Thread(target=request.answer, args=(Answer(503),)).start())
    routes.add("GET", "/fine", lambda request: Answer(200))
    with closing(Front(routes)) as front:
        front.start()
        connection = HTTPConnection(*front.address, timeout=30)
        found = []
        for path in ("/here", "/elsewhere", "/fine", "/here"):
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            found.append(answer.status)
        connection.close()
    assert found == [429, 503, 200, 429]
    assert {series: sum(counts) for series, counts in read_histograms(file).items()} == {"seen": 3, "read": 3}

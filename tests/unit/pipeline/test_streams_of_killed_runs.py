"""What became of live streams is in the run folder while the run goes on, for the case that it is killed."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import headrace as hr
from headrace.base.plan import Plan
from headrace.base.stream_tally import StreamTally
from headrace.pipeline import execute
from headrace.runs.reader import read_run
from headrace.sources.items import Items


class Cameras(Items):
    """Values of which a camera sent ten."""

    def tallies(self) -> Sequence[StreamTally]:
        """Return what it counted of it."""
        tally = StreamTally("gate", began=time.monotonic())
        for _ in range(10):
            tally.count("decoded")
        return [tally]


def test_a_run_that_goes_on_has_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look into the folder from within a stage finds them, and the run as running: so does who kills it then."""
    monkeypatch.setattr(execute, "SpanWriter", functools.partial(execute.SpanWriter, rotate_seconds=0.01))
    found = []

    def look(value: int) -> int:
        deadline = time.monotonic() + 20
        while not (info := read_run(tmp_path / "run").info).streams and time.monotonic() < deadline:
            time.sleep(0.01)
        found.append((info.status, [(one.name, one.counts["decoded"]) for one in info.streams]))
        return value

    pipeline = hr.Pipeline(Cameras([1]), stages=[hr.stage("look", look)], delivery=hr.collect())
    hr.run(pipeline, Plan(), output=tmp_path / "run")

    assert found == [("running", [("gate", 10)])]
    assert [one.name for one in read_run(tmp_path / "run").info.streams] == ["gate"]

"""Live streams that are not alike: one that stands still, and one that is set back or late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.base.records import StreamRecord
from headrace.cli.diagnosis_text import as_text
from headrace.cli.profile_text import as_text as profile_as_text
from headrace.cli.streams_text import streams_text
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.streams import stream_accounts
from headrace.diagnose.verdict import streams
from headrace.diagnose.verdict.proposal import Proposal
from headrace.report.page import render_report
from headrace.runs.formats.diagnosis import VerdictClass


def stream(name: str, **changes: Any) -> StreamRecord:
    """Return a stream that came at 25 frames a second for 60 s, of which 5 were wanted and answered."""
    values: dict[str, Any] = {
        "name": name, "seconds": 60.0, "counts": {"decoded": 1500, "given": 300, "skipped_fps": 1200},
        "ended": {"delivered": 300}, "connections": 1, "age_p50_seconds": 0.05, "age_p99_seconds": 0.1,
        "jitter_p50_seconds": 0.001, "jitter_p99_seconds": 0.004, "stalls": 0, "stalled_seconds": 0.0,
        "longest_stall_seconds": 0.0,
    }  # fmt: skip
    return StreamRecord(**(values | changes))


FROZEN = stream("yard", stalls=2, stalled_seconds=30.0, longest_stall_seconds=21.0, connections=3)
STARVED = stream("yard", ended={"delivered": 60}, counts={"decoded": 1500, "skipped_fps": 1200, "dropped_newer": 240})
LATE = stream("yard", age_p50_seconds=0.4)
FAST = stream("fast", counts={"decoded": 1500, "dropped_newer": 1200}, ended={"delivered": 300})


@pytest.fixture
def propose(facts_of: Any, pipe: Any, made: Any) -> Any:
    """Return what makes proposals of streams."""

    def of(*records: StreamRecord, **changes: Any) -> list[Proposal]:
        changes["streams"] = list(records)
        return list(streams.rules(facts_of(pipe(stages=[made(name="look")], changes=changes))))

    return of


def test_a_stream_that_stands_still_is_the_verdict(make_run: Any, pipe: Any, made: Any) -> None:
    """All that came was done, and yard was away half of the time: SOURCE (stall), which is named and shown."""
    run = make_run(
        pipe(
            stages=[made(name="look", cpu=0.002)],
            arrivals=np.arange(400) * 0.02,
            receiving={"calls": 400, "jobs": 400, "asked": 400, "call_seconds": 7.9, "empty_call_seconds": 0.0},
            changes={"streams": [stream("gate"), FROZEN], "pipeline": "jobs.py:pipeline"},
        )
    )
    found = diagnosis_document(Analysis(run))
    assert found.first.title == "SOURCE (stall)"
    assert "yard brought nothing for 30.0 s of 60.0 s" in found.first.says
    assert found.first.remedies[-1].command == "headrace run jobs.py:pipeline --live-page 8001"
    assert found.runner_up is not None
    assert found.runner_up.verdict is VerdictClass.ARRIVAL_LIMITED
    text = as_text(found)
    assert "yard    25.0     5.0       5.0        0  50.0 ms  100 ms  4.00 ms   30.0 s\n" in text
    assert "yard    25.0" in profile_as_text(Analysis(run).profile)
    assert "30.0 s" in render_report(Analysis(run).profile).partition('id="streams"')[2]


def test_streams_that_came_are_no_reason_to_doubt_the_source(make_run: Any, pipe: Any, made: Any) -> None:
    """Cameras keep nothing, so a source that is waited for is neither slow nor STARVED: no more comes."""
    run = make_run(
        pipe(
            stages=[made(name="look", cpu=0.002)],
            arrivals=np.arange(400) * 0.02,
            receiving={"calls": 400, "jobs": 400, "asked": 400, "call_seconds": 7.9, "empty_call_seconds": 0.0},
            changes={"streams": [stream("gate"), stream("yard")]},
        )
    )
    assert diagnosis_document(Analysis(run)).first.verdict is VerdictClass.ARRIVAL_LIMITED


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (STARVED, "yard got answers to 1 of 5 frames a second, and gate to 5"),
        (LATE, "answers of yard are 400 ms old, and those of the others 50.0 ms"),
        (stream("yard", ended={"deadline.passed": 300}, age_p50_seconds=None), "yard got answers to 0 of 5"),
    ],
    ids=["set back", "late", "nothing in time"],
)
def test_a_stream_that_is_set_back_or_late(propose: Any, record: StreamRecord, said: str) -> None:
    """Far fewer answers than another gets, or far older ones; what became of its frames is said."""
    (found,) = propose(stream("gate"), record, stream("door"))
    assert (found.verdict, found.cause) == (VerdictClass.INPUT_SKEW, "streams")
    assert said in found.says
    assert found.share >= 0.5


@pytest.mark.parametrize(
    "records",
    [
        (stream("gate"), stream("yard")),
        (stream("gate", is_urgent=True), STARVED),
        (stream("gate"), FAST),
        (stream("gate", age_p50_seconds=0.03), stream("yard", age_p50_seconds=0.09)),
        (stream("gate", ended={"delivered": 58}, counts=STARVED.counts), STARVED),
        (STARVED,),
        (stream("gate"), stream("yard", counts={"decoded": 30, "skipped_fps": 20}, ended={"delivered": 10})),
        (),
    ],
    ids=[
        "alike",
        "urgent",
        "one sends more than its share",
        "little",
        "all alike",
        "alone",
        "one sends little",
        "none",
    ],
)
def test_what_is_no_skew(propose: Any, records: tuple[StreamRecord, ...]) -> None:
    """Streams that got as much as the others, that asked for no more, or that the user put behind others."""
    assert propose(*records) == []


def test_one_that_never_came(propose: Any) -> None:
    """It has no rate and no age, and the others stood still for a moment alone."""
    never = stream("roof", counts={}, ended={}, connections=0, age_p50_seconds=None, stalls=1, stalled_seconds=60.0)
    (found,) = propose(stream("gate", stalls=1, stalled_seconds=1.5), never)
    assert "roof brought no frame at all" in found.says
    assert "password" in found.advice[0].says


def test_rates_are_of_the_streams_own_time(make_run: Any, pipe: Any, made: Any) -> None:
    """Wanted are those that were not skipped; what was given and failed is told by its reason."""
    record = stream("gate", ended={"delivered": 200, "process": 100}, seconds=50.0)
    (found,) = stream_accounts(make_run(pipe(stages=[made(name="look")], changes={"streams": [record]})).info)
    assert (found.came_per_second, found.wanted_per_second, found.answered_per_second) == (30.0, 6.0, 4.0)
    assert (found.skipped, found.failed) == ({"fps": 1200}, {"process": 100})


def test_some_time_of_a_run_is_not_judged_by_the_whole(propose: Any) -> None:
    """What a flight recorder kept of a minute has the counts of all hours: a stall of this morning is not its trouble."""
    assert not propose(stream("gate"), FROZEN, window="60.0 s of a run, from a flight recorder")


def test_a_table_of_streams_fits_a_terminal() -> None:
    """However long their names are and however much was dropped."""
    records = [
        stream(f"10.20.30.{number}:8554/cameras/main/{number}", age_p99_seconds=0.1234, stalls=1, stalled_seconds=612.3,
               counts={"decoded": 15_000, "dropped_newer": 12_000})
        for number in range(3)
    ]  # fmt: skip
    lines = streams_text(stream_accounts(SimpleNamespace(streams=records)))  # type: ignore[arg-type]
    assert len(lines) == 2 + 1 + 3
    assert max(map(len, lines)) <= 80
    assert [line[:5] for line in lines[3:]] == ["10.20"] * 3

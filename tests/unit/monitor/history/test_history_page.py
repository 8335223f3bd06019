"""The history's page and texts: what they say, and that hostile names stay text."""

from __future__ import annotations

from typing import Any

from headrace.cli.history_text import as_text, line_as_text
from headrace.monitor.history.page import render_history
from headrace.runs.formats.history import (
    Annotation,
    BaselineVerdict,
    HistoryDocument,
    HistoryLine,
    HistoryWindow,
    StageDrift,
    StageWindow,
)

_HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m"


def make_document(**fields: Any) -> HistoryDocument:
    """Return a history with a run, an incident, a decision and a slower stage."""
    line = HistoryLine(
        kind="run", id="h1", began_unix_seconds=1e9, ended_unix_seconds=1e9 + 60, pipeline="jobs:pipeline", plan_id="p1",
        delivered=1234, failed=5, throughput=20.5, latency_p50=0.1, cpu_per_item={"decode": 0.02}, bottleneck="DECODE",
    )  # fmt: skip
    incident = HistoryLine(
        kind="incident", id="h2", began_unix_seconds=1e9 + 100, pipeline="jobs:pipeline", says="the disk was slow"
    )
    drift = StageDrift(
        stage="decode", verdict="slower", ratio=1.12, low=1.08, high=1.16, since_unix_seconds=1e9 + 3600,
        says="decode is slower",
    )  # fmt: skip
    verdict = BaselineVerdict(
        pipeline="jobs:pipeline", plan_id="p1", machine="m", machine_says="a machine", since_unix_seconds=1e9,
        num_reference=0, num_compared=3, stages=(drift,), says="decode is slower",
    )  # fmt: skip
    decision = Annotation(at_unix_seconds=1e9 + 50, id="d3", says="accept plan.toml by ana: faster")
    known = {"file": "history.sqlite", "lines": (incident, line), "baselines": (verdict,), "annotations": (decision,)}
    return HistoryDocument(**{**known, **fields})


def _windows() -> list[tuple[str, HistoryWindow]]:
    sums = {"decode": StageWindow(40, (40.0, *(0.0,) * 27))}
    return [
        ("run", HistoryWindow(began_unix_seconds=1e9 + 10 * at, seconds=10.0, delivered=200, stages=sums))
        for at in range(4)
    ]


def test_the_page_says_first_what_got_slower() -> None:
    """Then what each stage's verdict is, the rates over time with marks, decisions and incidents, and the runs."""
    page = render_history(make_document(), [_windows()])
    assert page.index("1 stage slower than in the baseline") < page.index("decode is slower") < page.index("1,234")
    for text in ("+12.0 %", "the disk was slow", "accept plan.toml by ana", "DECODE", "chart-rate-0"):
        assert text in page


def test_an_empty_history_has_a_page_too() -> None:
    """It says that nothing is known to be slower."""
    page = render_history(HistoryDocument(file="h.sqlite"), [])
    assert "No stage is known to be slower than it was" in page


def test_hostile_names_stay_text() -> None:
    """Whoever names a pipeline, a file or an incident puts no element and no escape sequence into the page."""
    lines = tuple(
        HistoryLine(kind=kind, id="h1", began_unix_seconds=1e9, pipeline=_HOSTILE, says=_HOSTILE, bottleneck=_HOSTILE)
        for kind in ("run", "incident", "restart")
    )
    page = render_history(make_document(file=_HOSTILE, lines=lines, warnings=(_HOSTILE,)), [_windows()])
    assert "<img" not in page
    assert "\x1b" not in page


def test_the_terminal_lists_lines_and_verdicts() -> None:
    """The newest lines, how many are older, and what each stage's verdict is."""
    text = as_text(make_document(), 1)
    assert "h2" in text
    assert "and 1 older line; -n shows more" in text
    assert "decode is slower" in text
    assert as_text(HistoryDocument(file="h.sqlite"), 5).startswith("h.sqlite has no lines yet")


def test_a_line_is_shown_with_all_that_is_known() -> None:
    """What was not measured is a dash."""
    text = line_as_text(make_document().lines[1])
    assert "1,234, 5" in text
    assert "CPU per item, decode" in text
    assert "efficiency" in text

"""The report's section of an incident."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.report.page import render_report
from headrace.runs.formats.incident import ChangeKind, IncidentChange, IncidentDocument, IncidentTrigger, Stretch

_STRETCH = Stretch(
    from_unix_seconds=1.0, to_unix_seconds=9.0, jobs=80, rate=10.0, latency=0.5, p99=None, failed_share=0.0
)
_DOCUMENT = IncidentDocument(
    id="20261123T021407Z-slo", pipeline="m:p", plan_id="p", host="h", process=1, headrace_version="0",
    trigger=IncidentTrigger(kind="slo", says="p99 <= 1 ms is missed"), written_unix_seconds=9.0, incident=_STRETCH,
    baseline=_STRETCH, baseline_source="earlier part of the recording", says="<b>It was</b> slow.", bottleneck="",
    changes=(
        IncidentChange(
            kind=ChangeKind.DOWNLOAD, stage="fetch", says="a download takes 3 s", before=1.0, after=3.0, unit="seconds",
            explains_seconds=2.0, explains_share=0.95, to_do="look at the servers",
        ),
    ),
    unchanged=("arrivals",),
)  # fmt: skip


def test_the_answer_stands_first_and_is_text(documents: Any) -> None:
    """With what changed, its share, and what to do."""
    page = render_report(documents.full_document(), incident=_DOCUMENT)
    first = page.index("<section")
    assert first < page.index('id="incident"') < page.index("</section>", first)
    for text in ("&lt;b&gt;It was&lt;/b&gt; slow.", "download in fetch", "95%", "look at the servers", "arrivals"):
        assert text in page
    assert 'id="incident"' not in render_report(documents.full_document())


def test_what_was_noted_and_lost_is_told(documents: Any) -> None:
    """As on the terminal: the last events, and how much of the recording was damaged."""
    events = tuple(f"plan: number {number}" for number in range(7))
    told = render_report(
        documents.full_document(), incident=msgspec.structs.replace(_DOCUMENT, events=events, damaged_bytes=4_711)
    )
    assert [f"noted: plan: number {number}" in told for number in range(7)] == [False] * 2 + [True] * 5
    assert "4,711 bytes of the recording were damaged" in told


def test_without_a_time_before_the_page_is_made_too(documents: Any) -> None:
    """Nothing is compared then."""
    alone = msgspec.structs.replace(_DOCUMENT, baseline=None, changes=(), unchanged=())
    assert 'id="incident"' in render_report(documents.full_document(), incident=alone)


def test_an_incident_in_which_nothing_got_slower_is_not_called_slow(documents: Any) -> None:
    """Who asks for a snapshot may ask at any time."""
    slower = msgspec.structs.replace(_DOCUMENT, incident=msgspec.structs.replace(_STRETCH, latency=0.6))
    pages = [render_report(documents.full_document(), incident=one) for one in (slower, _DOCUMENT)]
    assert ["Why it was slow" in page for page in pages] == [True, False]
    assert all("headrace · incident of" in page for page in pages)


def test_the_status_of_the_run_is_no_mark_of_an_incident(documents: Any) -> None:
    """It was written while the run went on, which nobody who reads it later wants to know."""
    running = msgspec.structs.replace(documents.full_document(), status="running")
    assert ["run running" in render_report(running, incident=one) for one in (None, _DOCUMENT)] == [True, False]

"""The section that says what limits a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

from headrace.report.page import render_report
from headrace.runs.formats.diagnosis import VerdictClass
from headrace.runs.formats.profile import Estimate


def test_it_is_the_first_section_and_tells_all(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """Verdict, confidence, rule, evidence, remedies, what comes after, bounds, and the page that explains it, in this order."""
    page = read_page(render_report(documents.full_document(), diagnosed=documents.diagnosis_document()))
    assert page.named("section")[0]["id"] == "diagnosis"
    text = page.text[page.text.index("Diagnosis") : page.text.index("1,187", page.text.index("Upper bounds"))]
    told = [
        "DECODE (cpu) in decode", "confidence: medium", "Decode computes 43.1 ms", "headrace profile",
        "headrace explain DECODE", "met: p99 <= 2 s", "The run was not steady", "What to do", "decode.scale=auto", "x1.71",
        "x1.62", "x1.81", "Evidence",
        "✓ for", "✗ against", "not measured", "says nothing", "At least 50% of the service is CPU", "Runner-up: CPU_SATURATION",
        "Next, once this is mended: DEVICE_COMPUTE in process", "Measured 28.4/s", "simulated 28.9/s", "2 workers / 66.3 ms",
    ]  # fmt: skip
    places = [text.find(one) for one in told]
    assert -1 not in places, told[places.index(-1)]
    assert places == sorted(places)


def test_its_numbers_are_exact(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """Gains, intervals, bounds and shares stand in the tables as the document has them."""
    found = documents.diagnosis_document()
    values = set(read_page(render_report(documents.full_document(), diagnosed=found)).values)
    estimate = found.first.remedies[0].ratio
    expected = {estimate.low, estimate.mid, estimate.high, found.throughput, found.simulated_throughput}
    expected |= {bound.throughput for bound in found.bounds} | {one.gain for one in found.candidates}
    expected |= {one.utilization for one in found.candidates if one.utilization is not None}
    assert not expected - values


def test_gains_are_drawn_in_percent(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """A gain of x1.1873 is a bar of 18.73 %, one below 1 goes to the left; at most ten are drawn."""
    found = documents.diagnosis_document()
    many = msgspec.structs.replace(found, candidates=found.candidates * 5)
    page = read_page(render_report(documents.full_document(), diagnosed=many))
    chart = next(one for one in json.loads(page.scripts[0]) if one["id"] == "chart-gains")
    assert chart["option"]["series"][0]["data"][:4] == [18.73, 9.17, 2.11, -0.38]
    assert len(chart["option"]["yAxis"]["data"]) == 10


def test_gains_of_nothing_are_told_and_not_drawn(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """The noise of the arithmetic is no bar."""
    found = documents.diagnosis_document()
    none = tuple(msgspec.structs.replace(one, gain=1 - 1e-14) for one in found.candidates)
    page = read_page(
        render_report(documents.full_document(), diagnosed=msgspec.structs.replace(found, candidates=none))
    )
    assert "chart-gains" not in [one["id"] for one in json.loads(page.scripts[0])]
    assert "By simulation nothing inside the pipeline gives more throughput." in page.text


def test_what_cannot_be_predicted_is_a_dash(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """A remedy without a ratio shows dashes and no number."""
    found = documents.diagnosis_document()
    only = msgspec.structs.replace(found.first, remedies=found.first.remedies[1:])
    text = read_page(
        render_report(documents.full_document(), diagnosed=msgspec.structs.replace(found, first=only))
    ).text
    row = text[text.index("Store images nearer") :][:45]
    assert row.count("\N{EN DASH}") >= 3
    assert "x1" not in row


def test_numbers_that_are_none_are_not_drawn(documents: ModuleType) -> None:
    """NaN and infinity in gains, ratios and bounds become dashes, and the charts stay readable."""
    found = documents.diagnosis_document()
    nan, inf = float("nan"), float("inf")
    remedies = tuple(msgspec.structs.replace(one, ratio=Estimate(nan, inf, None)) for one in found.first.remedies)
    odd = msgspec.structs.replace(
        found,
        first=msgspec.structs.replace(found.first, remedies=remedies),
        candidates=tuple(msgspec.structs.replace(one, gain=nan, utilization=inf) for one in found.candidates),
        bounds=tuple(msgspec.structs.replace(one, throughput=inf) for one in found.bounds),
        throughput=nan,
        simulated_throughput=None,
    )
    made = render_report(documents.full_document(), diagnosed=odd)
    assert not re.search(r">[^<]*\b(nan|inf)\b[^<]*</(td|dd|data|p)>", made)
    assert "Measured \N{EN DASH}, simulated \N{EN DASH}" in made


def test_a_verdict_without_numbers_is_told(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """Where nothing could be simulated there is the reason and the next command, and no empty table or chart."""
    found = documents.diagnosis_document()
    open_ = msgspec.structs.replace(
        found.first, verdict=VerdictClass.INCONCLUSIVE, stage=None, says="12 jobs are too few"
    )
    first = msgspec.structs.replace(open_, cause="", evidence=(), remedies=())
    bare = msgspec.structs.replace(
        found, first=first, runner_up=None, next_bottleneck=None, candidates=(), bounds=(), goals=(), warnings=()
    )
    page = read_page(render_report(documents.full_document(), diagnosed=bare))
    text = page.text[page.text.index("Diagnosis") :]
    assert "INCONCLUSIVE" in text
    assert "12 jobs are too few." in text
    assert not [one for one in json.loads(page.scripts[0]) if one["id"] == "chart-gains"]
    for title in ("What to do", "Evidence", "Upper bounds", "What comes after"):
        assert title not in text


def test_warnings_of_the_profile_are_not_told_twice(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """What stands at the top of the page is left out of the section."""
    document = msgspec.structs.replace(documents.full_document(), warnings=("the run was not steady: it slowed",))
    text = read_page(render_report(document, diagnosed=documents.diagnosis_document())).text
    assert text.lower().count("the run was not steady: it slowed") == 1


def test_a_diagnosis_that_failed_says_why(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """The section has the reason, and the rest of the page is there; without diagnosis there is no section."""
    page = read_page(render_report(documents.full_document(), diagnosed="spans.arrow is cut off"))
    anchors = [section["id"] for section in page.named("section")]
    assert anchors[:2] == ["diagnosis", "stages"]
    assert "Spans.arrow is cut off." in page.text
    assert "diagnosis" not in {
        one["id"] for one in read_page(render_report(documents.full_document())).named("section")
    }

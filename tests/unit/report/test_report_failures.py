"""The report's section of what failed."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.error_origin import Origin
from headrace.report.page import render_report
from headrace.runs.formats.failures import FailureReason, failures_of

ORIGIN = Origin("AttributeError", "jobs.py", 14, "process", '  File "jobs.py", line 14, in process\n    x.men() < 1')


def test_it_stands_first_where_it_matters(documents: Any) -> None:
    """A run in which much failed begins with the reasons; one in which a job of many failed has them further down."""
    document = documents.full_document()
    delivered = document.counters["delivered"]
    many = render_report(document, failed=[FailureReason("process", delivered, "AttributeError: no", origin=ORIGIN)])
    few = render_report(document, failed=[FailureReason("decode.bomb", 1, "too large")])
    first = many.index("<section")
    assert many.index('id="failures"') < many.index("</section>", first)
    assert few.index('id="failures"') > few.index("</section>", few.index("<section"))
    assert 'id="failures"' not in render_report(document)


def test_reason_item_and_lines_are_shown_escaped(documents: Any) -> None:
    """What strangers and the user's code wrote is text, never markup."""
    row = FailureReason("process", 1, "<b>no</b>", first_item="<img src=x>", origin=ORIGIN)
    page = render_report(documents.full_document(), failed=[row])
    assert "&lt;b&gt;no&lt;/b&gt;" in page
    assert "<img src=x>" not in page
    assert "x.men() &lt; 1" in page
    assert "jobs.py:14, in process" in page


@pytest.mark.parametrize("summary", [None, {}, [], {"reasons": 7}, {"reasons": [{"code": 1}]}, "text"])
def test_a_folder_of_a_stranger_says_nothing(summary: Any) -> None:
    """What cannot be understood is left out."""
    assert failures_of(summary) == []


def test_reasons_of_older_folders_are_read() -> None:
    """Rows without the fields that came later are whole, the most frequent first."""
    rows = [{"code": "a.b", "count": 1, "example": "x"}, {"code": "c.d", "count": 3, "example": "y"}]
    assert [(row.code, row.num_deliveries) for row in failures_of({"reasons": rows})] == [("c.d", 3), ("a.b", 1)]

"""One part of the report: a heading, markup, and the charts that stand in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.report.charts import Chart
from headrace.report.markup import Html, tag


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of the report."""

    anchor: str
    title: str
    parts: Sequence[Html]
    """Charts' elements and their tables, in the order of reading."""
    charts: Sequence[Chart] = ()
    """All whose elements are among the parts."""

    def element(self) -> Html:
        """Return the section as markup."""
        return tag("section", tag("h2", self.title), *self.parts, id=self.anchor)

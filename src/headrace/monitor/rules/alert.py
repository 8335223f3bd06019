"""An alert, and the cases that hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Series, and when the alert fires with them."""

    name: str
    series: Mapping[str, str]
    """{series: values, in promtool's notation}."""
    checks: tuple[tuple[int, bool], ...]
    """(minutes after the first sample, whether it fires then)."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the alert, beside `job` and `severity`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """See above."""

    name: str
    """In the rules with `Headrace` before it."""
    expr: str
    severity: str
    """`page`: somebody must look now; `ticket`: this week."""
    summary: str
    """One sentence; may use the labels."""
    cases: tuple[Case, ...]
    minutes: int = 0
    """How long the expression must hold before the alert fires."""
    runbook: str = ""
    """Page; empty: that of its name."""
    case_minutes: int = 1
    """Between two samples of its cases, and two evaluations."""

    @property
    def page(self) -> str:
        """Name of its runbook."""
        return self.runbook or self.name

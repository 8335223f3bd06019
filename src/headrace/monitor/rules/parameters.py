"""What users choose of the rules: objectives, what counts as late, and Prometheus's name of the job."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.base.settings import check
from headrace.monitor.metrics.table import LATENCY_BUCKETS


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleParameters:
    """See above."""

    objective: float = 0.995
    """Share of jobs and requests that must succeed."""
    latency_objective: float = 0.99
    """Share of jobs and requests that must be done within `latency_seconds`."""
    latency_seconds: float = 2.2
    """As good as a bucket of the histograms: the first that is not below counts."""
    late_seconds: float = 900.0
    """Jobs of a queue that wait longer than this are late."""
    job: str = "headrace"
    """`job_name` of the scrape configuration."""
    runbooks: str = "docs/runbooks/"
    """What stands before the name of a runbook's page: a folder, or an address of yours."""

    def __post_init__(self) -> None:
        """Check every value."""
        for name, least in (("objective", 0.97), ("latency_objective", 0.8)):
            check(least <= getattr(self, name) <= 0.9999, name, getattr(self, name), f"{least:.0%} to 99.99%")
        most = LATENCY_BUCKETS[-1]
        check(
            0 < self.latency_seconds <= most, "latency", self.latency_seconds, f"more than 0 s and at most {most:g} s"
        )
        check(60 <= self.late_seconds <= 30 * 86_400, "late", self.late_seconds, "60 s to 30 days")
        expected = "letters, digits and any of _ . : / -"
        check(bool(re.fullmatch(r"[\w.:/-]{1,100}", self.job, re.ASCII)), "job", self.job, expected)
        is_printable = self.runbooks.isprintable() and not set(self.runbooks) & set("{} ")
        check(is_printable, "runbooks", self.runbooks, "a path or an address without spaces and braces")

    @property
    def latency_bucket(self) -> float:
        """The bound that stands for `latency_seconds`."""
        return next(bound for bound in LATENCY_BUCKETS if bound >= self.latency_seconds)

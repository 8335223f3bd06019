"""What stages, delivery and source count, brought together in the run's notes."""

from __future__ import annotations

from typing import Any

import headrace as hr
from headrace.base.records import Job
from headrace.delivery.collect import Collect
from headrace.pipeline.execute import run as execute
from headrace.stages.stage import Stage, StageContext
from headrace.testing import ListSource


class Counting(Stage):
    """Counts its items, in each worker for itself."""

    def open(self, context: StageContext) -> Any:
        """Return what counts."""

        def count(value: Any) -> Any:
            context.count("stage.items")
            return value

        return count


class CountingDelivery(Collect):
    """Counts what it delivers."""

    def open(self, context: Any) -> None:
        """Keep where to count."""
        self.context = context

    def deliver(self, job: Job, result: Any) -> bool:
        """Count one."""
        self.context.count("delivery.items")
        return super().deliver(job, result)


class CountingSource(ListSource):
    """Counts something, too."""

    def notes(self) -> dict[str, int]:
        """Tell it."""
        return {"source.things": 7}


def test_all_notes_are_in_the_counters() -> None:
    """The counters of a run hold what every part counted, workers added up."""
    pipeline = hr.Pipeline(CountingSource(range(20)), stages=[Counting("a")], delivery=CountingDelivery())
    plan = hr.Plan.from_table({"stages": {"a": {"workers": 3}}})
    notes = execute(pipeline, plan).counters.notes
    assert notes == {"stage.items": 20, "delivery.items": 20, "source.things": 7}

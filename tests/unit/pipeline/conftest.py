"""Runs a pipeline over a list of payloads and gathers everything that was said about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.base.observer import Observer
from headrace.base.plan import Plan
from headrace.base.records import BatchFormed, Job, Outcome, OutcomeKind, Span
from headrace.delivery.collect import Collect
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import Measuring, Result
from headrace.pipeline.execute import run as execute
from headrace.testing import ListSource


@dataclass
class Recorder(Observer):
    """Keeps what the runtime tells."""

    spans: list[Span] = field(default_factory=list)
    batches: list[BatchFormed] = field(default_factory=list)
    settled: list[tuple[str, Outcome]] = field(default_factory=list)

    def stage_finished(self, spans: Sequence[Span]) -> None:
        """Keep it."""
        self.spans.extend(spans)

    def batch_formed(self, batch: BatchFormed) -> None:
        """Keep it."""
        self.batches.append(batch)

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Keep it."""
        self.settled.append((job.id, outcome))


@dataclass
class Ran:
    """A finished run and everything that was said about it."""

    result: Result
    source: ListSource
    delivered: list[tuple[str, Any]]
    recorder: Recorder

    @property
    def results(self) -> dict[str, Any]:
        """What was delivered, by job."""
        return dict(self.delivered)

    @property
    def spans(self) -> list[Span]:
        """All spans."""
        return self.recorder.spans

    def reason(self, id_: str) -> str:
        """Why the job's last delivery ended so."""
        return self.source.outcomes[id_][-1].reason

    def ids(self, kind: OutcomeKind) -> set[str]:
        """Jobs that ended so."""
        return self.source.final(kind)


def check_books(ran: Ran) -> None:
    """Every job given out was settled, once each time, and the counters add up."""
    counters = ran.result.counters
    ends = [outcome for outcomes in ran.source.outcomes.values() for outcome in outcomes]
    assert ran.source.in_flight == []
    assert counters.received == len(ends) == len(ran.recorder.settled)
    assert counters.received == (
        counters.delivered
        + counters.rejected
        + counters.dead_lettered
        + counters.retried
        + counters.returned
        + counters.lost
    )
    assert ran.source.closed


@pytest.fixture
def run() -> Callable[..., Ran]:
    """Runs stages (or modules) over payloads under a Plan given as a table, to the end, and checks the books."""

    def run_it(
        stages: Sequence[Any] | None,
        payloads: Sequence[Any],
        plan: dict[str, Any] | None = None,
        *,
        modules: dict[str, Any] | None = None,
        delivery: Any = None,
        source: dict[str, Any] | None = None,
        observers: Sequence[Observer] = (),
        output: Path | None = None,
        limit: int | None = None,
        first_alone: bool = False,
    ) -> Ran:
        given = ListSource(payloads, **(source or {}))
        delivery = delivery or Collect()
        recorder = Recorder()
        table = {"source": {"wait_seconds": 0.05}, **(plan or {})}
        pipeline = Pipeline(given, stages=stages, modules=modules, delivery=delivery)
        result = execute(
            pipeline,
            Plan.from_table(table),
            observers=[recorder, *observers],
            output=output,
            limit=limit,
            measuring=Measuring(first_alone=first_alone),
        )
        ran = Ran(result, given, getattr(delivery, "results", []), recorder)
        check_books(ran)
        return ran

    return run_it

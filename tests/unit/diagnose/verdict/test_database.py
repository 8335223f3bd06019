"""Results that wait for a database: by what their delivery counted."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.records import Counters
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.runs.formats.diagnosis import DiagnosisDocument, VerdictClass


@pytest.fixture
def diagnose(make_run: Any, pipe: Any, made: Any) -> Any:
    """Diagnoses a run of 400 jobs in about a second, with these shares of it in the notes of the delivery."""

    def make(writes: int = 4, settings: tuple[str, ...] = (), **shares: float) -> DiagnosisDocument:
        stages = [made(name="work", cpu=0.0025), made(name="deliver", kind="io", cpu=1e-4, work="deliver")]
        notes = {f"deliver.database_{name}_microseconds": round(share * 1e6) for name, share in shares.items()}
        counters = Counters(received=400, delivered=400, notes=notes | {"deliver.database_writes": writes})
        run = make_run(pipe(stages=stages, settings=list(settings), changes={"counters": counters}))
        return diagnosis_document(Analysis(run))

    return make


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [((), "seconds_per_flush=10"), (("deliver.options.rows_per_flush=100",), "rows_per_flush=1000")],
)
def test_transactions_that_take_the_run_are_a_slow_query(diagnose: Any, settings: tuple[str, ...], remedy: str) -> None:
    """Not the stage whose items wait before it; what to try can be typed: of whichever ends a transaction."""
    found = diagnose(write=0.95, connect=0.001, settings=settings).first
    assert (found.verdict, found.cause, found.stage) == (VerdictClass.DATABASE, "slow query", "deliver")
    assert found.gain is not None
    assert found.gain > 1.15
    assert found.remedies[0].command.endswith(f"--set deliver.options.{remedy}")


def test_waiting_for_a_connection_is_named(diagnose: Any) -> None:
    """All connections are in use: another remedy than for what is slow."""
    found = diagnose(write=0.05, connect=0.1, full=0.8).first
    assert (found.verdict, found.cause) == (VerdictClass.DATABASE, "connections")
    assert found.remedies[0].command.startswith("psql -c")


@pytest.mark.parametrize("shares", [{"write": 0.5, "connect": 0.05}, {}])
def test_a_database_that_keeps_up_is_not_named(diagnose: Any, shares: dict[str, float]) -> None:
    """What is written meanwhile holds up nobody."""
    document = diagnose(**shares)
    named = [one.verdict for one in (document.first, document.runner_up) if one is not None]
    assert VerdictClass.DATABASE not in named

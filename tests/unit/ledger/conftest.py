"""A prediction to write down, and a ledger whose clock a test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.ledger.ledger import Ledger
from headrace.runs.formats.prediction import Change, PredictedMetric, PredictionDocument
from headrace.runs.formats.profile import Estimate
from headrace.testing import FakeClock

_NOTHING = PredictedMetric(base=None, predicted=None, ratio=None, refused="not asked")


@pytest.fixture
def make_document() -> Callable[..., PredictionDocument]:
    """Return a function that makes a prediction; its keywords replace fields."""

    def make(ratio: Estimate | None = Estimate(1.1, 1.2, 1.3), **fields: Any) -> PredictionDocument:  # noqa: B008 - frozen
        known: dict[str, Any] = {
            "created_unix_seconds": 1_800_000_000.0,
            "headrace_version": "0.1.0",
            "run": "first",
            "pipeline": "jobs:pipeline",
            "plan_id": "0123456789ab",
            "change": Change(settings=("fetch.workers=32",), cost_curves={"process": {1: 0.5, 8: 1.5}}),
            "says": "fetch.workers=32",
            "plan": {"version": 1, "stages": {"fetch": {"workers": 32}}},
            "throughput": PredictedMetric(base=10.0, predicted=None, ratio=ratio, refused="" if ratio else "too few"),
            "latency_p50": _NOTHING,
            "latency_p99": _NOTHING,
            "cpu_per_item": _NOTHING,
            "bound_ratio": 1.25,
            "naive_ratio": 2.0,
            "limit_after": "the cores",
            "simulated_base": 9.8,
        }
        return PredictionDocument(**{**known, **fields})

    return make


@pytest.fixture
def clock() -> FakeClock:
    """Return the ledger's clock."""
    return FakeClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: FakeClock) -> Iterator[Ledger]:
    """Return an empty ledger."""
    with Ledger(tmp_path / "ledger.sqlite", clock=clock) as made:
        yield made

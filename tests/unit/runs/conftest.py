"""A run folder and spans to put into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.records import Span
from headrace.runs.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A new run folder."""
    return RunFolder.create(tmp_path / "run", pipeline="app:pipeline")


@pytest.fixture
def make_span() -> Callable[..., Span]:
    """Makes spans that differ in what is given."""

    def make(number: int = 0, **changes: Any) -> Span:
        values: dict[str, Any] = {
            "unit": "item",
            "unit_id": f"job-{number}",
            "parent_id": None,
            "stage": "fetch",
            "plan_id": "p1",
            "host": "h",
            "process": 1,
            "thread": "fetch-0",
            "rank": 0,
            "attempt": 1,
            "outcome": "ok",
            "arrived": number,
            "dequeued": number + 1,
            "started": number + 2,
            "ended": number + 30,
            "put": number + 31,
            "cpu": 5,
            "run_delay": None,
            "batch_id": None,
            "batch_size": None,
            "release_reason": None,
            "queue_depth": 3,
            "bytes_in": 10,
            "bytes_out": 20,
            "shape_key": "uint8 (2, 2, 3)",
        }
        return Span(**(values | changes))

    return make

"""A candidate beside the model in use: it costs no job, whatever it does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.plan import Plan
from headrace.base.protocols import TensorSpec
from headrace.delivery.collect import Collect
from headrace.pipeline.execute import run
from headrace.pipeline.shadow import Shadow
from headrace.testing import ListSource

ITEMS = 600


class Emulated(hr.Module):
    """Calls an emulated device, and answers with the number of its batch's items."""

    input = hr.ArrayInput()

    def load(self, context: Any) -> None:
        """Open the model."""
        self.model_in_use = context.open_model()

    def process(self, batch: np.ndarray) -> Sequence[float]:
        """Return the items themselves."""
        self.model_in_use(batch)
        return [float(value) for value in batch[:, 0]]


class Candidate:
    """A model as a function."""

    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()

    def __init__(self, seconds: float = 0.0, fails: bool = False) -> None:
        self.variant: dict[str, Any] = {"engine": "scripted"}
        self.metadata: dict[str, str] = {}
        self.seen: list[np.ndarray] = []
        self._seconds = seconds
        self._fails = fails

    def __call__(self, batch: Any) -> Any:
        """Answer, slowly or not at all."""
        self.seen.append(batch)
        time.sleep(self._seconds)
        if self._fails:
            raise RuntimeError("no kernel")
        return batch


def shadowed(candidate: Candidate, share: float = 1.0) -> tuple[Shadow, list[tuple[Any, Any]], list[tuple[str, Any]]]:
    """Run beside a candidate; return the shadow, what was compared and what was delivered."""
    compared: list[tuple[Any, Any]] = []
    shadow = Shadow(candidate, lambda a, b, one, other: compared.append((a, b)), share=share)
    delivery = Collect()
    source = ListSource([np.float32([number]) for number in range(ITEMS)])
    settings = ["process.batch=4", 'model.engine="emulated"', "model.options.launch_seconds=0.001"]
    plan = Plan().with_settings([*settings, "run.warm_up=false"])  # it has batches of one item, repeated
    result = run(hr.Pipeline(source, module=Emulated(), delivery=delivery), plan, shadow=shadow)
    assert result.counters.delivered == ITEMS
    assert sorted(value for _, value in delivery.results) == list(range(ITEMS))
    return shadow, compared, delivery.results


def test_it_sees_batches_as_they_were() -> None:
    """Copies: the runtime writes its next batch over the one that it handed over."""
    candidate = Candidate(seconds=0.01)
    shadow, compared, _ = shadowed(candidate)
    assert compared
    assert shadow.num_passed_by > 0
    for batch in candidate.seen:
        assert len(set(batch[:, 0].tolist())) == len(batch)


def test_a_slow_candidate_takes_few_batches() -> None:
    """A tenth of the time; the others pass it by."""
    candidate = Candidate(seconds=0.02)
    shadow, compared, _ = shadowed(candidate, share=0.1)
    assert 1 <= len(compared) < 20
    assert shadow.num_passed_by > 50


def test_a_candidate_that_raises_costs_no_job(caplog: pytest.LogCaptureFixture) -> None:
    """It stops after a few, and says what it was."""
    shadow, compared, _ = shadowed(Candidate(fails=True))
    assert not compared
    assert shadow.failure == "no kernel"
    assert "the shadow stops" in caplog.text

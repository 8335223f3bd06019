"""A candidate beside the model in use: it costs no job, whatever it does."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.plan import Plan
from headrace.base.protocols import TensorSpec
from headrace.delivery.collect import Collect
from headrace.pipeline.execute import run
from headrace.pipeline.shadow import Shadow
from headrace.sources.finite import Entry, FiniteSource

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


class Enough(FiniteSource):
    """Numbers, for as long as the candidate was not called often enough: at the lowest priority it may wait for a core.

    Args:
        candidate: Counts its calls.
        calls: So many are enough.
    """

    def __init__(self, candidate: Candidate, calls: int) -> None:
        super().__init__()
        self._is_enough: Callable[[], bool] = lambda: len(candidate.seen) >= calls

    def entries(self) -> Iterator[Entry]:
        """Return them."""
        for number in itertools.count():
            if number >= ITEMS and self._is_enough():
                return
            yield Entry(str(number), np.float32([number]))


def shadowed(candidate: Candidate, share: float = 1.0, calls: int = 1) -> tuple[Shadow, list[tuple[Any, Any]]]:
    """Run beside a candidate until it was called so often; return the shadow and what was compared."""
    compared: list[tuple[Any, Any]] = []
    shadow = Shadow(candidate, lambda a, b, *_: compared.append((a, b)), share=share)
    delivery = Collect()
    source = Enough(candidate, calls)
    settings = ["process.batch=4", 'model.engine="emulated"', "model.options.launch_seconds=0.001"]
    plan = Plan().with_settings([*settings, "run.warm_up=false"])  # it has batches of one item, repeated
    result = run(hr.Pipeline(source, module=Emulated(), delivery=delivery), plan, beside=shadow)
    assert result.counters.delivered == result.counters.received >= ITEMS
    assert sorted(value for _, value in delivery.results) == list(range(result.counters.delivered))
    return shadow, compared


def test_it_sees_batches_as_they_were() -> None:
    """Copies: the runtime writes its next batch over the one that it handed over."""
    candidate = Candidate(seconds=0.01)
    shadow, compared = shadowed(candidate)
    assert compared
    assert shadow.num_passed_by > 0
    for batch in candidate.seen:
        assert len(set(batch[:, 0].tolist())) == len(batch)


def test_a_slow_candidate_takes_few_batches() -> None:
    """A tenth of the time, so that a rest of nine times as long follows each call; the others pass it by."""
    candidate = Candidate(seconds=0.02)
    began = time.monotonic()
    shadow, compared = shadowed(candidate, share=0.1, calls=2)
    assert 2 <= len(compared) <= 1 + (time.monotonic() - began) / 0.2
    assert shadow.num_passed_by > 50


def test_a_candidate_that_raises_costs_no_job(caplog: pytest.LogCaptureFixture) -> None:
    """It stops after a few, and says what it was."""
    shadow, compared = shadowed(Candidate(fails=True), calls=10)
    assert not compared
    assert shadow.failures.last == "no kernel"
    assert "the shadow stops" in caplog.text

"""The calls of a model that has a canary beside it: whose model answers a batch, and what is done where the canary's fails.

How this works: a batch holds items of one arm. The stable model answers its own; where the canary's breaks (an error, a NaN),
the stable model answers in its place, so that no job is lost by a canary. A batch on which it raises is first halved by the
worker, as any other, until the culprit is alone: so one bad item counts once.

Beside the work a twin runs: a copy of some batches of the stable arm is answered by both models in one thread, one after the
other in an order by chance. So answers are compared item by item and times call by call, on the same batch and at the same
moment, however small the canary's own batches are. Each model is called twice and the second call is timed: the caches are
warm for the model that does the work and cold for the other one, and of a small model that is a third of its time.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

from headrace.base.current_job import hands
from headrace.base.error_origin import text_of
from headrace.base.meaning import Declared
from headrace.base.protocols import Model, TensorSpec
from headrace.pipeline.arms import Arms
from headrace.pipeline.item import Item
from headrace.pipeline.shadow import Shadow


@dataclass(frozen=True, slots=True, kw_only=True)
class Judges:
    """How answers are looked at; a higher folder knows what they mean."""

    has_broken: Callable[[Any], bool]
    """Whether answers hold a NaN or an infinity."""
    find_changed: Callable[[Any, Any, Declared], Sequence[float]]
    """Given the stable model's answers, the canary's, and what is known of them: (items,) 1.0 where the canary's is another.
    Raises ValueError where they cannot be compared: then all are."""


class CanaryCalls:
    """What one slot calls while there is a canary.

    Args:
        model: The canary's.
        arms: Of the run.
        judges: Of answers.
        mark: Entered around each call of the canary's model: who dies within one is known.
        tripped: Called at once when something was seen that rolls the canary back.
        max_slowdown: By how much a call may take longer.
    """

    def __init__(
        self,
        model: Model,
        arms: Arms,
        judges: Judges,
        *,
        mark: AbstractContextManager[object],
        tripped: Callable[[], object],
        max_slowdown: float,
    ) -> None:
        self.model = model
        self._arms = arms
        self._judges = judges
        self.mark = mark
        self._tripped = tripped
        self._twins: Twins | None = None
        self._max_slowdown = max_slowdown

    def start_twins(self, stable: Model) -> Shadow:
        """Return what compares the two beside the work; enter it."""
        self._twins = Twins(stable, self, self._arms, self._judges, self._max_slowdown)
        return self._twins.shadow

    def answer(self, stable: Model, batch: Any, declared: Declared) -> Any:
        """Return the answers to a batch by the model of its arm."""
        items = cast("Sequence[Item]", hands.items)
        arm = items[0].arm if items else None
        if arm is None:
            return stable(batch)
        _note_run(items, arm.plan_id)
        if arm.is_canary:
            return self._answer_canary(stable, batch, items)
        began = time.perf_counter()
        answers = stable(batch)
        if self._judges.has_broken(answers):
            self.note_broken(canary=False)
        if self._twins is not None:
            self._twins.shadow.offer(batch, answers, time.perf_counter() - began, declared)
        return answers

    def _answer_canary(self, stable: Model, batch: Any, items: Sequence[Item]) -> Any:
        try:
            with self.mark:
                answers = self.model(batch)
        except Exception as error:  # engines raise their own types
            if len(items) > 1 and not self._arms.watch.has_tripped:
                raise  # the worker halves it
            rescued = stable(batch)  # whose error counts, if it fails too
            self._note_failed(items, text_of(error))
            return rescued
        if not self._judges.has_broken(answers):
            return answers
        self.note_broken(canary=True)
        for item in items:
            self._arms.rescue(item.root)
        return stable(batch)

    def note_broken(self, *, canary: bool) -> None:
        """Note answers of one of the models that hold a NaN or an infinity."""
        self._arms.watch.note_broken(canary=canary)
        if self._arms.watch.has_tripped:
            self._tripped()

    def _note_failed(self, items: Sequence[Item], why: str) -> None:
        for item in items:
            arm = item.arm
            if arm is not None and arm.counts:
                draw = self._arms.drawn_for(item.job)
                self._arms.watch.note_failed(arm.share, item.job.id, canary=True, why=why, draw=draw)
            self._arms.rescue(item.root)
        if self._arms.watch.has_tripped:
            self._tripped()


class Twins:
    """Lets both models answer copies of batches, at the lowest priority, for a share of the time."""

    #: Of the time, both models together.
    SHARE = 0.2

    def __init__(self, stable: Model, calls: CanaryCalls, arms: Arms, judges: Judges, max_slowdown: float) -> None:
        self.shadow = Shadow(cast(Model, self), self._compare, share=self.SHARE)
        self._stable = stable
        self._calls = calls
        self._arms = arms
        self._judges = judges
        self._most_ratio = 1 + max_slowdown
        self._seconds = (0.0, 0.0)
        self._random = random.Random()

    def __call__(self, batch: Any) -> Any:
        """Return the canary's answers; both are timed."""
        timed: dict[bool, tuple[Any, float]] = {}
        canary_first = self._random.random() < 0.5
        for is_canary in (canary_first, not canary_first):
            model = self._calls.model if is_canary else self._stable
            try:
                with self._calls.mark if is_canary else contextlib.nullcontext():
                    model(batch)
                    began = time.perf_counter()
                    answers = model(batch)
                    timed[is_canary] = answers, time.perf_counter() - began
            except Exception:
                if is_canary:
                    num = _num_items(batch)
                    self._arms.watch.note_twin(num_items=num, num_changed=num, slower=False)
                raise
        self._seconds = timed[False][1], timed[True][1]
        return timed[True][0]

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """As the canary's."""
        return self._calls.model.inputs

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """As the canary's."""
        return self._calls.model.outputs

    @property
    def variant(self) -> Mapping[str, Any]:
        """As the canary's."""
        return self._calls.model.variant

    @property
    def metadata(self) -> Mapping[str, str]:
        """As the canary's."""
        return self._calls.model.metadata

    def _compare(
        self, stable: Any, canary: Any, stable_seconds: float, seconds: float, declared: Declared
    ) -> Sequence[float]:
        for answers, is_canary in ((stable, False), (canary, True)):
            if self._judges.has_broken(answers):
                self._calls.note_broken(canary=is_canary)
        try:
            changed = self._judges.find_changed(stable, canary, declared)
        except ValueError:
            changed = [1.0]
        slower = self._seconds[1] > self._most_ratio * self._seconds[0]
        self._arms.watch.note_twin(num_items=len(changed), num_changed=float(sum(changed)), slower=slower)
        return changed


def _note_run(items: Sequence[Item], plan_id: str) -> None:
    for item in items:
        item.root.has_run = True
        item.job.plan_id = plan_id


def _num_items(batch: Any) -> int:
    first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch
    return len(first)

"""The search for the concurrency of a variant that may win, as an attempt like the others, kept in the ledger."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from headrace.base.errors import HeadraceError
from headrace.base.plan import ModelPlan
from headrace.compare.interrupts import noticing
from headrace.optimize.attempt_log import AttemptLog
from headrace.optimize.concurrency import (
    Concurrency,
    ConcurrencyFound,
    answers_alike,
    compare_concurrency,
    search_concurrency,
)
from headrace.optimize.conditions import Conditions, hash_of
from headrace.optimize.search_words import name_attempt
from headrace.optimize.techniques import find_deciding_versions
from headrace.optimize.unconverted import network_code
from headrace.runs.formats.optimization import Artifact, Attempt, Whole
from headrace.runs.formats.variants import Gate, ValidationDocument, VariantSide
from headrace.validate.golden import Golden
from headrace.validate.items import Items, arrays_of
from headrace.validate.model_speed import as_estimate
from headrace.validate.parity import BANDS
from headrace.validate.variant_spec import VariantSpec, variant_text
from headrace.validate.variants import precision_of

#: As ledgers and documents call it.
TECHNIQUE = "layout"
#: Changes with how concurrency is timed: since the second, workers share one model, as they do in a pipeline.
_METHOD = "layout 2"
_HYPOTHESIS = (
    "other shares of the cores: calls side by side need not wait for one another's threads (1.1 to 1.4 times measured on two "
    "cores), and larger batches pay once the kernel is fast"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnConcurrency:
    """Finds workers, threads and batch of one variant."""

    conditions: Conditions
    log: AttemptLog
    items: Golden
    """That calls are timed on."""
    first: Concurrency
    """That of the Plan."""
    variant: Attempt | None
    """None: what is in use."""

    def find(self) -> Attempt | None:
        """Return the concurrency as the ledger knows it or as it is found now; None if the variant cannot run at the first.

        Raises:
            KeyboardInterrupt: If it was interrupted.
        """
        say, called = self.log.say, self.conditions.subject.called
        name = f"layout of {name_attempt(self.variant) if self.variant else called}"
        known = self.log.recall(self._key)
        if known is not None:
            say(f"{name}: known from {known.id}: {known.verdict}: {known.says}")
            return self._recall(known)
        say(name)
        with noticing() as is_interrupted:
            found = self._search(is_interrupted)
            if is_interrupted():
                raise KeyboardInterrupt
        if found is None:
            return None
        say(f"{name}: {found.verdict}: {found.says}")
        return self.log.write(found)

    @property
    def _key(self) -> str:
        """What decides the outcome: the same is not timed twice."""
        subject, goal, spec = self.conditions.subject, self.conditions.goal, self._spec
        return hash_of([
            _METHOD, subject.original.sha256, self.variant.artifact.sha256 if self.variant else "", spec.model.engine,
            dict(spec.model.options), str(self.first), goal.cores, goal.objective, self.conditions.hardware,
            *(array.shape[1:] for array in arrays_of(self._items(spec)).values()),
            find_deciding_versions(spec.model.engine), *network_code(spec.model),
            *(subject.incumbent.decides if subject.incumbent else ()),
        ])  # fmt: skip

    @property
    def _spec(self) -> VariantSpec:
        if self.variant is None:
            return self.conditions.subject.in_use()
        return VariantSpec(self.variant.candidate, ModelPlan(**self.variant.settings))

    @property
    def _artifact(self) -> Artifact:
        return self.variant.artifact if self.variant else self.conditions.subject.file_in_use

    @property
    def _of(self) -> str:
        return self.variant.candidate if self.variant else ""

    def _items(self, spec: VariantSpec) -> Items:
        """Return the items as a variant takes them."""
        return self.items.scale_to(spec.model.input_side)

    def _recall(self, known: Attempt) -> Attempt:
        """Return an attempt of the ledger with the files as they are called today."""
        settings = {**known.settings, "artifact": self._artifact.file}
        return msgspec.structs.replace(
            known, is_recalled=True, artifact=self._artifact, settings=settings, of=self._of,
            candidate=variant_text(ModelPlan(**settings)),
        )  # fmt: skip

    def _search(self, stop: Callable[[], bool]) -> Attempt | None:
        began, spec, goal = time.monotonic(), self._spec, self.conditions.goal
        try:
            found = search_concurrency(
                spec, self._items(spec), self.first, cores=goal.cores, objective=goal.objective, stop=stop,
                say=self.log.say,
            )  # fmt: skip
            if stop():
                return None
            gates = (self._parity(spec, found), _speed_gate(found, self.first))
            failed = next((gate for gate in gates if gate.outcome == "rejected"), None)
            best = self.first if failed else found.best
            whole = self._whole(spec, best, stop)
        except HeadraceError as error:
            self.log.say(f"layout: not tried: {error}")
            return None
        model = replace(spec.model, threads=best.threads)
        document = self._validation(spec, gates, best)
        return self.conditions.attempt(
            VariantSpec(variant_text(model), model), self._artifact, document, began,
            technique=TECHNIQUE, kind="lossless", hypothesis=_HYPOTHESIS, verdict=document.verdict,
            gate=failed.name if failed else None, says=document.says, key=self._key, of=self._of, layouts=found.timed,
            stages={"workers": best.workers, "batch": best.batch}, whole=whole,
            speedup=as_estimate(found.speed) if found.speed else None,
        )  # fmt: skip

    def _parity(self, spec: VariantSpec, found: ConcurrencyFound) -> Gate:
        """Ask whether an answer depends on what else is in the batch."""
        batches = (self.first.batch, found.best.batch)
        apart = 0.0 if batches[0] == batches[1] else answers_alike(spec, self._items(spec), batches)
        most = BANDS[precision_of(spec)]
        values: dict[str, float | None] = {"worst_l2": apart}
        limits = {"worst_l2": most}
        if apart <= most:
            return Gate(name="parity", outcome="passed", says="the same answers", values=values, limits=limits)
        off = f"relative L2 {apart:.2g}" if math.isfinite(apart) else "in another shape, or with other detections"
        says = (
            f"in a batch of {batches[1]} an item is answered otherwise than in one of {batches[0]} ({off}): the model looks at "
            "its neighbours"
        )
        return Gate(name="parity", outcome="rejected", says=says, values=values, limits=limits)

    def _whole(self, spec: VariantSpec, best: Concurrency, stop: Callable[[], bool]) -> Whole | None:
        """Compare variant and concurrency together with what is in use, at the Plan's concurrency."""
        baseline = self.conditions.subject.in_use()
        if spec.text == baseline.text and best == self.first:
            return None
        found = compare_concurrency(
            (baseline, self.first), (spec, best), self._items(baseline), self._items(spec), stop=stop
        )
        if found is None:
            return None
        return Whole(
            ratio=as_estimate(found), before_per_second=1.0 / found.a_seconds, after_per_second=1.0 / found.b_seconds,
            before=str(self.first), after=str(best),
        )  # fmt: skip

    def _validation(self, spec: VariantSpec, gates: tuple[Gate, ...], best: Concurrency) -> ValidationDocument:
        failed = next((gate for gate in gates if gate.outcome == "rejected"), None)
        side = VariantSide(name=spec.text, variant=dict(spec.open().variant), open_seconds=0.0)
        return ValidationDocument(
            a=side, b=side, verdict="reject" if failed else "accept", says=(failed or gates[-1]).says, gates=gates,
            batch=best.batch, golden="", num_items=len(self.items),
        )  # fmt: skip


def _speed_gate(found: ConcurrencyFound, first: Concurrency) -> Gate:
    speed = found.speed
    if speed is None or speed.low <= 1.0:
        came_to = (
            "" if speed is None else f" ({found.best} came to {speed.ratio:.2f}, {speed.low:.2f} to {speed.high:.2f})"
        )
        return Gate(name="speed", outcome="rejected", says=f"no layout is surely faster than {first}{came_to}")
    says = f"{found.best} does {speed.ratio:.2f} times the items per second ({speed.low:.2f} to {speed.high:.2f}) of {first}"
    values = {"ratio": speed.ratio, "low": speed.low, "high": speed.high, "noise": speed.noise}
    return Gate(name="speed", outcome="passed", says=says, values=dict(values))

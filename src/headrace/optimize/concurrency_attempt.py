"""The search for the concurrency of a variant that may win, as an attempt like the others, kept in the ledger."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from headrace.base.errors import HeadraceError
from headrace.base.plan import ModelPlan
from headrace.optimize.concurrency import (
    Concurrency,
    ConcurrencyFound,
    answers_alike,
    compare_concurrency,
    search_concurrency,
)
from headrace.optimize.techniques import Subject, deciding_versions
from headrace.optimize.unconverted import network_code
from headrace.runs.formats.optimization import Attempt, Whole
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.variants import Gate, ValidationDocument, VariantSide
from headrace.validate.golden import Golden
from headrace.validate.items import Items, arrays_of
from headrace.validate.model_speed import Speed
from headrace.validate.parity import BANDS
from headrace.validate.variant_spec import VariantSpec, variant_settings, variant_text
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
class ConcurrencyAttempts:
    """Searches workers, threads and batch of a variant."""

    subject: Subject
    first: Concurrency
    """Those of the Plan now."""
    cores: int
    objective: str
    items: Golden
    """That calls are timed on."""
    hardware: str
    say: Callable[[str], object]

    def key(self, chosen: Attempt | None) -> str:
        """Return what decides the outcome: the same is not timed twice."""
        spec = self._spec(chosen)
        decides = [
            _METHOD, self.subject.original.sha256, chosen.artifact.sha256 if chosen else "", spec.model.engine,
            dict(spec.model.options), str(self.first), self.cores, self.objective, self.hardware,
            *(array.shape[1:] for array in arrays_of(self._items(spec)).values()),
            deciding_versions(spec.model.engine), *network_code(spec.model),
            *(self.subject.incumbent.decides if self.subject.incumbent else ()),
        ]  # fmt: skip
        return hashlib.sha256(msgspec.json.encode(decides, order="sorted")).hexdigest()[:16]

    def recalled(self, known: Attempt, chosen: Attempt | None) -> Attempt:
        """Return an attempt of the ledger with the files as they are called today."""
        artifact = chosen.artifact if chosen else self.subject.file_in_use
        settings = {**known.settings, "artifact": artifact.file}
        return msgspec.structs.replace(
            known, is_recalled=True, artifact=artifact, settings=settings, of=_name(chosen),
            candidate=variant_text(ModelPlan(**settings)),
        )  # fmt: skip

    def search(self, chosen: Attempt | None, stop: Callable[[], bool]) -> Attempt | None:
        """Return the concurrency found for a variant; None if it cannot run at the first one, or was stopped.

        Args:
            chosen: The variant; None: what is in use.
            stop: Asked between rounds.
        """
        began, spec = time.monotonic(), self._spec(chosen)
        try:
            found = search_concurrency(
                spec, self._items(spec), self.first, cores=self.cores, objective=self.objective, stop=stop, say=self.say
            )
            if stop():
                return None
            gates = (self._parity(spec, found), _speed_gate(found, self.first))
            failed = next((gate for gate in gates if gate.outcome == "rejected"), None)
            best = self.first if failed else found.best
            whole = self._whole(spec, best, stop)
        except HeadraceError as error:
            self.say(f"layout: not tried: {error}")
            return None
        model = replace(spec.model, threads=best.threads)
        document = self._validation(spec, gates, best)
        return Attempt(
            created_unix_seconds=time.time(),
            model=self.subject.original.sha256,
            technique=TECHNIQUE,
            kind="lossless",
            hypothesis=_HYPOTHESIS,
            candidate=variant_text(model),
            settings=variant_settings(model),
            stages={"workers": best.workers, "batch": best.batch},
            layouts=found.timed,
            of=_name(chosen),
            whole=whole,
            artifact=chosen.artifact if chosen else self.subject.file_in_use,
            verdict="reject" if failed else "accept",
            gate=failed.name if failed else None,
            says=document.says,
            speedup=_estimate(found.speed),
            seconds=time.monotonic() - began,
            validation=document,
            hardware=self.hardware,
            key=self.key(chosen),
        )  # fmt: skip

    def _spec(self, chosen: Attempt | None) -> VariantSpec:
        if chosen is None:
            return self.subject.in_use()
        return VariantSpec(chosen.candidate, ModelPlan(**chosen.settings))

    def _items(self, spec: VariantSpec) -> Items:
        """Return the items as a variant takes them."""
        return self.items.at(spec.model.input_side)

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
        baseline = self.subject.in_use()
        if spec.text == baseline.text and best == self.first:
            return None
        found = compare_concurrency(
            (baseline, self.first), (spec, best), self._items(baseline), self._items(spec), stop=stop
        )
        if found is None:
            return None
        return Whole(
            ratio=Estimate(found.low, found.ratio, found.high),
            before_per_second=1.0 / found.a_seconds,
            after_per_second=1.0 / found.b_seconds,
            before=str(self.first),
            after=str(best),
        )

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


def _name(chosen: Attempt | None) -> str:
    return chosen.candidate if chosen else ""


def _estimate(speed: Speed | None) -> Estimate | None:
    return None if speed is None else Estimate(speed.low, speed.ratio, speed.high)

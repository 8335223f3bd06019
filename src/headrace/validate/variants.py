"""Whether one variant of a model may stand in for another: gates, cheapest first, each with its numbers.

    static     both open, take the same inputs, and any batch size
    census     of a quantized B: how much of it the engine really computes in int8
    parity     the answers to the same items, by what they mean and number by number: NaN, infinities, shapes, distances
    batches    whether an answer depends on the neighbours in the batch
    extremes   NaN or infinity for black, white, noise, tiny numbers, where A gives none
    speed      calls in turn on one batch, against the noise of the same minutes
    accuracy   right answers on a golden set, or the same answers where the right ones are not known: a test that may be looked
               at after every item, with the margin stated before
    robustness where it is asked for: the same on images that are blurred, noisy, dark, turned, ...

A variant is a file together with everything that decides how it runs: the same int8 file was measured at 0.64 and at 8.2 times
the speed of its original on two engines, and 20 points apart in accuracy. After a rejection no dearer gate is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import HeadraceError, MissingExtra, SettingsError
from headrace.base.formatting import quote_arg
from headrace.base.meaning import Meaning
from headrace.base.protocols import Model, TensorSpec
from headrace.base.settings import check
from headrace.base.units import format_duration
from headrace.profiler.layers.table import PROFILERS
from headrace.runs.cpu_features import explain_slowness
from headrace.runs.formats.outcomes import Acceptance, Outcome
from headrace.runs.formats.variants import (
    Gate,
    GateName,
    LayerError,
    SliceResult,
    ValidationDocument,
    VariantSide,
    WorstItem,
)
from headrace.validate import measuring
from headrace.validate.accuracy import judge_accuracy
from headrace.validate.agreement import Agreement, explain_unknown, make_namer
from headrace.validate.answer_cache import AnswerCache
from headrace.validate.detections import LAYOUTS
from headrace.validate.edge_inputs import (
    BatchDifference,
    compare_batches,
    find_broken_inputs,
    find_rounding,
    largest_batch,
    probes,
)
from headrace.validate.golden import Golden, spread
from headrace.validate.half_precision import LARGEST, find_broken, format_reaches, is_half
from headrace.validate.items import Feed, Items, batch_of, check_inputs, fed
from headrace.validate.layer_errors import ITEMS, first_beyond, layer_errors
from headrace.validate.meaning_choice import class_names, find_meaning
from headrace.validate.meanings import Detections, Numbers
from headrace.validate.model_speed import Settled, Speed
from headrace.validate.parity import BANDS, compare_outputs, has_broken, join_answers
from headrace.validate.policy import Policy
from headrace.validate.precision_audit import LEAST_INT8_SHARE, audit_precision, is_quantized
from headrace.validate.robustness import judge_robustness
from headrace.validate.slices import worst_first
from headrace.validate.synthetic_inputs import Shapes, SyntheticInputs, make_up
from headrace.validate.trials import try_calls
from headrace.validate.variant_spec import VariantSpec, variant_text

#: Items whose answers are compared number by number.
PARITY_ITEMS = 64
#: Without labels, an answer further off than so many bands is no rounding.
MOST_BANDS = 5.0
#: Share of the items of which a channel may be further off than that.
_MOST_OFF = 0.25
#: Those that need no labels and take seconds: what a search asks of every candidate.
CHEAP_GATES: tuple[GateName, ...] = ("static", "census", "parity", "batches", "extremes", "speed")
ALL_GATES: tuple[GateName, ...] = (*CHEAP_GATES, "accuracy", "robustness")
#: Outcomes that leave open whether B may stand in for A: what was asked and is not known is not passed.
OPEN: tuple[Outcome, ...] = ("inconclusive", "skipped")
#: Items that are spoiled in every way.
ROBUSTNESS_ITEMS = 300


@dataclass(slots=True)
class _Opened:
    """A variant, ready to be called."""

    spec: VariantSpec
    model: Model
    open_seconds: float
    call_seconds: float | None = None

    def side(self) -> VariantSide:
        return VariantSide(
            name=self.spec.text,
            variant=dict(self.model.variant),
            open_seconds=self.open_seconds,
            call_seconds=self.call_seconds,
        )

    def is_quantized(self) -> bool:
        return _is_quantized(self.spec)

    def precision(self) -> str:
        return precision_of(self.spec, self.model)


@dataclass(frozen=True, slots=True, eq=False)  # an array has no hash
class OnItsOwn:
    """A model that is called with a batch of its own, whatever it is given: the same items in another size."""

    model: Model
    batch: Feed

    def __call__(self, _: Any) -> Any:
        """Answer that batch."""
        return self.model(self.batch)

    @property
    def variant(self) -> Mapping[str, Any]:
        """The model's."""
        return self.model.variant


def precision_of(spec: VariantSpec, model: Model | None = None) -> str:
    """Return what a variant computes in: int8 where its file is quantized, else what the engine says, or is asked for."""
    if _is_quantized(spec):
        return "int8"
    said = str((model.variant if model else spec.model.options).get("precision", "f32"))
    return "f16" if said == "f32" and is_half(spec) else said if said in BANDS else "f32"


def _is_quantized(spec: VariantSpec) -> bool:
    return spec.model.artifact is not None and is_quantized(Path(spec.model.artifact))


@dataclass(slots=True)
class _Validation:
    """The gates that were asked so far."""

    a: _Opened
    b: _Opened
    golden: Golden
    policy: Policy
    is_interrupted: Callable[[], bool]
    say: Callable[[str], object]
    kept: AnswerCache
    """What A answered to this set before."""
    settled: Settled | None = None
    """When its speed needs no more rounds; None: all are run."""
    gates: list[Gate] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    worst: tuple[WorstItem, ...] = ()
    slices: tuple[SliceResult, ...] = ()
    layers: tuple[LayerError, ...] = ()
    diverges_at: str = ""
    _meaning: list[Meaning | None] = field(default_factory=list)
    """Of the answers, fitted to A's, once it was asked for."""

    def run(self, gates: Sequence[GateName]) -> None:
        """Ask until one rejects."""
        asked = {
            "static": self._static, "census": self._census, "parity": self._parity, "batches": self._batches,
            "extremes": self._extremes, "speed": self._speed, "accuracy": self._accuracy, "robustness": self._robustness,
        }  # fmt: skip
        for name in gates:
            if self.is_interrupted():
                return
            gate = asked[name]()
            if gate is None:
                continue
            self.gates.append(gate)
            self.say(f"{self.gates[-1].name}: {self.gates[-1].outcome}: {self.gates[-1].says}")
            if self.gates[-1].outcome == "rejected":
                return

    # --- the gates

    def _static(self) -> Gate:
        check_inputs(self._items(self.a), self.a.model.inputs, self.golden.name)
        other = _describe_other_inputs(self.a.model.inputs, self.b.model.inputs, is_same_size=self._is_same_size())
        if other:
            return _gate("static", "rejected", other)
        why = _explain_other_precision(self.b)
        if why is not None:
            return _gate("static", "rejected", f"B {why}")
        for size in sorted({1, self.policy.batch}):
            for name, opened in (("A", self.a), ("B", self.b)):
                batch = self._batch(opened, size)
                try:
                    opened.model(batch)
                except Exception as error:  # engines raise their own types
                    if name == "A":  # then nothing is known of B
                        raise SettingsError(
                            f"A, {opened.spec.text}, refuses a batch of {size} of {self.golden.name}: {error}; give items that "
                            "it takes with --golden, and a --batch that it takes"
                        ) from None
                    return _gate("static", "rejected", f"{name} refuses a batch of {size}: {error}")
        a, b = (_inputs_in_words(one.model.inputs) for one in (self.a, self.b))
        says = f"both take {a}" if self._is_same_size() else f"A takes {a}, B {b}: the same images in another size"
        return _gate("static", "passed", says)

    def _census(self) -> Gate | None:
        """Ask how B really runs, if it is quantized and A is not; None if there is nothing to ask."""
        if not self.b.is_quantized() or self.a.is_quantized() or self.b.spec.model.engine not in PROFILERS:
            return None
        found = audit_precision(
            self.b.spec, self._items(self.b)[: self.policy.batch], seconds=measuring.current().census_seconds
        )
        values = {"int8_share": found.int8_share, "conversion_share": found.conversion_share}
        limits = {"int8_share": LEAST_INT8_SHARE}
        if found.int8_share is None or found.int8_share >= LEAST_INT8_SHARE:
            return _gate("census", "passed", found.says, values, limits)
        why = "; ".join(found.advice[:2])
        says = f"only {found.int8_share:.0%} of what is quantized runs in int8: {found.says}; {why}"
        return _gate("census", "rejected", says, values, limits)

    def _parity(self) -> Gate:
        first, second = self.kept.once("parity", lambda: self._some(self.a)), self._some(self.b)
        if first is None or second is None:
            return _gate("parity", "inconclusive", "interrupted")
        if isinstance(self._settle_meaning(first), Detections) or self._is_any_order():
            return self._judge_detections(first, second)
        try:
            found = compare_outputs(join_answers(first), join_answers(second))
        except ValueError:
            says = (
                "not known: the answers change their shape from call to call, so they have no like in the other's; detections "
                f"can be held against one another, and are read from {LAYOUTS}"
            )
            return _gate("parity", "skipped", says)
        band = max(BANDS[self.a.precision()], BANDS[self.b.precision()])
        values = {
            "relative_l2": _finite(found.relative_l2), "worst_l2": _finite(found.worst_l2), "cosine": found.cosine,
            "flips": found.flips, "broken": float(found.broken_b),
        }  # fmt: skip
        limits = {"relative_l2": band}
        if found.shapes:
            return _gate(
                "parity", "rejected", f"the answers have other shapes: {'; '.join(found.shapes)}", values, limits
            )
        if found.broken_b > found.broken_a:
            says = (
                f"{found.broken_b} of {found.num_items} answers of B hold a NaN or an infinity, of A {found.broken_a}"
            )
            return _gate("parity", "rejected", says + self._describe_first_difference(), values, limits)
        overflow = self._overflow()
        if overflow:
            return _gate("parity", "rejected", overflow, values, limits)
        says = (
            f"relative L2 {found.relative_l2:.2g} (worst {found.worst_l2:.2g}), cosine {found.cosine:.5f} or more"
            + ("" if found.flips is None else f", another first answer for {found.flips:.1%}")
            + f", of {found.num_items} items; usual is up to {band:g}"
        )
        if self.policy.retrained:
            return _gate("parity", "passed", f"{says}; another network, which need not answer alike", values, {})
        agreement = self._agreement(first, second)
        if agreement is not None:
            values["changed"], values["agreement"] = agreement.changed, agreement.mean
            says = f"{says}; {agreement.says()}"
        why = self._explain_difference(agreement, first, second, found.relative_l2, band)
        if why is None and found.relative_l2 <= band:
            return _gate("parity", "passed", says, values, limits)
        says += self._describe_first_difference()
        if why is not None and not self._is_truth_known():
            return _gate("parity", "rejected", f"{why}: that is no rounding ({says})", values, limits)
        self.warnings.append(f"the answers differ by more than {self.b.precision()} usually does: {says}")
        return _gate("parity", "passed", f"{says}; whether that matters the accuracy tells", values, limits)

    @property
    def meaning(self) -> Meaning | None:
        """What the answers mean; None: not known."""
        if not self._meaning:
            self._settle_meaning(self.kept.once("parity", lambda: self._some(self.a)) or [])
        return self._meaning[0] if self._meaning else None

    def _settle_meaning(self, answers: Sequence[Any]) -> Meaning | None:
        """Settle what answers mean, by those of A."""
        if self._meaning or not answers:
            return self._meaning[0] if self._meaning else None
        self._meaning.append(find_meaning(answers, self.policy.output, self.a.model.metadata))
        return self._meaning[0]

    def _is_any_order(self) -> bool:
        recount = self.policy.metric.recount
        return recount is not None and recount.any_order

    def _is_truth_known(self) -> bool:
        return self.golden.labels is not None or bool(self.golden.truth)

    def _agreement(self, a: Sequence[Any], b: Sequence[Any]) -> Agreement | None:
        """Return how far answers agree by what they mean; None if that is not known, or the items are noise."""
        if self.meaning is None or self.golden.is_made_up:
            return None
        found = Agreement(self.meaning, make_namer(class_names(self.a.model.metadata)))
        for one, other in zip(a, b, strict=True):
            found.add(one, other)
        return found

    def _explain_difference(
        self, agreement: Agreement | None, a: Sequence[Any], b: Sequence[Any], relative_l2: float, band: float
    ) -> str | None:
        """Return why the answers are not the same but for what a precision rounds; None if they are."""
        if agreement is not None:
            return agreement.explain_difference()
        limit = MOST_BANDS * band
        if relative_l2 > limit:
            return f"relative L2 {relative_l2:.2g}, at most {limit:g}"
        if self.golden.is_made_up:  # channels hardly move on noise
            return None
        numbers = Numbers(tolerance=limit)
        found = Agreement(numbers.fitted(a))
        for one, other in zip(a, b, strict=True):
            found.add(one, other)
        if found.changed <= _MOST_OFF:
            return None
        return (
            f"a channel is off by more than {limit:g} of its spread for {found.num_changed} of {found.num_items} items; "
            f"{explain_unknown(a[0])}"
        )

    def _judge_detections(self, a: Sequence[Any], b: Sequence[Any]) -> Gate:
        """Return whether detections are whole and alike: they come in any order and number, and are matched.

        Args:
            a: Answers of A, call by call.
            b: Of B, to the same items.
        """
        broken_a, broken_b = (sum(has_broken(one) for one in answers) for answers in (a, b))
        values: dict[str, float | None] = {"broken": float(broken_b)}
        if broken_b > broken_a:
            says = f"{broken_b} of {len(b)} calls of B give a NaN or an infinity, of A {broken_a}"
            return _gate("parity", "rejected", says, values)
        overflow = self._overflow()
        if overflow:
            return _gate("parity", "rejected", overflow, values)
        is_judged = self.policy.metric.recount is not None and self.policy.metric.recount.any_order
        judge = (
            "the accuracy gate matches them with what is true" if is_judged else "--metric map tells how right they are"
        )
        if not isinstance(self.meaning, Detections):
            says = f"no NaN or infinity that A does not have; detections come in any order and number: {judge}"
            return _gate("parity", "passed", says, values)
        try:
            agreement = self._agreement(a, b)
        except ValueError as error:
            return _gate("parity", "rejected", str(error), values)
        if agreement is None:
            return _gate("parity", "passed", "no NaN or infinity that A does not have, on noise", values)
        limits = {"changed": self.meaning.most_changed, "agreement": self.meaning.usual}
        values["changed"], values["agreement"] = agreement.changed, agreement.mean
        why = agreement.explain_difference()
        if why is not None and not self._is_truth_known() and not self.policy.retrained:
            return _gate("parity", "rejected", f"{why}: that is no rounding ({agreement.says()})", values, limits)
        says = agreement.says() if why is None else f"{why} ({agreement.says()})"
        return _gate("parity", "passed", f"{says}; {judge}", values, limits)

    def _batches(self) -> Gate | None:
        """Ask whether B's answer to an item depends on its neighbours; what depends on them in A as much is no defect of B."""
        size = largest_batch(self.b.model, self.policy.batch)
        apart, limit = self._compare_batches(self.b, size), find_rounding(self.b.precision())
        if apart is None:
            return None
        values: dict[str, float | None] = {"off": _finite(apart.off), "changed": apart.changed}
        limits = {"off": limit}
        says = f"the same answers in batches of 1, 2 and {size}, but for {apart.off:.2g} of a channel's spread"
        if apart.off <= limit:
            return _gate("batches", "passed", says, values, limits)
        own = self.kept.once(("batches", size), lambda: self._compare_batches(self.a, size))
        if own is not None and own.off >= apart.off / 2:
            return _gate(
                "batches", "passed", f"answers depend on the neighbours in the batch, and A's too ({says})", values
            )
        changed = "" if apart.changed is None else f", another answer for {apart.changed:.0%} of the items"
        return _gate(
            "batches", "rejected",
            f"B's answer to an item depends on what else is in the batch: in one of {apart.size} it is off by {apart.off:.2g} "
            f"of a channel's spread from that to the item alone{changed}; {limit:g} is rounding",
            values, limits,
        )  # fmt: skip

    def _compare_batches(self, opened: _Opened, size: int) -> BatchDifference | None:
        return compare_batches(
            opened.model, probes(self._items(opened), size), sorted({1, min(2, size), size}), self.meaning
        )

    def _extremes(self) -> Gate | None:
        """Ask whether B gives NaN for inputs at the edge, where A does not."""
        if not self._is_same_size():
            return None
        engines = {one.spec.model.engine for one in (self.a, self.b)}
        found = find_broken_inputs(
            self.a.model, self.b.model, probes(self._items(self.a), PARITY_ITEMS), same_engine=len(engines) == 1
        )
        values: dict[str, float | None] = {"broken": float(len(found))}
        if found:
            says = f"B gives a NaN or an infinity, or fails, where A gives numbers: for {', '.join(found)}"
            return _gate("extremes", "rejected", says, values, {"broken": 0.0})
        return _gate(
            "extremes", "passed", "numbers for black, white, noise and tiny inputs wherever A gives them", values
        )

    def _overflow(self) -> str:
        """Return in words what half precision does not hold between B's layers, where B computes in it; else nothing."""
        precision = self.b.precision()
        if precision not in LARGEST:
            return ""
        try:
            found = find_broken(self.a.spec, self.b.spec, self._items(self.a), self._items(self.b))
        except Exception as error:  # not every engine grants a look between the layers; they raise their own types
            self.warnings.append(f"whether {precision} holds what is between the layers cannot be told: {error}")
            return ""
        if not found:
            return ""
        self.diverges_at = found[0].name
        return f"{precision} does not hold what is between B's layers, whatever the answers: {format_reaches(found)}"

    def _describe_first_difference(self) -> str:
        """Return in words the layer at which the two begin to differ; nothing where that cannot be seen."""
        try:
            items = self._items(self.b)[spread(len(self.golden), ITEMS)]
            self.layers = layer_errors(self.a.spec, self.b.spec, items)
        except Exception as error:  # it explains a verdict and changes none; engines raise their own types
            self.warnings.append(f"where they begin to differ cannot be told: {error}")
            return ""
        first = first_beyond(self.layers, self.b.precision())
        if first is None:
            return ""
        self.diverges_at = first.name
        off = "NaN or infinite" if first.relative_l2 is None else f"relative L2 {first.relative_l2:.2g}"
        return f"; the first tensor beyond that is {first.name} ({first.operator}, {off})"

    def _speed(self) -> Gate:
        first, second = (self._batch(opened, self.policy.batch) for opened in (self.a, self.b))
        b = self.b.model if self._is_same_size() else OnItsOwn(self.b.model, second)
        tools = measuring.current()
        found = tools.measure_speed(
            self.a.model, b, first, stop=self.is_interrupted, settled=self.settled, timing=tools.timing
        )
        if found is None:
            return _gate("speed", "inconclusive", "interrupted before there were enough rounds")
        self.a.call_seconds, self.b.call_seconds = found.a_seconds, found.b_seconds
        values = {
            "ratio": found.ratio,
            "low": found.low,
            "high": found.high,
            "noise": found.noise,
            **_cpu_values(found),
        }
        says = (
            f"B is {found.ratio:.2f} times as fast ({found.low:.2f} to {found.high:.2f}), {format_duration(found.b_seconds)} "
            f"against {format_duration(found.a_seconds)} for a batch of {self.policy.batch}; {found.noise_in_words}"
        )
        least = self.policy.min_speedup
        if least is None:
            return _gate("speed", "passed", says, values)
        outcome: Outcome = "passed" if found.low >= least else "rejected" if found.high < least else "inconclusive"
        return _gate("speed", outcome, says, values, {"min_speedup": least})

    def _accuracy(self) -> Gate:
        everything = np.arange(len(self.golden))
        judged = judge_accuracy(
            lambda: self._calls(self.a, everything), lambda: self._calls(self.b, everything), self.golden, self.policy,
            names=class_names(self.a.model.metadata), is_interrupted=self.is_interrupted, kept=self.kept,
            again=self._answer_again, meaning=self.meaning if self.golden.labels is None else None,
        )  # fmt: skip
        self.warnings += judged.warnings
        self.worst, self.slices = judged.worst, judged.slices
        return judged.gate

    def _robustness(self) -> Gate | None:
        """Ask whether B bears spoiled images worse than A, if that was asked for."""
        if not self.policy.robustness or self.golden.is_made_up:
            return None
        found = judge_robustness(
            (self.a.model, self.b.model), self.golden, self.policy, items=ROBUSTNESS_ITEMS, stop=self.is_interrupted,
            kept=self.kept, sides=(self.a.spec.model.input_side, self.b.spec.model.input_side), meaning=self.meaning,
        )  # fmt: skip
        return _gate(
            "robustness", found.outcome, found.says, found.values, {"max_slice_drop": self.policy.max_slice_drop}
        )

    # --- calling

    def _is_same_size(self) -> bool:
        """Return whether both take images of one size."""
        return self.a.spec.model.input_side == self.b.spec.model.input_side

    def _batch(self, opened: _Opened, size: int) -> Feed:
        """Return items of the golden set as a variant takes them, around again where there are too few."""
        return batch_of(self._items(opened), size)

    def _items(self, opened: _Opened) -> Items:
        return self.golden.scale_to(opened.spec.model.input_side)

    def _some(self, opened: _Opened) -> list[Any] | None:
        """Return the answers to the items that are compared number by number; None if it was interrupted."""
        answers = list(self._calls(opened, spread(len(self.golden), PARITY_ITEMS)))
        return None if self.is_interrupted() else answers

    def _answer_again(self, places: np.ndarray) -> tuple[Any, Any] | None:
        """Return what both answer to the items at these places, each as of one call; None if it was interrupted."""
        a, b = list(self._calls(self.a, places)), list(self._calls(self.b, places))
        return None if self.is_interrupted() else (join_answers(a), join_answers(b))

    def _calls(self, opened: _Opened, places: np.ndarray) -> Iterator[Any]:
        """Give the answers to the items at these places, batch by batch."""
        for start in range(0, len(places), self.policy.batch):
            if self.is_interrupted():
                return
            yield opened.model(fed(self._items(opened)[places[start : start + self.policy.batch]]))


def validate_variants(
    a: VariantSpec,
    b: VariantSpec,
    golden: Golden | None,
    policy: Policy | None = None,
    *,
    gates: Sequence[GateName] = ALL_GATES,
    say: Callable[[str], object] = lambda text: None,
    kept: AnswerCache | None = None,
    settled: Settled | None = None,
    prepared: tuple[int, ...] | None = None,
) -> ValidationDocument:
    """Return whether B may stand in for A.

    Args:
        a: The incumbent.
        b: The candidate.
        golden: What both answer; None: noise, which tells nothing about accuracy.
        policy: What is asked of B.
        gates: Those to ask, in this order; a verdict says no more than they did.
        say: Told about each gate, one line at a time.
        kept: What incumbents answered before, and where it is kept for the next candidate; None: it is asked anew.
        settled: As `measure_speed` takes it: the gate of speed is a race then.
        prepared: Shape of an item as the pipeline prepares it, for noise; None: not known.

    Raises:
        EngineError: If A cannot be opened. A B that cannot be is rejected.
        MissingExtra: If an engine is not installed, of A or of B.
        SettingsError: If a file does not exist, A refuses the golden set, or takes inputs for which
            nothing can be made up and there is no golden set.
    """
    policy = policy or Policy()
    for spec in (a, b):
        artifact = spec.model.artifact
        check(artifact is None or Path(artifact).is_file(), "model file", artifact, "a file that exists")
    first = _open(a)
    try:
        second = _open(b)
    except MissingExtra:  # says nothing about B: installed, it may be right
        raise
    except HeadraceError as error:
        why = f"B cannot be opened: {error}"
        return _reject_at_once(first.side(), b, why, golden, policy)
    if golden is None:
        noise = _noise(first, second, prepared)
        why = _crash(b, noise, policy.batch)
        golden = noise.make_golden(PARITY_ITEMS)
        if why:
            return _reject_at_once(first.side(), b, why, golden, policy)
    with measuring.current().noticing() as is_interrupted:
        known = _open_cache(kept, a, golden, policy)
        validation = _Validation(first, second, golden, policy, is_interrupted, say, known, settled)
        validation.run(gates)
        interrupted = is_interrupted()
    document = _document(
        first.side(), second.side(), validation.gates, golden, policy, validation.warnings, interrupted=interrupted
    )
    return msgspec.structs.replace(
        document,
        worst=validation.worst,
        layers=validation.layers,
        diverges_at=validation.diverges_at,
        slices=worst_first(validation.slices),
        num_slices=len(validation.slices),
    )


def _reject_at_once(
    a: VariantSide, b: VariantSpec, why: str, golden: Golden | None, policy: Policy
) -> ValidationDocument:
    """Return the rejection of a B that was never called in this process."""
    nothing = VariantSide(name=b.text, variant={}, open_seconds=0.0)
    none = Golden(name="noise", inputs=np.empty((0,)), labels=None, sha256="", is_made_up=True)
    return _document(a, nothing, [_gate("static", "rejected", why)], golden or none, policy, [], interrupted=False)


def _noise(a: _Opened, b: _Opened, prepared: tuple[int, ...] | None) -> SyntheticInputs:
    """Return how to make up what both take: free axes as the pipeline has them, else B's file, else what A answers."""
    specs, others = a.model.inputs, b.model.inputs
    known: list[Shapes] = [{specs[0].name: ("batch", *prepared)}] if prepared else []
    known.append({spec.name: other.shape for spec, other in zip(specs, others, strict=False)})
    return make_up(a.spec.model, specs, a.model.metadata, known)


def _crash(b: VariantSpec, noise: SyntheticInputs, batch: int) -> str:
    """Return in words how B ends the process that calls it with noise of a guessed size; nothing where it does not."""
    if not noise.is_guessed:
        return ""
    shapes = ", ".join(str(list(noise.shapes[spec.name])) for spec in noise.specs)
    crashes = [trial.why for trial in try_calls(b.model, [noise.feed(batch)]).calls if trial.ended]
    return f"B was called with noise {shapes}: {crashes[0]}" if crashes else ""


def _open_cache(kept: AnswerCache | None, a: VariantSpec, golden: Golden, policy: Policy) -> AnswerCache:
    """Return what is kept of an incumbent's answers to this set, in batches of this size and for this metric."""
    if kept is None or not golden.sha256:  # which set it is cannot be told
        return AnswerCache(0)
    # A part of a set goes by the fingerprint of the whole, and may be without its labels.
    items = (golden.sha256, len(golden), golden.labels is None)
    return kept.narrow(variant_text(a.model), *items, policy.metric, policy.batch)


def _explain_other_precision(opened: _Opened) -> str | None:
    """Return why a variant does not compute in the precision that it is asked for, or slowly; None if it does."""
    options = opened.spec.model.options
    asked = str(options.get("precision", "f32"))
    used = str(opened.model.variant.get("precision", asked))
    if used != asked:
        return f"is asked for {asked}, and the engine computes in {used} here: ask for that, or run it where there is {asked}"
    slow = explain_slowness(asked, measuring.current().cpu_flags()) if options.get("provider", "cpu") == "cpu" else None
    return f"is asked for {asked}: {slow}; f32 is faster here" if slow else None


def _open(spec: VariantSpec) -> _Opened:
    began = time.perf_counter()
    model = spec.open()
    return _Opened(spec, model, time.perf_counter() - began)


def _document(
    a: VariantSide,
    b: VariantSide,
    gates: list[Gate],
    golden: Golden,
    policy: Policy,
    warnings: list[str],
    *,
    interrupted: bool,
) -> ValidationDocument:
    rejected = next((gate for gate in gates if gate.outcome == "rejected"), None)
    open_ones = [gate for gate in gates if gate.outcome in OPEN]
    verdict: Acceptance
    if rejected is not None:
        verdict, says = "reject", f"B may not stand in for A: {rejected.says}"
    elif open_ones or interrupted:
        reasons = "; ".join(f"{gate.name}: {gate.says}" for gate in open_ones) or "interrupted"
        verdict, says = "inconclusive", f"it is not known whether B may stand in for A: {reasons}"
    else:
        verdict, says = "accept", f"B may stand in for A: {gates[-1].says}"
    return ValidationDocument(
        a=a,
        b=b,
        verdict=verdict,
        says=says,
        gates=tuple(gates),
        batch=policy.batch,
        golden=golden.name,
        golden_sha256=golden.sha256,
        num_items=len(golden),
        metric=policy.metric.name,
        next_command=_next(a, b, verdict, golden),
        interrupted=interrupted,
        warnings=tuple(warnings),
    )


def _next(a: VariantSide, b: VariantSide, verdict: str, golden: Golden) -> str | None:
    if verdict != "inconclusive" or not golden.is_made_up:
        return None
    return f"headrace validate {quote_arg(a.name)} {quote_arg(b.name)} --golden GOLDEN.npz"


def _cpu_values(found: Speed) -> dict[str, float | None]:
    cpu = found.cpu
    if cpu is None:
        return {}
    return {
        "cpu_ratio": cpu.ratio, "cpu_low": cpu.low, "cpu_high": cpu.high, "a_cpu_seconds": cpu.a_seconds,
        "b_cpu_seconds": cpu.b_seconds,
    }  # fmt: skip


def _describe_other_inputs(a: Sequence[TensorSpec], b: Sequence[TensorSpec], *, is_same_size: bool) -> str:
    """Return in words what B takes that A does not; nothing where they take the same. Several inputs go by their names."""
    if len(a) != len(b):
        return f"A takes {len(a)} inputs ({_inputs_in_words(a)}), B {len(b)} ({_inputs_in_words(b)})"
    by_name = {spec.name: spec for spec in b}
    if len(a) > 1 and set(by_name) != {spec.name for spec in a}:
        return (
            f"A takes {_inputs_in_words(a)} and B {_inputs_in_words(b)}: several inputs are told apart by their names, so B "
            "must have A's; export it with the same input names"
        )
    for first in a:
        second = by_name[first.name] if len(a) > 1 else b[0]
        if first.numpy_type != second.numpy_type or (is_same_size and not _fit(first.shape, second.shape)):
            said = f"B takes {second.dtype}{list(second.shape)} where A takes {first.dtype}{list(first.shape)}"
            return f"{said}{f' as {first.name}' if len(a) > 1 else ''}: it is not the same model"
    return ""


def _inputs_in_words(specs: Sequence[TensorSpec]) -> str:
    each = [f"{spec.dtype}{list(spec.shape)}" for spec in specs]
    return (
        each[0] if len(specs) == 1 else ", ".join(f"{spec.name} {one}" for spec, one in zip(specs, each, strict=True))
    )


def _fit(a: tuple[int | str, ...], b: tuple[int | str, ...]) -> bool:
    """Return whether two shapes name one input: as many axes, and none of two different lengths; the first is the batch."""
    if len(a) != len(b):
        return False
    pairs = list(zip(a, b, strict=True))[1:]
    return all(one == other or isinstance(one, str) or isinstance(other, str) for one, other in pairs)


def _gate(
    name: Any,
    outcome: Outcome,
    says: str,
    values: Mapping[str, float | None] | None = None,
    limits: Mapping[str, float] | None = None,
) -> Gate:
    return Gate(name=name, outcome=outcome, says=says, values=dict(values or {}), limits=dict(limits or {}))


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None

"""Whether one variant of a model may stand in for another: gates, cheapest first, each with its numbers.

    static     both open, take the same inputs, and any batch size
    census     of a quantized B: how much of it the engine really computes in int8
    parity     the answers to the same items, number by number: NaN, infinities, shapes, distances
    speed      calls in turn on one batch, against the noise of the same minutes
    accuracy   right answers on a golden set, or the same answers where the right ones are not known: a test that may be looked
               at after every item, with the margin stated before

A variant is a file together with everything that decides how it runs: the same int8 file was measured at 0.64 and at 8.2 times
the speed of its original on two engines, and 20 points apart in accuracy. After a rejection no dearer gate is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import HeadraceError
from headrace.base.protocols import Model
from headrace.base.settings import check
from headrace.base.units import format_duration
from headrace.base.words import counted
from headrace.profiler.layers.table import PROFILERS
from headrace.runs.formats.variants import Gate, GateName, Outcome, ValidationDocument, VariantSide
from headrace.validate.census import LEAST_INT8_SHARE, is_quantized, take_census
from headrace.validate.golden import Golden, made_up, spread
from headrace.validate.interrupts import noticing
from headrace.validate.model_speed import measure_speed
from headrace.validate.noninferiority import Decision, Finding, judge_drop, largest_discordance
from headrace.validate.parity import BANDS, compare_outputs, num_broken, num_classes, top_1
from headrace.validate.slices import FEWEST_SOURCES, drop_by_source, worst_slice
from headrace.validate.variant_spec import VariantSpec

#: Items whose answers are compared number by number.
PARITY_ITEMS = 64
#: Without labels, an answer further off than so many bands is no rounding.
MOST_BANDS = 5.0
_OUTCOMES: Mapping[Decision, Outcome] = {
    Decision.ACCEPT: "passed",
    Decision.REJECT: "rejected",
    Decision.INCONCLUSIVE: "inconclusive",
}
#: Standard errors beyond chance from which on the labels are believed to be those of the model.
_BEYOND_CHANCE = 3.0
#: How long a census lasts.
_CENSUS_SECONDS = 0.5
#: Those that need no labels and take seconds: what a search asks of every candidate.
CHEAP_GATES: tuple[GateName, ...] = ("static", "census", "parity", "speed")
ALL_GATES: tuple[GateName, ...] = (*CHEAP_GATES, "accuracy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is asked of the candidate."""

    max_drop: float = 0.005
    """Largest acceptable drop of the share of right answers."""
    max_slice_drop: float = 0.05
    """Largest acceptable drop within a part of the golden set, such as a class."""
    min_speedup: float | None = None
    """The least speed-up that makes it worth while; None: it need not be faster."""
    batch: int = 1
    """Items of the batch that is timed."""
    alpha: float = 0.05
    """Probability of accepting a B that drops by more, at most; who tries several shares it among them."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(0 < self.max_drop < 1, "--max-drop", self.max_drop, "more than 0 and less than 100 points")
        check(
            0 < self.max_slice_drop < 1, "--max-slice-drop", self.max_slice_drop, "more than 0 and less than 100 points"
        )
        check(self.min_speedup is None or self.min_speedup > 0, "--min-speedup", self.min_speedup, "more than 0")
        check(1 <= self.batch <= 4096, "--batch", self.batch, "1 to 4096")


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


def precision_of(spec: VariantSpec, model: Model | None = None) -> str:
    """Return what a variant computes in: int8 where its file is quantized, else what the engine says, or is asked for."""
    if _is_quantized(spec):
        return "int8"
    said = str((model.variant if model else spec.model.options).get("precision", "f32"))
    return said if said in BANDS else "f32"


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
    gates: list[Gate] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def run(self, gates: Sequence[GateName]) -> None:
        """Ask until one rejects."""
        asked = {
            "static": self._static, "census": self._census, "parity": self._parity, "speed": self._speed,
            "accuracy": self._accuracy,
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
        for first, second in zip(self.a.model.inputs, self.b.model.inputs, strict=False):
            if first.dtype != second.dtype or not _fit(first.shape, second.shape):
                said = f"B takes {second.dtype}{list(second.shape)} where A takes {first.dtype}{list(first.shape)}"
                return _gate("static", "rejected", f"{said}: it is not the same model")
        if len(self.a.model.inputs) != len(self.b.model.inputs):
            return _gate(
                "static", "rejected", f"A takes {len(self.a.model.inputs)} inputs, B {len(self.b.model.inputs)}"
            )
        for size in sorted({1, self.policy.batch}):
            batch = self._batch(size)
            for name, opened in (("A", self.a), ("B", self.b)):
                try:
                    opened.model(batch)
                except Exception as error:  # engines raise their own types
                    return _gate("static", "rejected", f"{name} refuses a batch of {size}: {error}")
        return _gate(
            "static", "passed", f"both take {self.a.model.inputs[0].dtype}{list(self.a.model.inputs[0].shape)}"
        )

    def _census(self) -> Gate | None:
        """Ask how B really runs, if it is quantized and A is not; None if there is nothing to ask."""
        if not self.b.is_quantized() or self.a.is_quantized() or self.b.spec.model.engine not in PROFILERS:
            return None
        found = take_census(self.b.spec, self._batch(self.policy.batch), seconds=_CENSUS_SECONDS)
        values = {"int8_share": found.int8_share, "conversion_share": found.conversion_share}
        limits = {"int8_share": LEAST_INT8_SHARE}
        if found.int8_share is None or found.int8_share >= LEAST_INT8_SHARE:
            return _gate("census", "passed", found.says, values, limits)
        why = "; ".join(found.advice[:2])
        says = f"only {found.int8_share:.0%} of what is quantized runs in int8: {found.says}; {why}"
        return _gate("census", "rejected", says, values, limits)

    def _parity(self) -> Gate:
        first, second = (
            list(self._calls(opened, spread(len(self.golden), PARITY_ITEMS))) for opened in (self.a, self.b)
        )
        if self.is_interrupted():  # then one of the two has answered fewer
            return _gate("parity", "inconclusive", "interrupted")
        found = compare_outputs(joined(first), joined(second))
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
            return _gate("parity", "rejected", says, values, limits)
        says = (
            f"relative L2 {found.relative_l2:.2g} (worst {found.worst_l2:.2g}), cosine {found.cosine:.5f} or more"
            + ("" if found.flips is None else f", another first answer for {found.flips:.1%}")
            + f", of {found.num_items} items; usual is up to {band:g}"
        )
        if found.relative_l2 <= band:
            return _gate("parity", "passed", says, values, limits)
        if self.golden.labels is None and found.relative_l2 > MOST_BANDS * band:
            return _gate("parity", "rejected", f"{says}: that is no rounding", values, limits)
        self.warnings.append(f"the answers differ by more than {self.b.precision()} usually does: {says}")
        return _gate("parity", "passed", f"{says}; whether that matters the accuracy tells", values, limits)

    def _speed(self) -> Gate:
        found = measure_speed(self.a.model, self.b.model, self._batch(self.policy.batch), stop=self.is_interrupted)
        if found is None:
            return _gate("speed", "inconclusive", "interrupted before there were enough rounds")
        self.a.call_seconds, self.b.call_seconds = found.a_seconds, found.b_seconds
        values = {"ratio": found.ratio, "low": found.low, "high": found.high, "noise": found.noise}
        says = (
            f"B is {found.ratio:.2f} times as fast ({found.low:.2f} to {found.high:.2f}), {format_duration(found.b_seconds)} "
            f"against {format_duration(found.a_seconds)} for a batch of {self.policy.batch}; A differs from itself by up to "
            f"{found.noise:.0%}"
        )
        least = self.policy.min_speedup
        if least is None:
            return _gate("speed", "passed", says, values)
        outcome: Outcome = "passed" if found.low >= least else "rejected" if found.high < least else "inconclusive"
        return _gate("speed", outcome, says, values, {"min_speedup": least})

    def _accuracy(self) -> Gate:
        margin, limits = self.policy.max_drop, {"max_drop": self.policy.max_drop}
        if self.golden.is_made_up:
            return _gate("accuracy", "skipped", "not known: there is no golden set; give one with --golden", {}, limits)
        answers = [_read_answers(self._calls(opened, np.arange(len(self.golden)))) for opened in (self.a, self.b)]
        if self.is_interrupted():
            return _gate("accuracy", "inconclusive", "interrupted", {}, limits)
        broken = [one.broken for one in answers]
        if broken[1] > broken[0]:
            says = f"{broken[1]} of {len(self.golden)} answers of B hold a NaN or an infinity, of A {broken[0]}"
            return _gate("accuracy", "rejected", says, {"broken": float(broken[1])}, limits)
        first, second = (one.top_1 for one in answers)
        if first is None or second is None:
            return _gate("accuracy", "skipped", "not known: the answers are no scores of classes", {}, limits)
        labels = self.golden.labels
        if labels is None:
            differences = -np.not_equal(first, second).astype(float)
        else:
            differences = np.equal(second, labels).astype(float) - np.equal(first, labels).astype(float)
        # In a random order: files are sorted by class, and the first class alone says nothing of the others.
        found = judge_drop(np.random.default_rng(0).permutation(differences), margin, self.policy.alpha)
        right = None if labels is None else [float(np.equal(one, labels).mean()) for one in (first, second)]
        values = {
            "drop": found.drop, "low": found.low, "high": found.high, "discordance": found.discordance,
            "a": right[0] if right else None, "b": right[1] if right else None,
        }  # fmt: skip
        doubt = None if labels is None or right is None else _doubt(labels, answers[0].num_classes, right[0])
        if doubt is not None:
            return _gate("accuracy", "inconclusive", doubt, values, limits)
        outcome, says = _OUTCOMES[found.decision], _accuracy_says(found, right, margin)
        if outcome != "rejected":
            hidden = worst_slice(differences, self._parts(), self.policy.max_slice_drop)
            if hidden is not None:
                values["slice_drop"], limits["max_slice_drop"] = hidden.drop, self.policy.max_slice_drop
                says = (
                    f"in the part `{hidden.name}` ({counted(hidden.num_items, 'item')}) it drops by {100 * hidden.drop:.1f} "
                    f"points, {100 * self.policy.max_slice_drop:g} are allowed; over all: {says}"
                )
                return _gate("accuracy", "rejected", says, values, limits)
        self._note_sources(differences, values)
        return _gate("accuracy", outcome, says, values, limits)

    def _parts(self) -> dict[str, np.ndarray]:
        """Return what the golden set is divided by: its classes, and its own slices."""
        classes = {} if self.golden.labels is None else {"class": self.golden.labels}
        return {**classes, **self.golden.slices}

    def _note_sources(self, differences: np.ndarray, values: dict[str, float | None]) -> None:
        if self.golden.sources is None:
            return
        interval = drop_by_source(differences, self.golden.sources)
        if interval is None:
            self.warnings.append(
                f"the golden set is from fewer than {FEWEST_SOURCES} sources: it says little about others"
            )
            return
        values["source_low"], values["source_high"] = interval
        if interval[1] > self.policy.max_drop:
            self.warnings.append(
                f"with whole sources drawn anew it is {100 * interval[0]:+.2f} to {100 * interval[1]:+.2f} points: it hangs "
                "on a few of them; take items from more"
            )

    # --- calling

    def _batch(self, size: int) -> np.ndarray:
        """Return items of the golden set, around again where there are too few."""
        return np.ascontiguousarray(self.golden.inputs[np.arange(size) % len(self.golden)])

    def _calls(self, opened: _Opened, places: np.ndarray) -> Iterator[Any]:
        """Give the answers to the items at these places, batch by batch."""
        for start in range(0, len(places), self.policy.batch):
            if self.is_interrupted():
                return
            yield opened.model(np.ascontiguousarray(self.golden.inputs[places[start : start + self.policy.batch]]))


def validate_variants(
    a: VariantSpec,
    b: VariantSpec,
    golden: Golden | None,
    policy: Policy | None = None,
    *,
    gates: Sequence[GateName] = ALL_GATES,
    say: Callable[[str], object] = lambda text: None,
) -> ValidationDocument:
    """Return whether B may stand in for A.

    Args:
        a: The incumbent.
        b: The candidate.
        golden: What both answer; None: noise, which tells nothing about accuracy.
        policy: What is asked of B.
        gates: Those to ask, in this order; a verdict says no more than they did.
        say: Told about each gate, one line at a time.

    Raises:
        EngineError: If A cannot be opened. A B that cannot be is rejected.
        SettingsError: If a file does not exist, or the model takes inputs for which nothing can be made up and there is no
            golden set.
    """
    policy = policy or Policy()
    for spec in (a, b):
        artifact = spec.model.artifact
        check(artifact is None or Path(artifact).is_file(), "model file", artifact, "a file that exists")
    first = _open(a)
    golden = golden or made_up(first.model.inputs[0], PARITY_ITEMS)
    try:
        second = _open(b)
    except HeadraceError as error:
        gate = _gate("static", "rejected", f"B cannot be opened: {error}")
        nothing = VariantSide(name=b.text, variant={}, open_seconds=0.0)
        return _document(first.side(), nothing, [gate], golden, policy, [], interrupted=False)
    with noticing() as is_interrupted:
        validation = _Validation(first, second, golden, policy, is_interrupted, say)
        validation.run(gates)
        interrupted = is_interrupted()
    return _document(
        first.side(), second.side(), validation.gates, golden, policy, validation.warnings, interrupted=interrupted
    )


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
    open_ones = [gate for gate in gates if gate.outcome in ("inconclusive", "skipped")]
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
        verdict=verdict,  # type: ignore[arg-type]
        says=says,
        gates=tuple(gates),
        batch=policy.batch,
        golden=golden.name,
        golden_sha256=golden.sha256,
        num_items=len(golden),
        next_command=_next(a, b, verdict, golden),
        interrupted=interrupted,
        warnings=tuple(warnings),
    )


def _next(a: VariantSide, b: VariantSide, verdict: str, golden: Golden) -> str | None:
    if verdict != "inconclusive" or not golden.is_made_up:
        return None
    return f"headrace validate {a.name} {b.name} --golden GOLDEN.npz"


def _accuracy_says(found: Finding, right: list[float] | None, margin: float) -> str:
    what = (
        f"another first answer for {found.discordance:.2%} of {found.num_items:,} items (labels would tell which is right)"
        if right is None
        else f"{right[1]:.2%} right against {right[0]:.2%}, of {found.num_items:,} items"
    )
    points = f"drop {100 * found.drop:+.2f} points ({100 * found.low:+.2f} to {100 * found.high:+.2f})"
    limit = f"{100 * margin:g} points are allowed"
    if found.decision is not Decision.INCONCLUSIVE:
        return f"{what}; {points}; {limit}, decided after {found.decided_after:,} items"
    enough = 100 * largest_discordance(margin, found.num_items)
    more = (
        f"about {found.more_items:,} more would decide it"
        if found.more_items
        else "no number of such items would decide it"
    )
    return f"{what}; {points}; {limit}: undecided, {more} (so many can show it only up to {enough:.2g} % of differing answers)"


@dataclass(frozen=True, slots=True)
class _Answers:
    """What a variant answered to the golden set."""

    top_1: np.ndarray | None
    """(items,); None where the answers are no scores."""
    broken: int
    """Items with a NaN or an infinity."""
    num_classes: int


def _read_answers(calls: Iterator[Any]) -> _Answers:
    found, broken, classes = [], 0, 0
    for outputs in calls:
        found.append(top_1(outputs))
        broken += num_broken(outputs)
        classes = num_classes(outputs)
    known = [one for one in found if one is not None]
    return _Answers(np.concatenate(known) if known and len(known) == len(found) else None, broken, classes)


def _doubt(labels: np.ndarray, classes: int, right: float) -> str | None:
    """Return why labels cannot be those of this model; None if they may be."""
    if labels.min() < 0 or labels.max() >= classes:
        return (
            f"the labels go from {labels.min()} to {labels.max()}, and the model has {classes} classes: labels are the "
            "classes' places in the output, counted from 0"
        )
    commonest = float(np.bincount(labels).max() / len(labels))
    chance = commonest + _BEYOND_CHANCE * np.sqrt(commonest * (1 - commonest) / len(labels))
    if len(np.unique(labels)) > 1 and right <= chance:
        return (
            f"A itself is right for {right:.2%} of the items, and always naming the commonest class for {commonest:.2%}: "
            "labels or preprocessing are not those of this model"
        )
    return None


def joined(answers: Sequence[Any]) -> Any:
    """Return the answers to several batches as those to one."""
    if isinstance(answers[0], dict):
        return {name: np.concatenate([one[name] for one in answers]) for name in answers[0]}
    return np.concatenate(answers)


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

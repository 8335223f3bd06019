"""Head to head: variants that tie are compared directly, in pairs, in the same minutes.

Each was compared with what is in use, and the minutes of one are not those of another: two intervals that overlap may belong to
variants of which one is surely faster. So the fastest meets the next, and who wins meets the one after; only of two that even
their own rounds do not tell apart the one that changes less is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.base.errors import HeadraceError
from headrace.base.plan import ModelPlan
from headrace.optimize.concurrency import Concurrency, compare_concurrency
from headrace.optimize.pareto import KINDS, Point
from headrace.optimize.search_words import name_attempt
from headrace.optimize.techniques import Subject
from headrace.runs.formats.optimization import Attempt, RunOff
from headrace.runs.formats.profile import Estimate
from headrace.validate import measuring
from headrace.validate.golden import Golden
from headrace.validate.items import Feed, batch_of
from headrace.validate.model_speed import Settled, Speed, as_estimate
from headrace.validate.variant_spec import VariantSpec
from headrace.validate.variants import OnItsOwn

#: Most rounds of two; looked at after each quarter of them.
ROUNDS = 48


@dataclass(slots=True)
class HeadToHead:
    """Compares variants that tie, pair by pair.

    Args:
        measure: (first, second, *, settled) -> the speed of the second over the first, in as many rounds as settle it; None
            if it could not be measured, or was stopped.
        named: A variant's name for people.
        by_cpu: Whether less CPU time wins instead of more speed.
    """

    measure: Callable[..., Speed | None]
    named: Callable[[Point], str]
    by_cpu: bool = False
    held: list[RunOff] = field(default_factory=list)

    def best(self, tied: Sequence[Point]) -> Point:
        """Return the one to use.

        Args:
            tied: At least one, the fastest (for CPU time the cheapest) first.
        """
        first, *others = tied
        for other in others:
            first = self._meet(first, other)
        return first

    def is_settled(self, speed: Speed) -> bool:
        """Return whether it is known who wins."""
        ratio = self._ratio(speed)
        return ratio is not None and (ratio.low > 1.0 or ratio.high < 1.0)

    def _ratio(self, speed: Speed | None) -> Estimate | None:
        """Return how much better the second is than the first."""
        found = speed.cpu if speed is not None and self.by_cpu else speed
        return None if found is None else as_estimate(found)

    def _meet(self, first: Point, other: Point) -> Point:
        speed = self.measure(first, other, settled=self.is_settled)
        ratio = self._ratio(speed)
        simpler = min(first, other, key=lambda point: KINDS.index(point.kind))  # of one kind the one that was ahead
        chosen = simpler
        if ratio is not None and (ratio.low > 1.0 or ratio.high < 1.0):
            chosen = other if ratio.low > 1.0 else first
        self.held.append(
            RunOff(
                a=first.name, b=other.name, ratio=ratio, rounds=speed.rounds if speed else 0, chosen=chosen.name,
                says=self._says(first, other, ratio, chosen),
            )
        )  # fmt: skip
        return chosen

    def _says(self, first: Point, other: Point, ratio: Estimate | None, chosen: Point) -> str:
        names = self.named(other), self.named(first)
        used = f"{self.named(chosen)} is used, which changes no more than the other"
        if ratio is None:
            return f"{names[0]} and {names[1]} could not be held against each other: {used}"
        if ratio.high < 1.0:
            names, ratio = names[::-1], Estimate(1 / ratio.high, 1 / ratio.mid, 1 / ratio.low)
        within = f"({ratio.low:.2f} to {ratio.high:.2f})"
        if ratio.low > 1.0:
            gains = "takes {:.2f} times less CPU time than" if self.by_cpu else "is {:.2f} times as fast as"
            return f"{names[0]} {gains.format(ratio.mid)} {names[1]} {within}, in pairs"
        return f"{names[0]} and {names[1]} cannot be told apart in pairs {within}: {used}"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Times accepted variants in turn, at their own concurrency where that was searched.

    Args:
        subject: What is optimized.
        known: The attempts by candidate.
        concurrency: The search for each variant's concurrency by its point's name; empty: calls of `batch` items are timed.
        items: That the models are called with.
        batch: Items of a call.
        say: Told what is going on, one line at a time.
    """

    subject: Subject
    known: Mapping[str, Attempt]
    concurrency: Mapping[str, Attempt]
    items: Golden
    batch: int
    say: Callable[[str], object]

    def name_point(self, point: Point) -> str:
        """Return a variant's technique and engine, or what is in use in words."""
        return name_attempt(self.known[point.name]) if point.name in self.known else self.subject.called

    def measure(
        self, first: Point, second: Point, *, settled: Settled, stop: Callable[[], bool] = lambda: False
    ) -> Speed | None:
        """Return the speed of the second over the first."""
        self.say(f"{self.name_point(first)} and {self.name_point(second)} tie: they are timed in turn")
        a, b = self._spec(first), self._spec(second)
        try:
            if self.concurrency:
                sides = (a, self._concurrency_of(first)), (b, self._concurrency_of(second))
                items = (self.items.scale_to(one.model.input_side) for one in (a, b))
                return compare_concurrency(*sides, *items, rounds=ROUNDS, stop=stop, settled=settled)
            model, batch = b.open(), self._batch(b)
            other = model if a.model.input_side == b.model.input_side else OnItsOwn(model, batch)
            tools = measuring.current()
            return tools.measure_speed(
                a.open(), other, self._batch(a), rounds=ROUNDS, stop=stop, settled=settled, timing=tools.timing
            )
        except HeadraceError as error:
            self.say(f"not timed in turn: {error}")
            return None

    def _batch(self, spec: VariantSpec) -> Feed:
        """Return items as a variant takes them, around again where there are too few."""
        return batch_of(self.items.scale_to(spec.model.input_side), self.batch)

    def _spec(self, point: Point) -> VariantSpec:
        attempt = self.known.get(point.name)
        return VariantSpec(point.name, ModelPlan(**attempt.settings)) if attempt else self.subject.in_use()

    def _concurrency_of(self, point: Point) -> Concurrency:
        found = self.concurrency[point.name]
        return Concurrency(
            workers=found.stages["workers"], threads=found.settings["threads"], batch=found.stages["batch"]
        )

"""How many machines a rate needs, what that costs, and what each improvement would save, as the document `headrace.capacity/1`.

The arithmetic is meant to be redone by hand, and `says` writes it out: machines = ceil(rate / usable throughput of one), where
usable is full load less headroom, or what the latency goal allows if that is less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.goals import LatencyGoal
from headrace.base.settings import check
from headrace.base.units import format_duration, format_rate
from headrace.runs.formats.capacity import CapacityDocument, CapacityOption
from headrace.runs.formats.prediction import Change, TrackRecord
from headrace.runs.formats.profile import Estimate
from headrace.tune.capacity_words import describe, money
from headrace.tune.usable_rate import UsableMachine

if TYPE_CHECKING:
    from headrace.diagnose.replay import Replay
    from headrace.tune.largest_rate import Held

#: Share of full load that is left free unless the user says otherwise. At 80 % an item waits four service times on average
#: where one worker serves (M/M/1: U / (1 - U); Kleinrock, "Queueing Systems", 1975), at 95 % nineteen; and one machine of five
#: may fail or be replaced, the others then being at full load.
HEADROOM = 0.20
#: Hours that clouds count as a month: 365 * 24 / 12.
HOURS_PER_MONTH = 730

_MOST_RATE = 1e9
_MOST_PRICE = 1e6
_MOST_HEADROOM = 0.95
AS_RECORDED = "as recorded"
_NOTHING = Change()


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What is asked for."""

    rate: float
    """Jobs per second that come."""
    slo: LatencyGoal | None = None
    price_per_hour: float | None = None
    """Of one machine, in the user's currency."""
    headroom: float = HEADROOM
    """Share of full load to leave free, 0 to 0.95."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(0 < self.rate <= _MOST_RATE, "--rate", f"{self.rate:g}/s", f"more than 0, up to {_MOST_RATE:g}/s")
        price = self.price_per_hour
        check(price is None or 0 <= price <= _MOST_PRICE, "--price", price, f"0 to {_MOST_PRICE:g} an hour")
        check(0 <= self.headroom <= _MOST_HEADROOM, "--headroom", self.headroom, f"0% to {_MOST_HEADROOM:.0%}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A change to look at."""

    name: str
    change: Change
    note: str = ""
    """What the numbers leave out, such as that a larger machine costs more."""


def capacity_document(
    replay: Replay,
    need: Need,
    wanted: Sequence[Wanted] = (),
    *,
    base: Change = _NOTHING,
    record: TrackRecord | None = None,
    seed: int = 0,
) -> CapacityDocument:
    """Return how many machines a rate needs, as recorded and with each change, and what they cost.

    Args:
        replay: One machine's run.
        need: What is asked for.
        wanted: Changes to look at; those that come to the same as another are kept.
        base: What the machine has otherwise than the recorded one.
        record: How well earlier predictions did.
        seed: Of the simulated arrivals.
    """
    record = record or TrackRecord(num=0)
    study = _Study(UsableMachine(replay, seed), need, record)
    first = study.option(Wanted(AS_RECORDED, base))
    others = [_add_savings(study.option(one), first) for one in wanted]
    others.sort(key=lambda option: (option.usable_throughput is None, -(option.usable_throughput or 0.0)))
    document = CapacityDocument(
        run=replay.document.run,
        headrace_version=replay.document.headrace_version,
        pipeline=replay.document.pipeline,
        plan_id=replay.document.plan_id,
        rate=need.rate,
        slo="" if need.slo is None else str(need.slo),
        slo_met=study.slo_met(first),
        headroom=need.headroom,
        price_per_hour=need.price_per_hour,
        options=(first, *others),
        says=(),
        warnings=tuple(_warnings(replay, study)),
        record=record,
        is_emulated=replay.document.is_emulated,
    )
    return describe(document, HOURS_PER_MONTH)


def machines_needed(rate: float, usable: float) -> int:
    """Return how many machines of a usable throughput take a rate; both in jobs per second, above 0."""
    # a hair less than a whole number is rounding: 3 * 0.1 / 0.1 is 3.0000000000000004
    return max(1, math.ceil(rate / usable * (1 - 1e-12)))


class _Study:
    """Makes one option after the other."""

    def __init__(self, machine: UsableMachine, need: Need, record: TrackRecord) -> None:
        self.machine = machine
        self.need = need
        self._record = record
        self.why_no_latency = machine.explain_no_latency() if need.slo else ""
        self.warnings: tuple[str, ...] = ()
        """Of the prediction for the run as recorded."""

    def option(self, wanted: Wanted) -> CapacityOption:
        """Return what a change comes to."""
        from headrace.diagnose.replay import CannotReplay

        try:
            document = self.machine.predict(wanted.change, self._record)
            if wanted.name == AS_RECORDED:
                self.warnings = document.warnings
            metric = document.throughput
            if metric.predicted is None:
                return _make_refused(wanted, None, metric.refused)
            full = self.machine.full_load(wanted.change, metric.predicted)
            return self._price(wanted, full)
        except CannotReplay as error:
            return _make_refused(wanted, None, str(error))

    def slo_met(self, base: CapacityOption) -> bool | None:
        """Return whether the latency goal can be held as recorded."""
        if self.need.slo is None or self.why_no_latency or base.throughput is None:
            return None
        return base.usable_throughput is not None

    def _price(self, wanted: Wanted, full: Estimate) -> CapacityOption:
        share, why = self._usable_share(wanted.change)
        if share is None:
            return _make_refused(wanted, full, why)
        rate, price = self.need.rate, self.need.price_per_hour
        machines = machines_needed(rate, share * full.mid)
        hourly = None if price is None else machines * price
        return CapacityOption(
            name=wanted.name,
            change=wanted.change,
            throughput=full,
            usable_throughput=share * full.mid,
            usable_share=share,
            machines=machines,
            machines_range=(machines_needed(rate, share * full.high), machines_needed(rate, share * full.low)),
            cost_per_million=None if hourly is None else hourly / (rate * 3600) * 1e6,
            cost_per_month=None if hourly is None else hourly * HOURS_PER_MONTH,
            saves_per_month=None,
            latency_p99=self._latency(wanted.change, full, rate / machines),
            says=why,
            note=wanted.note,
        )

    def _usable_share(self, change: Change) -> tuple[float | None, str]:
        """Return the share of full load to count on, and why so much."""
        most, goal = 1 - self.need.headroom, self.need.slo
        if goal is None or self.why_no_latency:
            return most, f"{most:.0%} of full load is counted on; {self.need.headroom:.0%} is headroom."
        held = self.machine.usable_share(change, goal, most)
        return held.share, _explain_share(held, goal, self.need.headroom)

    def _latency(self, change: Change, full: Estimate, rate: float) -> Estimate | None:
        """Return p99 at the rate that one machine gets."""
        if self.need.slo is None or self.why_no_latency:
            return None
        at = [self.machine.percentile_at(change, rate / speed, 99) for speed in (full.high, full.mid, full.low)]
        return Estimate(min(at), at[1], max(at))


def _explain_share(held: Held, goal: LatencyGoal, headroom: float) -> str:
    name = f"p{goal.percentile:g}"
    if held.share is None:
        return (
            f"{name} is {format_duration(held.seconds)} at best, when few jobs come: {goal} cannot be held at any rate"
        )
    if held.broken_share is None:
        return f"At {held.share:.0%} of full load {name} is {format_duration(held.seconds)}: headroom is the limit."
    broken = format_duration(held.broken_seconds or 0.0)
    return (
        f"{name} is {format_duration(held.seconds)} at {held.share:.0%} of full load and {broken} at {held.broken_share:.0%}: "
        "the goal is the limit."
    )


def _make_refused(wanted: Wanted, full: Estimate | None, why: str) -> CapacityOption:
    return CapacityOption(
        name=wanted.name,
        change=wanted.change,
        throughput=full,
        usable_throughput=None,
        machines=None,
        cost_per_million=None,
        cost_per_month=None,
        saves_per_month=None,
        latency_p99=None,
        says="",
        note=wanted.note,
        refused=why or "the throughput of this change cannot be predicted",
    )


def _add_savings(option: CapacityOption, base: CapacityOption) -> CapacityOption:
    import msgspec

    if option.cost_per_month is None or base.cost_per_month is None:
        return option
    return msgspec.structs.replace(option, saves_per_month=base.cost_per_month - option.cost_per_month)


def _warnings(replay: Replay, study: _Study) -> list[str]:
    found = []
    if study.why_no_latency:
        found.append(f"whether {study.need.slo} holds cannot be told: {study.why_no_latency}")
    if study.machine.was_idle:
        found.append(
            f"the run waited for jobs ({format_rate(replay.throughput)} came): full load is extrapolated by simulation; "
            "profile a run over a full queue to be surer"
        )
    found += study.warnings
    if study.need.price_per_hour == 0:
        found.append(f"at a price of {money(0.0)} nothing saves anything")
    return found

"""Runs pipelines, or several Plans of one, in turn over the same items.

How this works: a pilot runs each contender until its rate is known, which warms it up; the number of items is then chosen so
that a block of the fastest lasts as long as asked. Then come rounds of blocks, one of each contender, as
`headrace.compare.turns` runs them. With `until_sure` they go on until the answer is there.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.base.errors import HeadraceError, Interrupted, JobsFail
from headrace.base.observer import Observer
from headrace.base.settings import check
from headrace.base.units import format_duration
from headrace.compare.blocks import FEWEST_ITEMS, Block, Contender, Measurable, SameItems, fewest_items, quiet
from headrace.compare.interrupts import noticing
from headrace.compare.neighbours import have_changed
from headrace.compare.sequential import doubling, once
from headrace.compare.turns import Turns, take_turns
from headrace.compare.words import MOST_PAIRS
from headrace.delivery.collect import Collect

Say = Callable[[str], object]
"""Takes one line about the progress."""

#: A block of the slowest contender lasts at most so many times what was asked for, or the fastest has fewer items.
MOST_UNEVEN = 4.0
#: A pilot ends when a run of it lasted this share of a block.
_PILOT_SHARE = 1 / 3
_PILOT_TRIES = 8
_PILOT_GROWTH = 16
_NOTHING_KNOWN = "interrupted before every contender was measured once; nothing is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """How much is measured."""

    pairs: int = 24
    """Pairs of blocks (rounds, of more than two contenders); with `until_sure` those before the first look. By 24, a true
    change of 5 % is found nine times in ten even where pairs differ by 4 % and single blocks are slow by a quarter."""
    seconds: float = 1.0
    """Length of a block of the fastest contender."""
    items: int | None = None
    """Items of a block instead."""
    deliver: bool = False
    """Hand results to the pipelines' own deliveries."""
    until_sure: bool = False
    """Go on until the answer is sure or the time is over."""
    time_limit_seconds: float = 600.0
    """No new round begins after this time; only with `until_sure`."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(1 <= self.pairs <= MOST_PAIRS, "--blocks", self.pairs, f"1 to {MOST_PAIRS} pairs")
        check(0 < self.seconds <= 3600, "--seconds", self.seconds, "more than 0, up to 3600")
        fewest = f"a whole number >= {FEWEST_ITEMS}: fewer tell no rate"
        check(self.items is None or self.items >= FEWEST_ITEMS, "--items", self.items, fewest)
        check(self.time_limit_seconds > 0, "--time-limit", self.time_limit_seconds, "more than 0")


@dataclass(slots=True, kw_only=True)
class Measured:
    """What was measured of some contenders."""

    turns: Turns[Block] = field(default_factory=Turns)
    num_items: int = 0
    """Of each block."""
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """{contender: {job: its result in the pilot}}; empty unless asked for."""
    failures: dict[str, str] = field(default_factory=dict)
    """{contender: why it could not run}, of those that may fail."""

    @property
    def num_whole_rounds(self) -> int:
        """Rounds in which every contender was measured; an interrupt may leave another one."""
        rounds = self.turns.rounds
        return sum(len(found) == len(rounds[0]) for found in rounds)


def measure_contenders(
    contenders: Mapping[str, Measurable],
    items: SameItems,
    blocks: Blocks,
    say: Say,
    *,
    is_sure: Callable[[Turns[Block]], bool] = lambda turns: False,
    may_fail: Set[str] = frozenset(),
    keep_results: bool = False,
) -> Measured:
    """Run contenders in turn and return their blocks; an interrupt ends it with those at hand.

    Args:
        contenders: By a name for people, in order.
        items: What every block runs over.
        blocks: How much is measured.
        say: Takes the progress.
        is_sure: Called at each look of `until_sure`.
        may_fail: Names of those that are left out if their pilot fails.
        keep_results: Keep what comes out of the pilots, all of which then run over the same number of items.

    Raises:
        HeadraceError: If a contender cannot run, or gives no results to measure.
        Interrupted: If it was interrupted before each was measured once.
    """
    try:
        with quiet(), noticing() as is_interrupted:
            measured = _Race(contenders, items, blocks, say, is_interrupted, keep_results).run(is_sure, may_fail)
    except KeyboardInterrupt:
        raise Interrupted(_NOTHING_KNOWN) from None
    first = measured.turns.rounds[:1]
    if measured.turns.interrupted and not any(
        len(found) + len(measured.failures) == len(contenders) for found in first
    ):
        raise Interrupted(_NOTHING_KNOWN)
    return measured


def run_block(
    contender: Measurable,
    items: SameItems,
    num_items: int,
    is_interrupted: Callable[[], bool] = lambda: False,
    *,
    deliver: bool = False,
    observers: Sequence[Observer] = (),
) -> Block:
    """Return a block that no signal cut short; see `measure_block`.

    Raises:
        Interrupted: If one did.
        HeadraceError: What running raises.
    """
    try:
        block = contender.measure(items, num_items, deliver=deliver, observers=observers)
    except (HeadraceError, MemoryError):
        if is_interrupted():  # workers that are signalled too may be gone before the run hears of it
            raise Interrupted(_NOTHING_KNOWN) from None
        raise
    if block.interrupted or is_interrupted():
        raise Interrupted(_NOTHING_KNOWN)
    return block


def run_pilot(name: str, run: Callable[[int], Block], seconds: float, say: Say, num_items: int | None = None) -> Block:
    """Run a contender over more and more items until a run lasts long enough to tell its rate, and return that block.

    Args:
        name: Of the contender, for people.
        run: Returns a block of so many items.
        seconds: Long enough.
        say: Takes the progress.
        num_items: Run it once over these instead.

    Raises:
        HeadraceError: If it gives no results to measure.
    """
    wanted = num_items or FEWEST_ITEMS
    for _ in range(1 if num_items else _PILOT_TRIES):
        tried = wanted
        say(f"pilot of {name}: {tried:,} items")
        block = run(tried)
        wanted = fewest_items(block.plan)
        if block.throughput is not None:
            wanted = max(wanted, math.ceil(block.throughput * seconds))
        elif block.delivered:  # some failed, or came all at once: perhaps there were too few
            wanted = max(wanted, 2 * tried)
        if tried >= wanted:
            break
        wanted = min(wanted, tried * _PILOT_GROWTH)
    return with_rate(name, block)


def with_rate(name: str, block: Block) -> Block:
    """Return a block that has a rate.

    Raises:
        JobsFail: If it has none because most of its jobs failed.
        HeadraceError: If it has none.
    """
    if block.throughput is not None:
        return block
    kind = JobsFail if block.failed > block.delivered else HeadraceError
    raise kind(
        f"{name}: {block.delivered} of {block.delivered + block.failed} jobs gave a result and {block.failed} failed; a rate "
        f"needs {FEWEST_ITEMS} results that do not come all at once"
        + (f". The first failure: {block.first_failure}" if block.first_failure else "")
    )


@dataclass(slots=True)
class _Race:
    contenders: Mapping[str, Measurable]
    items: SameItems
    blocks: Blocks
    say: Say
    is_interrupted: Callable[[], bool]
    keep_results: bool
    began: float = field(default_factory=time.monotonic)
    measured: Measured = field(default_factory=Measured)

    def run(self, is_sure: Callable[[Turns[Block]], bool], may_fail: Set[str]) -> Measured:
        """Run the pilots, then the rounds."""
        blocks = self.blocks
        pilots = self._run_pilots(may_fail)
        num_items = self.measured.num_items = blocks.items or self._choose_num_items(list(pilots.values()))
        one_round = sum(lasts(pilot, num_items) for pilot in pilots.values())
        kind = "pair" if len(pilots) == 2 else "round"
        self.say(
            f"{blocks.pairs} {kind}s of blocks of {num_items:,} items, about {format_duration(one_round * blocks.pairs)}"
        )

        def is_enough(turns: Turns[Block]) -> bool:
            if not blocks.until_sure or is_sure(turns):
                return True
            number = len(turns.rounds)
            self.say(f"not decided by {number} {kind}s; going on to {2 * number}")
            return False

        def may_go_on() -> bool:
            in_time = not blocks.until_sure or time.monotonic() + one_round <= self.began + blocks.time_limit_seconds
            if not in_time:
                self.say("the time is over")
            return in_time

        self.measured.turns = take_turns(
            {name: functools.partial(self._run_block, name, num_items) for name in pilots},
            (doubling if blocks.until_sure else once)(blocks.pairs),
            is_sure=is_enough,
            may_go_on=may_go_on,
            after_round=lambda turns: self.say(f"{kind} {len(turns.rounds)}: {shown_rates(turns.rounds[-1])}"),
            is_disturbed=self._is_disturbed,
        )
        return self.measured

    def _is_disturbed(self, measured: Mapping[str, Block]) -> bool:
        taken = [block.taken_cores for block in measured.values()]
        if not have_changed(taken, min(block.seconds for block in measured.values())):
            return False
        shown = ", ".join(f"{name} {block.taken_cores:.2f}" for name, block in measured.items())
        self.say(f"what other programs took of the cores changed ({shown}): measured again")
        return True

    def _run_block(self, name: str, num_items: int) -> Block:
        contender = self.contenders[name]
        return with_rate(contender.name, self._run(contender, self.blocks.deliver, num_items))

    def _run(self, contender: Measurable, deliver: bool, num_items: int) -> Block:
        return run_block(contender, self.items, num_items, self.is_interrupted, deliver=deliver)

    def _run_pilots(self, may_fail: Set[str]) -> dict[str, Block]:
        pilots = {}
        for name, contender in self.contenders.items():
            try:
                pilots[name] = self._run_pilot(name, contender)
            except HeadraceError as error:
                if name not in may_fail or isinstance(error, Interrupted):
                    raise
                self.measured.failures[name] = str(error)
        return pilots

    def _run_pilot(self, name: str, contender: Measurable) -> Block:
        num_items, seconds = self.blocks.items, self.blocks.seconds * _PILOT_SHARE
        if not self.keep_results:
            run = functools.partial(self._run, contender, self.blocks.deliver)
            return run_pilot(contender.name, run, seconds, self.say, num_items)
        assert isinstance(contender, Contender)
        keep = Collect()
        keeping = replace(contender, pipeline=contender.pipeline.replace_delivery(keep))
        num_items = num_items or max(
            fewest_items(one.plan) for one in self.contenders.values() if isinstance(one, Contender)
        )
        pilot = run_pilot(contender.name, functools.partial(self._run, keeping, True), seconds, self.say, num_items)
        self.measured.results[name] = dict(keep.results)
        return pilot

    def _choose_num_items(self, pilots: Sequence[Block]) -> int:
        """Return the items of a block: the same for all, so that they do the same work."""
        rates = [pilot.throughput or 0.0 for pilot in pilots]
        fewest = max(fewest_items(pilot.plan) for pilot in pilots)
        return max(fewest, math.ceil(self.blocks.seconds * min(max(rates), MOST_UNEVEN * min(rates))))


def shown_rates(measured: Mapping[str, Block]) -> str:
    """Return the rates of a round for people: `A 12/s, B 13.4/s`."""
    return ", ".join(f"{name} {block.throughput:.4g}/s" for name, block in measured.items() if block.throughput)


def lasts(pilot: Block, num_items: int) -> float:
    """Return how long a block will last, opening included."""
    rate = pilot.throughput or 1.0
    return num_items / rate + max(0.0, pilot.seconds - pilot.delivered / rate)

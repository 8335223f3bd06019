"""Runs two pipelines in turn on the same items and pairs their blocks.

How this works: a pilot runs each side until its rate is known, which warms both up, and chooses the number of items so that a
block of the faster side lasts as long as asked. Then come pairs of blocks, one of each side: A B, B A, B A, A B, ... in the
order of Thue and Morse, which gives a steady drift, and one that bends, to both sides alike; what a pair still has of it counts
as noise. Slow minutes of a shared machine thus hit both sides of a pair or show as an outlier, which the interval takes calmly.

With `until_sure` it looks at the pairs after n, 2 n, 4 n, ... and stops when the answer is there; see `looks`.

References:
    L. Bulej et al., "Duet benchmarking: improving measurement accuracy in the cloud", 2020: pairs, but side by side; on
    saturated cores that would change what is measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.base.errors import HeadraceError, Interrupted
from headrace.base.settings import check
from headrace.base.units import format_duration
from headrace.validate.blocks import FEWEST_ITEMS, Block, Contender, SameItems, fewest_items, measure_block, quiet
from headrace.validate.interrupts import noticing
from headrace.validate.intervals import ALPHA
from headrace.validate.looks import Looks
from headrace.validate.words import MOST_PAIRS

Say = Callable[[str], object]

#: A block of the slower side lasts at most so many times what was asked for, or the faster has fewer items.
_MOST_UNEVEN = 4.0
#: A pilot ends when a run of it lasted this share of a block.
_PILOT_SHARE = 1 / 3
_PILOT_TRIES = 8
_PILOT_GROWTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """How much is measured."""

    pairs: int = 24
    """Pairs of blocks; with `until_sure` those before the first look. A true change of 5 % is then found nine times in ten even
    where pairs differ by 4 % and single blocks are slow by a quarter."""
    seconds: float = 1.0
    """Length of a block of the faster side."""
    items: int | None = None
    """Items of a block instead."""
    deliver: bool = False
    """Hand results to the pipelines' own deliveries."""
    until_sure: bool = False
    """Go on until the answer is sure or the time is over."""
    time_limit_seconds: float = 600.0
    """No new block begins after this time; only with `until_sure`."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(1 <= self.pairs <= MOST_PAIRS, "--blocks", self.pairs, f"1 to {MOST_PAIRS} pairs")
        check(0 < self.seconds <= 3600, "--seconds", self.seconds, "more than 0, up to 3600")
        check(
            self.items is None or self.items >= FEWEST_ITEMS,
            "--items",
            self.items,
            f"a whole number >= {FEWEST_ITEMS}: fewer tell no rate",
        )
        check(self.time_limit_seconds > 0, "--time-limit", self.time_limit_seconds, "more than 0")


@dataclass(slots=True)
class Measured:
    """What was measured so far."""

    pairs: list[tuple[Block, Block]] = field(default_factory=list)
    """(block of A, block of B), in the order in which they ran."""
    num_items: int = 0
    """Of each block."""
    order: str = ""
    """`ABBABAAB...`, the whole pairs."""
    alpha: float = ALPHA
    """By how much the last look may err."""
    interrupted: bool = False


def runs_b_first(number: int) -> bool:
    """Return whether pair `number` (from 0) begins with B: the sequence of Thue and Morse."""
    return number.bit_count() % 2 == 1


def measure_pairs(
    a: Contender, b: Contender, items: SameItems, settings: Blocks, is_sure: Callable[[Measured], bool], say: Say
) -> Measured:
    """Run both in turn and return the pairs; an interrupt ends it with those at hand.

    Args:
        a: The one before.
        b: The one after.
        items: What every block runs over.
        settings: How much.
        is_sure: Asked after each look of `until_sure`.
        say: Told about the progress, one line at a time.

    Raises:
        HeadraceError: If a side cannot run, or gives no results to measure.
        Interrupted: If nothing was measured yet.
    """
    measured = Measured()
    try:
        with quiet(), noticing() as is_interrupted:
            runs = _Runs(items, settings, is_interrupted, say)
            _measure(measured, a, b, runs, is_sure)
    except (_Stopped, KeyboardInterrupt):
        measured.interrupted = True
    if measured.interrupted and not measured.pairs:
        raise Interrupted("interrupted before the first pair of blocks was measured; nothing is known")
    return measured


class _Stopped(Exception):
    """The user wants no more blocks."""


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs blocks, until the user stops them."""

    items: SameItems
    settings: Blocks
    is_interrupted: Callable[[], bool]
    say: Say

    def block(self, contender: Contender, num_items: int) -> Block:
        """Return one block; raises _Stopped when it is not to be used."""
        try:
            block = measure_block(contender, self.items, num_items, deliver=self.settings.deliver)
        except HeadraceError:
            if self.is_interrupted():  # workers that are signalled too may be gone before the run is told to stop
                raise _Stopped from None
            raise
        if block.interrupted or self.is_interrupted():
            raise _Stopped
        return block

    def pilot(self, contender: Contender) -> Block:
        """Return a run long enough to tell the rate."""
        num_items = self.settings.items or FEWEST_ITEMS
        for _ in range(_PILOT_TRIES):
            self.say(f"pilot of {contender.name}: {num_items:,} items")
            block = self.block(contender, num_items)
            wanted = num_items if self.settings.items else self._wanted(block, num_items)
            if num_items >= wanted:
                break
            num_items = min(wanted, num_items * _PILOT_GROWTH)
        _check_results(contender, block, num_items)
        return block

    def _wanted(self, block: Block, num_items: int) -> int:
        wanted = fewest_items(block.plan)
        if block.throughput is not None:
            return max(wanted, math.ceil(block.throughput * self.settings.seconds * _PILOT_SHARE))
        return max(wanted, 2 * num_items) if block.delivered else wanted  # some failed: perhaps it was too few

    def pair(self, a: Contender, b: Contender, num_items: int, *, b_first: bool) -> tuple[Block, Block]:
        """Return one block of each."""
        blocks = {}
        for name, contender in (("b", b), ("a", a)) if b_first else (("a", a), ("b", b)):
            blocks[name] = self.block(contender, num_items)
            _check_results(contender, blocks[name], num_items)
        return blocks["a"], blocks["b"]


def _measure(measured: Measured, a: Contender, b: Contender, runs: _Runs, is_sure: Callable[[Measured], bool]) -> None:
    settings, say = runs.settings, runs.say
    ends = time.monotonic() + settings.time_limit_seconds
    pilots = runs.pilot(a), runs.pilot(b)
    num_items = measured.num_items = settings.items or _num_items(*pilots, settings)
    lasts = sum(_lasts(pilot, num_items) for pilot in pilots)
    say(f"{settings.pairs} pairs of blocks of {num_items:,} items, about {format_duration(lasts * settings.pairs)}")
    looks = Looks(settings.pairs, again=settings.until_sure)
    while not looks.is_over(len(measured.pairs)):
        if settings.until_sure and measured.pairs and time.monotonic() + lasts > ends:
            say("the time is over")
            return
        measured.alpha = looks.alpha
        b_first = runs_b_first(len(measured.pairs))
        measured.pairs.append(runs.pair(a, b, num_items, b_first=b_first))
        measured.order += "BA" if b_first else "AB"
        say(_progress(measured))
        if looks.is_due(len(measured.pairs)):
            if is_sure(measured):
                return
            looks.go_on()
            say(f"not decided by {len(measured.pairs)} pairs; going on to {looks.next}")


def _progress(measured: Measured) -> str:
    block_a, block_b = measured.pairs[-1]
    rates = [f"{block.throughput:.4g}/s" if block.throughput else "no rate" for block in (block_a, block_b)]
    return f"pair {len(measured.pairs)}: A {rates[0]}, B {rates[1]}"


def _check_results(contender: Contender, block: Block, num_items: int) -> None:
    if block.throughput is None:
        raise HeadraceError(
            f"{contender.name}: {block.delivered} of {num_items} jobs gave a result and {block.failed} failed; a rate needs "
            f"{FEWEST_ITEMS} results that do not come all at once"
            + (f". The first failure: {block.first_failure}" if block.first_failure else "")
        )


def _num_items(pilot_a: Block, pilot_b: Block, settings: Blocks) -> int:
    slow, fast = sorted((_rate(pilot_a), _rate(pilot_b)))
    fewest = max(fewest_items(pilot_a.plan), fewest_items(pilot_b.plan))
    return max(fewest, math.ceil(settings.seconds * min(fast, _MOST_UNEVEN * slow)))


def _lasts(pilot: Block, num_items: int) -> float:
    """Return how long a block will last, opening included."""
    return num_items / _rate(pilot) + max(0.0, pilot.seconds - pilot.delivered / _rate(pilot))


def _rate(block: Block) -> float:
    if block.throughput is None:
        raise RuntimeError("only blocks with a rate get here")
    return block.throughput

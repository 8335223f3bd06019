"""Runs several Plans of one pipeline in turn, round by round, over the same items.

How this works: a pilot runs each Plan once, which warms it up, tells its rate, and keeps its results for comparing. Then come
rounds of blocks, one of each Plan, forwards and backwards in the order of Thue and Morse, so that a machine that gets slower
favours none. Ratios are taken within a round; see `headrace.validate.interleaved`, which does the same for two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from headrace.base.errors import HeadraceError, Interrupted
from headrace.base.plan import Plan
from headrace.base.settings import check
from headrace.base.units import format_duration
from headrace.delivery.collect import Collect
from headrace.pipeline.definition import Pipeline
from headrace.validate.blocks import FEWEST_ITEMS, Block, Contender, SameItems, fewest_items, measure_block, quiet
from headrace.validate.interleaved import runs_b_first
from headrace.validate.interrupts import noticing
from headrace.validate.intervals import FEWEST_PAIRS

Say = Callable[[str], object]

#: A block of the slowest Plan lasts at most so many times what was asked for, or the fastest has fewer items.
_MOST_UNEVEN = 4.0
_MOST_ROUNDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How much is measured."""

    rounds: int = 8
    """Blocks of each Plan; an interval takes 6."""
    seconds: float = 1.0
    """Length of a block of the fastest Plan."""
    items: int | None = None
    """Items of a block instead."""

    def __post_init__(self) -> None:
        """Check every value."""
        allowed = f"{FEWEST_PAIRS} to {_MOST_ROUNDS} rounds: fewer give no interval"
        check(FEWEST_PAIRS <= self.rounds <= _MOST_ROUNDS, "--blocks", self.rounds, allowed)
        check(0 < self.seconds <= 3600, "--seconds", self.seconds, "more than 0, up to 3600")
        fewest = f"a whole number >= {FEWEST_ITEMS}: fewer tell no rate"
        check(self.items is None or self.items >= FEWEST_ITEMS, "--items", self.items, fewest)


@dataclass(slots=True)
class InTurn:
    """What was measured so far."""

    blocks: dict[str, list[Block | None]] = field(default_factory=dict)
    """{Plan's name: its block of each round}; None: the round was interrupted before it."""
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """{Plan's name: {job: what came out in the pilot}}."""
    failures: dict[str, str] = field(default_factory=dict)
    """{Plan's name: why it could not run}; of those that need not."""
    num_items: int = 0
    """Of each block."""
    interrupted: bool = False

    @property
    def num_rounds(self) -> int:
        """Rounds in which every Plan was measured."""
        return min((sum(block is not None for block in some) for some in self.blocks.values()), default=0)


class _Stopped(Exception):
    """The user wants no more blocks."""


def measure_in_turn(
    pipeline: Pipeline, plans: Mapping[str, Plan], optional: Set[str], items: SameItems, rounds: Rounds, say: Say
) -> InTurn:
    """Run Plans in turn and return their blocks; an interrupt ends it with those at hand.

    Args:
        pipeline: What is run.
        plans: By name, in order.
        optional: Names of those that may fail: the others are measured without them.
        items: What every block runs over.
        rounds: How much.
        say: Told about the progress, one line at a time.

    Raises:
        HeadraceError: If a Plan that is not optional cannot run, or gives no results to measure.
        Interrupted: If nothing was measured yet.
    """
    measured = InTurn()
    try:
        with quiet(), noticing() as is_interrupted:
            _measure(measured, _Runs(pipeline, items, is_interrupted), plans, optional, rounds, say)
    except (_Stopped, KeyboardInterrupt):
        measured.interrupted = True
    if measured.interrupted and not measured.num_rounds:
        raise Interrupted("interrupted before the first round of blocks was measured; nothing is known")
    return measured


@dataclass(frozen=True, slots=True)
class _Runs:
    pipeline: Pipeline
    items: SameItems
    is_interrupted: Callable[[], bool]

    def block(self, name: str, plan: Plan, num_items: int, *, keep: Collect | None = None) -> Block:
        """Return one block with a rate; raises _Stopped when it is not to be used."""
        pipeline = self.pipeline if keep is None else self.pipeline.delivering_to(keep)
        contender = Contender(name=name, pipeline=pipeline, plan=plan)
        try:
            block = measure_block(contender, self.items, num_items, deliver=keep is not None)
        except HeadraceError:
            if self.is_interrupted():  # workers that are signalled too may be gone before the run is told to stop
                raise _Stopped from None
            raise
        if block.interrupted or self.is_interrupted():
            raise _Stopped
        if block.throughput is None:
            raise HeadraceError(
                f"{name}: {block.delivered} of {num_items} jobs gave a result and {block.failed} failed; a rate needs "
                f"{FEWEST_ITEMS} results that do not come all at once"
                + (f". The first failure: {block.first_failure}" if block.first_failure else "")
            )
        return block


def _measure(
    measured: InTurn,
    runs: _Runs,
    plans: Mapping[str, Plan],
    optional: Set[str],
    settings: Rounds,
    say: Say,
) -> None:
    pilots = _pilots(measured, runs, plans, optional, settings, say)
    num_items = measured.num_items = settings.items or _num_items(list(pilots.values()), settings)
    lasts = sum(num_items / (block.throughput or 1.0) + _opening(block) for block in pilots.values())
    say(
        f"{settings.rounds} rounds of {len(pilots)} Plans, {num_items:,} items each, about "
        f"{format_duration(lasts * settings.rounds)}"
    )
    measured.blocks = {name: [] for name in pilots}
    for number in range(settings.rounds):
        for some in measured.blocks.values():
            some.append(None)
        names = list(reversed(pilots)) if runs_b_first(number) else list(pilots)
        for name in names:
            measured.blocks[name][number] = runs.block(name, plans[name], num_items)
        rates = ", ".join(f"{name} {block.throughput:.4g}/s" for name, block in _of_round(measured, number) if block)
        say(f"round {number + 1} of {settings.rounds}: {rates}")


def _of_round(measured: InTurn, number: int) -> list[tuple[str, Block | None]]:
    return [(name, some[number]) for name, some in measured.blocks.items()]


def _pilots(
    measured: InTurn,
    runs: _Runs,
    plans: Mapping[str, Plan],
    optional: Set[str],
    settings: Rounds,
    say: Say,
) -> dict[str, Block]:
    """Run each Plan once; the same number of items for all, so that their results can be compared."""
    num_items = settings.items or max(fewest_items(plan) for plan in plans.values())
    pilots = {}
    for name, plan in plans.items():
        say(f"pilot of {name}: {num_items:,} items")
        keep = Collect()
        try:
            pilots[name] = runs.block(name, plan, num_items, keep=keep)
        except HeadraceError as error:
            if name not in optional:
                raise
            measured.failures[name] = str(error)
            continue
        measured.results[name] = dict(keep.results)
    return pilots


def _num_items(pilots: Sequence[Block], settings: Rounds) -> int:
    rates = [block.throughput or 0.0 for block in pilots]
    fewest = max(fewest_items(block.plan) for block in pilots)
    return max(fewest, math.ceil(settings.seconds * min(max(rates), _MOST_UNEVEN * min(rates))))


def _opening(pilot: Block) -> float:
    return max(0.0, pilot.seconds - pilot.delivered / (pilot.throughput or 1.0))

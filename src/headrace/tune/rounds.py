"""Measures several Plans against a base: blocks of all of them in turn, over the same items, the worst given up early.

How this works: rounds of blocks are run as `compare.turns` does, the base first or last; what is judged is the ratio of each
Plan to the base of the same round. After a few rounds only the better half goes on (successive halving). The intervals allow
for the number of Plans that were tried and for the number of looks (Bonferroni).

References:
    K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", 2016.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.base.errors import HeadraceError, Interrupted
from headrace.base.observer import Observer
from headrace.base.plan import Plan
from headrace.base.records import Job, Outcome
from headrace.base.statistics import percentile
from headrace.compare.blocks import FEWEST_ITEMS, Block, Contender, SameItems, fewest_items
from headrace.compare.comparison import Question, answer
from headrace.compare.contenders import MOST_UNEVEN, Say, run_block, shown_rates
from headrace.compare.interrupts import noticing
from headrace.compare.intervals import ALPHA, centre
from headrace.compare.judging import MOST_LOST, Judgement
from headrace.compare.sequential import doubling
from headrace.compare.turns import Turns, take_turns
from headrace.runs.formats.profile import Estimate
from headrace.tune.out_of_memory import is_out_of_memory
from headrace.tune.paced_items import PacedItems

#: Rounds before the worse half is given up.
_HALVING = 3
#: Most that the rate in the middle of a steady block may be above the rate of the whole block, as a ratio.
_BURST = 1.4


class JobTimes(Observer):
    """Times the jobs of a block.

    Args:
        due: {job: when it came, on the monotonic clock}; of the others when it was received counts.

    Attributes:
        latencies: Seconds from a job's coming to its being settled, without the first job: it warms the pipeline up.
        settled_at: When each was settled, on the monotonic clock.
    """

    def __init__(self, due: Mapping[str, float] | None = None) -> None:
        self.latencies: list[float] = []
        self.settled_at: list[float] = []
        self._due = due if due is not None else {}
        self._received: dict[str, float] = {}

    def job_received(self, jobs: Sequence[Job]) -> None:
        """Note when they came."""
        self._received.update(dict.fromkeys([job.id for job in jobs], time.monotonic()))

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Note how long it took."""
        now = time.monotonic()
        received = self._received.pop(job.id, now)
        if self.settled_at:
            self.latencies.append(now - self._due.get(job.id, received))
        self.settled_at.append(now)


def comes_in_a_burst(throughput: float, settled_at: Sequence[float]) -> bool:
    """Return whether the results of a block came late and then at once, so that it tells no rate.

    The rate of a block is that of its middle. Where whoever hands on the results is starved, of the GIL for instance, and
    the queues hold the whole block, nearly all results come when the work is over: their rate is then that of handing on.

    Args:
        throughput: Of the block, per second.
        settled_at: When each of its jobs was settled; the first went ahead alone.
    """
    if len(settled_at) < FEWEST_ITEMS:
        return False
    _, first, *_, last = sorted(settled_at)
    overall = (len(settled_at) - 2) / max(1e-9, last - first)
    return throughput > _BURST * overall


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured."""

    rounds: int = 8
    """Rounds before the first look; as many again before the second. 8 is the fewest whose interval may err so little."""
    block_seconds: float = 1.0
    """Length of a block of the fastest."""
    most_rounds: int = 16
    halves: bool = True
    """Give up the slower half after a few rounds: where throughput is what is wanted."""
    deliver: bool = False
    fewest_jobs: int = 0
    """Jobs of a block, at least: what a percentile needs."""
    most_longer: int = 3
    """How often blocks of one Plan are doubled because their results came in a burst; then they count as they are."""


@dataclass(slots=True)
class Entrant:
    """One Plan that is measured."""

    contender: Contender
    blocks: dict[int, Block] = field(default_factory=dict)
    """{round: block}."""
    latencies: list[float] = field(default_factory=list)
    """Seconds, of all jobs of all blocks."""
    failed: str = ""
    """Why it takes no further part; empty while it does."""
    is_out_of_memory: bool = False
    num_looks: int = 0
    """How often its pairs were, or are about to be, looked at."""
    times_longer: int = 0
    """How often its blocks were doubled, because they were not steady."""
    was_outrun: bool = False
    """Given up because another was faster, not because it failed."""

    @property
    def throughput(self) -> float | None:
        """Median of the blocks, jobs per second."""
        rates = [block.throughput for block in self.blocks.values() if block.throughput]
        return float(np.median(rates)) if rates else None

    def latency(self, percent: float) -> float | None:
        """Return a percentile of the latency in seconds; None with too few jobs."""
        return percentile(self.latencies, percent).value

    def ratios(self, base: Entrant, metric: str = "throughput") -> list[tuple[float, float]]:
        """Return (base, this) of the rounds in which both measured a metric of `Block`."""
        pairs = []
        for number in sorted(self.blocks.keys() & base.blocks.keys()):
            before, after = getattr(base.blocks[number], metric), getattr(self.blocks[number], metric)
            if before and after:
                pairs.append((before, after))
        return pairs


@dataclass(frozen=True, slots=True)
class Judged:
    """What the rounds say of one entrant in one metric."""

    mid: float
    """Ratio to the base."""
    interval: Estimate | None
    """None with too few rounds."""
    judgement: Judgement


class Rounds:
    """Measures entrants against a base.

    Args:
        base: What they are compared with.
        items: Of all blocks; those that come at a rate are measured at that.
        effort: How much.
        say: Told about the progress, one line at a time.
        may_go_on: Asked before each round; False ends the measuring with what is there.

    Attributes:
        base: The entrant that is the base.
        entrants: The others, in the order of entering.
        interrupted: The user stopped it.
        seconds: Spent in blocks.
        last_seconds: What the last round took; 0 before there was one.
    """

    def __init__(
        self,
        base: Contender,
        items: SameItems,
        effort: Effort,
        say: Say,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self.base = Entrant(base)
        self.entrants: list[Entrant] = []
        self.interrupted = False
        self.seconds = self.last_seconds = 0.0
        self._items = items
        self._effort = effort
        self._say = say
        self._may_go_on = may_go_on
        self._round = 0
        self._num_tried = 0

    def measure(
        self,
        contenders: Sequence[Contender],
        rates: Sequence[float],
        is_sure: Callable[[Entrant], bool],
        *,
        beside: Sequence[Entrant] = (),
    ) -> list[Entrant]:
        """Run rounds with these until one look is sure of the best of them, and return them; failed ones too.

        Args:
            contenders: What is measured, beside the base.
            rates: Jobs per second that each is expected to do, the base's first.
            is_sure: Whether an entrant's pairs answer what was asked.
            beside: Measured before, and again now.
        """
        new = [Entrant(contender) for contender in contenders]
        self.entrants += new
        self._num_tried += len(new)
        again = [one for one in beside if not one.failed]
        everyone = [self.base, *again, *new]
        base_rate, *new_rates = rates
        lengths = self._lengths(everyone, [base_rate, *(one.throughput or base_rate for one in again), *new_rates])
        looked = [one.num_looks for one in everyone]
        spent = self.seconds

        def after_round(turns: Turns[Block]) -> None:
            nonlocal spent
            self.last_seconds, spent = self.seconds - spent, self.seconds
            self._round += 1
            self._say(f"round {self._round}: {shown_rates(turns.rounds[-1])}")
            for one, before in zip(everyone, looked, strict=True):
                if not one.failed:
                    one.num_looks = before + turns.num_looks
            if len(turns.rounds) == _HALVING and self._effort.halves:
                self._halve(new)

        def is_enough(turns: Turns[Block]) -> bool:
            best = max((one for one in new if not one.failed), key=self._mid, default=None)
            return best is None or is_sure(best)

        with noticing() as is_interrupted:
            turns = take_turns(
                {
                    one.contender.name: functools.partial(self._block, one, lengths[id(one)], is_interrupted)
                    for one in everyone
                },
                doubling(self._effort.rounds, self._effort.most_rounds),
                is_sure=is_enough,
                may_go_on=lambda: not all(one.failed for one in new) and self._may_go_on(),
                after_round=after_round,
            )
        self.interrupted = self.interrupted or turns.interrupted
        return new

    def expect_seconds(self, contenders: Sequence[Contender], rates: Sequence[float], opening_seconds: float) -> float:
        """Return about how long the rounds before the first look take; arguments as `measure`, and what opening takes."""
        everyone = [self.base, *map(Entrant, contenders)]
        lengths = self._lengths(everyone, rates)
        paced = self._items.rate if isinstance(self._items, PacedItems) else None
        blocks = (lengths[id(one)] / (paced or rate) for one, rate in zip(everyone, rates, strict=True))
        return self._effort.rounds * (sum(blocks) + len(everyone) * opening_seconds)

    def halve_blocks(self) -> None:
        """Measure in blocks of half the length from now on."""
        self._effort = replace(self._effort, block_seconds=self._effort.block_seconds / 2)

    def judged(self, entrant: Entrant, question: Question, base: Entrant | None = None) -> Judged | None:
        """Return what was found of an entrant against the base, or another; None if no round measured both."""
        pairs = entrant.ratios(base or self.base, question.metric.name)
        if not pairs:
            return None
        interval, judgement = answer(pairs, question, self.alpha(entrant))
        logs = [math.log(after / before) for before, after in pairs]
        told = (
            None if interval is None else Estimate(*(math.exp(x) for x in (interval.low, interval.mid, interval.high)))
        )
        return Judged(math.exp(centre(logs)), told, judgement)

    def alpha(self, entrant: Entrant) -> float:
        """Return by how much an entrant's interval may err, so that those of all at all looks together err by less than 5 %."""
        return float(ALPHA / max(1, self._num_tried) / 2 ** max(1, entrant.num_looks))

    def _block(self, entrant: Entrant, num_items: int, is_interrupted: Callable[[], bool]) -> Block | None:
        """Run a block of an entrant and keep it; None if it is given up, or the block tells no rate."""
        if entrant.failed:
            return None
        num_items *= 2**entrant.times_longer
        paced = self._items if isinstance(self._items, PacedItems) else None
        began, times = time.monotonic(), JobTimes(paced.due if paced else None)
        try:
            block = run_block(
                entrant.contender,
                self._items,
                num_items,
                is_interrupted,
                deliver=self._effort.deliver,
                observers=[times],
            )
        except (HeadraceError, MemoryError) as error:
            if entrant is self.base or isinstance(error, Interrupted):
                raise
            self._fail(entrant, str(error), is_out_of_memory(error))
            return None
        finally:
            self.seconds += time.monotonic() - began
        if block.throughput is None or self._loses_jobs(block):
            why = f"{block.delivered} of {num_items} jobs gave a result" + (
                f"; the first failure: {block.first_failure}" if block.first_failure else ""
            )
            if entrant is self.base:
                raise HeadraceError(f"{entrant.contender.name}: {why}; a Plan can be tuned only where its jobs succeed")
            self._fail(entrant, why, is_out_of_memory(block.first_failure or ""))
            return None
        may_be_longer = paced is None and entrant.times_longer < self._effort.most_longer
        if may_be_longer and comes_in_a_burst(block.throughput, times.settled_at):
            entrant.times_longer += 1  # this block tells no rate; longer ones will
            return None
        entrant.blocks[self._round] = block
        entrant.latencies += times.latencies
        return block

    def _loses_jobs(self, block: Block) -> bool:
        before = list(self.base.blocks.values())
        if not before:
            return False
        share = sum(one.failed for one in before) / max(1, sum(one.failed + one.delivered for one in before))
        return block.failed / max(1, block.failed + block.delivered) > share + MOST_LOST

    def _fail(self, entrant: Entrant, why: str, out_of_memory: bool) -> None:
        entrant.failed, entrant.is_out_of_memory = why, out_of_memory
        self._say(f"{entrant.contender.name} is given up: {why}")

    def _halve(self, running: Sequence[Entrant]) -> None:
        """Give up the worse half, but for those within noise of the best."""
        alive = sorted((one for one in running if not one.failed), key=self._mid, reverse=True)
        for entrant in alive[math.ceil(len(alive) / 2) :]:
            if self._mid(entrant) < 0.97 * self._mid(alive[0]):
                entrant.was_outrun = True
                entrant.failed = f"slower than {alive[0].contender.name} in the first {_HALVING} rounds"
                self._say(f"{entrant.contender.name} is given up: {entrant.failed}")

    def _mid(self, entrant: Entrant) -> float:
        pairs = entrant.ratios(self.base)
        return float(np.median([after / before for before, after in pairs])) if pairs else 0.0

    def _lengths(self, entrants: Sequence[Entrant], rates: Sequence[float]) -> dict[int, int]:
        """Return {entrant: items of its blocks}: the same for all that are about as fast, so that they do the same work."""
        wanted = self._effort.block_seconds
        if isinstance(self._items, PacedItems):
            num_items = max(self._effort.fewest_jobs, FEWEST_ITEMS, math.ceil(wanted * self._items.rate))
            return {id(one): num_items for one in entrants}
        fewest = {id(one): fewest_items(one.contender.plan) for one in entrants}
        # What queues could hold twice over, so that a block is not over before the last stage has begun in earnest.
        held = max(2 * _count_held(one.contender.plan) for one in entrants)
        common = max(*fewest.values(), held, math.ceil(wanted * max(rates)))
        return {
            id(one): min(common, max(fewest[id(one)], math.ceil(wanted * MOST_UNEVEN * rate)))
            for one, rate in zip(entrants, rates, strict=True)
        }


def _count_held(plan: Plan) -> int:
    """Return how many items the queues of a resolved Plan hold."""
    return sum(stage.queue_items or 0 for stage in plan.stages.values() if stage.executor != "inline")

"""The decision among the accepted variants: those that may be the fastest, each at its own concurrency, then head to head."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from headrace.compare.interrupts import noticing
from headrace.optimize.attempt_log import AttemptLog
from headrace.optimize.concurrency_attempt import OwnConcurrency
from headrace.optimize.conditions import Conditions
from headrace.optimize.head_to_head import HeadToHead, Pairs
from headrace.optimize.pareto import NO_DROP, SAME_SPEED, Point, best, find_tied, front, is_smaller, merit, near_fastest
from headrace.runs.formats.optimization import Attempt, RunOff


@dataclass(slots=True)
class Decision:
    """What is chosen, as far as it is known; `decide` measures what the attempts leave open."""

    conditions: Conditions
    log: AttemptLog
    winner: str | None = None
    """Of those that tied, by head-to-head rounds; None if there were none."""
    head_to_head: list[RunOff] = field(default_factory=list)
    concurrency: list[Attempt] = field(default_factory=list)
    """The search for each variant that its own concurrency could make the fastest."""
    has_own_concurrency: bool = False
    """Whether there is one for each of these variants; if not, all are compared at the Plan's."""

    def decide(self) -> None:
        """Search the concurrency of each variant that it could make the fastest, and compare those that tie directly.

        Raises:
            KeyboardInterrupt: If it was interrupted; what is known by then is kept.
        """
        self._search_concurrency()
        self._compare_tied()

    # --- concurrency

    def _search_concurrency(self) -> None:
        conditions, goal, items = self.conditions, self.conditions.goal, self.conditions.find_unlabelled_items()
        if goal.concurrency is None or items is None or goal.objective in ("size", "cost"):
            return
        known = {attempt.candidate: attempt for attempt in self.log.attempts}
        near = near_fastest([self._start(), *self._better()])
        for point in near:
            if goal.is_over_budget():
                return
            found = OwnConcurrency(
                conditions=conditions, log=self.log, items=items, first=goal.concurrency, variant=known.get(point.name)
            ).find()
            if found is not None:
                self.concurrency.append(found)
        self.has_own_concurrency = len(self.concurrency) == len(near)

    # --- head to head

    def _compare_tied(self) -> None:
        """Compare variants that tie directly, each at its own concurrency where that was searched."""
        goal, rivals, items = self.conditions.goal, self._rivals(), self.conditions.find_unlabelled_items()
        if goal.objective == "size" or not rivals or items is None or goal.is_over_budget():
            return
        known = {attempt.candidate: attempt for attempt in self.log.attempts}
        start = self._start().name
        concurrency = {one.of or start: one for one in self.concurrency} if self.has_own_concurrency else {}
        pairs = Pairs(self.conditions.subject, known, concurrency, items, goal.batch, self.log.say)

        with noticing() as is_interrupted:
            measure = partial(pairs.measure, stop=is_interrupted)
            compared = HeadToHead(measure, pairs.name_point, by_cpu=goal.objective == "cost")
            winner = compared.best(find_tied(rivals, goal.objective))
            if is_interrupted():
                raise KeyboardInterrupt
        self.winner, self.head_to_head = winner.name, compared.held
        for found in self.head_to_head:
            self.log.write_head_to_head(found)

    # --- what is known

    def find_chosen(self) -> str | None:
        """Return the candidate to use; None to keep what is in use.

        Each is taken at its own concurrency, or all at the Plan's: what one gains by its own says nothing of another whose own
        could not be timed.
        """
        rivals = self._rivals()
        chosen = next((point for point in rivals if point.name == self.winner), None)
        chosen = chosen or best(rivals, self.conditions.goal.objective)
        return None if chosen is None or chosen.name == self._start().name else chosen.name

    def concurrency_of_chosen(self) -> Attempt | None:
        """Return the concurrency search of what is to be used; None if there is none."""
        of = self.find_chosen() or ""
        return next((one for one in self.concurrency if one.of == of), None)

    def front(self) -> tuple[str, ...]:
        """Return the candidates that none other beats, with what is in use among them."""
        return tuple(point.name for point in front([self._start(), *map(_point, self.log.list_accepted())]))

    def _better(self) -> list[Point]:
        """Return what is accepted and surely better than what is in use, all at one concurrency."""
        start, objective = self._start(), self.conditions.goal.objective
        return [point for point in map(_point, self.log.list_accepted()) if _is_better(point, start, objective)]

    def _rivals(self) -> list[Point]:
        """Return those of which the best is used, with what they gain."""
        better = self._better()
        if not self.has_own_concurrency:
            return better
        wholes = {one.of: one.whole.ratio if one.whole else SAME_SPEED for one in self.concurrency}
        start = self._start()
        points = [(point, "" if point is start else point.name) for point in (start, *better)]
        return [replace(point, speedup=wholes[name]) for point, name in points if name in wholes]

    def _start(self) -> Point:
        """Return what is in use."""
        in_use, baseline = self.log.in_use, self.log.baseline
        return Point(
            name="baseline", kind="lossless", speedup=SAME_SPEED, cpu=SAME_SPEED,
            num_bytes=self.conditions.subject.file_in_use.num_bytes, drop=(in_use.drop if in_use else None) or NO_DROP,
            memory_bytes=baseline.memory_bytes if baseline else None,
        )  # fmt: skip


def _is_better(point: Point, start: Point, objective: str) -> bool:
    """Return whether a variant is surely better than what is in use at what is asked for."""
    if objective == "size":
        return is_smaller(point, start)
    return merit(point, objective).low > 1.0 and (objective != "cost" or point.speedup.high >= 1.0)


def _point(attempt: Attempt) -> Point:
    assert attempt.speedup is not None
    return Point(
        name=attempt.candidate, kind=attempt.kind, speedup=attempt.speedup, cpu=attempt.cpu,
        drop=attempt.drop or NO_DROP, num_bytes=attempt.artifact.num_bytes,
        memory_bytes=attempt.validation.b.memory_bytes,
    )  # fmt: skip

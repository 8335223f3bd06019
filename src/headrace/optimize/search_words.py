"""What a search found, in words: which variant, by how much and at what loss, and what to know about it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.formatting import pluralize
from headrace.base.units import format_duration
from headrace.optimize.better_plan import find_recommended
from headrace.optimize.goal import Goal
from headrace.optimize.pareto import SAME_SPEED
from headrace.optimize.techniques import Candidate
from headrace.runs.formats.optimization import Attempt, OptimizationDocument
from headrace.runs.formats.profile import Estimate


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a search."""

    found: OptimizationDocument
    """Without words."""
    goal: Goal
    has_own_concurrency: bool
    """Whether each variant that may be the fastest at its own concurrency was timed at it."""
    max_tests: int
    """Tests on the golden set among which alpha was shared."""

    def says(self) -> str:
        """Return the outcome in a sentence or two."""
        layout, said = self.found.layout, [self._of_variant()]
        if layout is not None and not self.found.interrupted:
            said += [layout.says] if layout.verdict == "accept" else []
            said += [self._of_concurrency()] if len(self.found.laid_out) > 1 and self.has_own_concurrency else []
        said += [one.says for one in self.found.run_offs]
        return "; ".join(said)

    def warnings(self, num_golden: int, *, has_data: bool) -> list[str]:
        """Return what to know before the outcome is used.

        Args:
            num_golden: Items of the golden set; 0: there is none.
            has_data: Whether there were calibration data.
        """
        found, chosen, in_use = self.found, find_recommended(self.found), self.found.in_use
        said = [f"of the recommended variant: {one}" for one in (chosen.validation.warnings if chosen else ())]
        if not has_data and num_golden:
            said.append(
                "without --data, candidates were compared on items of the golden set, without their labels, before it judged: "
                "name other items with --data"
            )
        if in_use is not None and in_use.verdict == "reject":
            said.append(
                f"what the Plan uses would not be accepted itself: {in_use.says}; without --plan what is faster than "
                "the model as given is looked for, be it slower than this"
            )
        if found.laid_out and not self.has_own_concurrency and not found.interrupted:
            said.append(
                "not every variant that may be the fastest was timed in a layout of its own: they are compared in the Plan's"
            )
        if found.golden_uses > self.max_tests:
            said.append(
                f"this golden set has judged {found.golden_uses} attempts: what passes after many tries may have passed by "
                "luck; take a new one"
            )
        num_open = sum(one.verdict == "inconclusive" and one.drop is not None for one in found.attempts)
        if num_open:
            said.append(
                f"{pluralize(num_open, 'candidate')} could not be decided with {num_golden} golden items; more items would"
            )
        return said

    def _of_variant(self) -> str:
        chosen = find_recommended(self.found)
        if chosen is not None and self.found.interrupted:
            return f"interrupted; {self.goal.going_on} goes on. So far: {self._of_chosen(chosen)}"
        if chosen is not None:
            return self._of_chosen(chosen)
        if self.found.interrupted:
            return f"interrupted before anything was proved; {self.goal.going_on} goes on"
        if not self.found.golden:
            return (
                "nothing is recommended without a golden set: nobody knows what is still right; give --golden golden.npz (with "
                "arrays inputs and labels), or --golden held_out/ --pipeline MODULE:ATTRIBUTE (a folder with labels.jsonl, or "
                "with a folder for each class)"
            )
        kept = "what the Plan uses" if self.found.in_use else "the model as it is"
        return f"nothing better was found and proved: keep {kept}"

    def _of_chosen(self, chosen: Attempt) -> str:
        in_use, speedup, drop = self.found.in_use, chosen.speedup, chosen.drop
        over, apart = (" as what the Plan uses", " from the model as given") if in_use else ("", "")
        fast = f" is {speedup.mid:.2f} times as fast{over} ({speedup.low:.2f} to {speedup.high:.2f})" if speedup else ""
        lost = f"a drop of {100 * drop.mid if drop else 0.0:+z.2f} points, {100 * self.found.max_drop:g} allowed{apart}"
        cost = f"; {self._of_cost(chosen)}" if self.found.objective == "cost" else ""
        return f"{name_attempt(chosen)}{fast}; {self._of_answers(chosen)}{lost}{cost}"

    def _of_answers(self, chosen: Attempt) -> str:
        """Say what share is right before and after, or what the metric comes to; nothing where it was not asked."""
        values = chosen.validation.values_of("accuracy")
        before, after, name = values.get("a"), values.get("b"), self.goal.metric.name
        if before is None or after is None:
            return ""
        is_share = name == "top1"
        return f"{after:.2%} right against {before:.2%}, " if is_share else f"{name} {after:.4f} against {before:.4f}, "

    def _of_cost(self, chosen: Attempt) -> str:
        """Say what CPU time an item takes before and after, and what that costs where a price is known."""
        values, batch = chosen.validation.values_of("speed"), chosen.validation.batch
        before, after = values.get("a_cpu_seconds"), values.get("b_cpu_seconds")
        if chosen.cpu is None or before is None or after is None:
            return "its CPU time could not be measured"
        now, then = format_duration(after / batch), format_duration(before / batch)
        said = f"{less_cpu(chosen.cpu)}, {now} an item instead of {then}"
        price = self.goal.price_per_hour
        if price is None:
            return said
        # The price is that of the machine: of a second of one core it is that share.
        costs = [1e6 * seconds / batch * price / 3600 / self.goal.cores for seconds in (after, before)]
        return f"{said}; for a million items {costs[0]:.3g} of your money instead of {costs[1]:.3g}"

    def _of_concurrency(self) -> str:
        """Say what the variants came to, each in its own layout."""
        used = "what the Plan uses" if self.found.in_use else "the model as given"
        names = {attempt.candidate: name_attempt(attempt) for attempt in self.found.attempts}
        ratios = [
            (names.get(one.of, used), one.whole.ratio if one.whole else SAME_SPEED) for one in self.found.laid_out
        ]
        ranked = sorted(ratios, key=lambda one: -one[1].mid)
        told = [f"{name} {ratio.mid:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" for name, ratio in ranked]
        return f"times the items per second of {used}, each in its own layout: {', '.join(told)}"


def name_attempt(attempt: Attempt) -> str:
    """Return its technique and engine."""
    return f"{attempt.technique} on {attempt.settings.get('engine', '')}"


def name_candidate(candidate: Candidate) -> str:
    """Return its technique and engine."""
    return f"{candidate.technique} on {candidate.spec.model.engine}"


def less_cpu(cpu: Estimate) -> str:
    """Return CPU time before over after in words."""
    return f"{cpu.mid:.2f} times less CPU time ({cpu.low:.2f} to {cpu.high:.2f})"


def cpu_words(objective: str, cpu: Estimate | None) -> str:
    """Return what follows a speed where CPU time is what counts; nothing otherwise."""
    if objective != "cost":
        return ""
    return f", {less_cpu(cpu)}" if cpu else ", its CPU time could not be measured"

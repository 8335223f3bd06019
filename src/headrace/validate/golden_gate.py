"""What the accuracy gate says, however it was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.runs.formats.outcomes import Outcome
from headrace.runs.formats.variants import Gate, SliceResult, WorstItem
from headrace.validate.answer_cache import AnswerCache
from headrace.validate.golden import Golden
from headrace.validate.policy import Policy
from headrace.validate.set_noninferiority import SetFinding

#: Items that are shown as those that lost most.
MOST_WORST = 12


@dataclass(slots=True)
class GateResult:
    """What the gate said."""

    gate: Gate
    warnings: list[str] = field(default_factory=list)
    worst: tuple[WorstItem, ...] = ()
    slices: tuple[SliceResult, ...] = ()
    """Every part of the golden set that was looked at."""


@dataclass(slots=True, kw_only=True)
class GoldenGate:
    """Judges one pair of variants by what both answer to a golden set.

    Args:
        golden: What both answer.
        policy: What is asked of B.
        names: Of the classes by their numbers; None: not known.
        is_interrupted: Asked between batches and draws.
        kept: What A answered before.
    """

    golden: Golden
    policy: Policy
    names: list[str] | None
    is_interrupted: Callable[[], bool]
    kept: AnswerCache
    warnings: list[str] = field(default_factory=list)

    def conclude(
        self,
        outcome: Outcome,
        says: str,
        values: Mapping[str, float | None] | None = None,
        limits: Mapping[str, float] | None = None,
        worst: tuple[WorstItem, ...] = (),
        slices: tuple[SliceResult, ...] = (),
    ) -> GateResult:
        """Return what the gate says, with the largest drop among its limits."""
        limits = {"max_drop": self.policy.max_drop, **(limits or {})}
        return GateResult(accuracy_gate(outcome, says, values or {}, limits), self.warnings, worst, slices)

    def class_name(self, number: Any) -> str:
        """Return what a class is called, or its number where that is not known."""
        known = self.names is not None and 0 <= number < len(self.names)
        return self.names[int(number)] if known and self.names is not None else str(int(number))


def accuracy_gate(outcome: Outcome, says: str, values: Mapping[str, float | None], limits: Mapping[str, float]) -> Gate:
    """Return the gate."""
    return Gate(name="accuracy", outcome=outcome, says=says, values=dict(values), limits=dict(limits))


def set_values(found: SetFinding, alpha: float) -> dict[str, float | None]:
    """Return a finding about a set as values of the gate."""
    return {
        "drop": found.drop, "low": found.low, "high": found.high, "a": found.a, "b": found.b, "alpha": alpha,
        "draws": float(found.draws),
    }  # fmt: skip


def set_says(found: SetFinding, policy: Policy, num_items: int) -> str:
    """Return a finding about a set in words."""
    open_end = f": undecided, {found.why}" if found.why else ""
    return (
        f"{policy.metric.name} {found.b:.4f} against {found.a:.4f}, of {num_items:,} items; drop {100 * found.drop:+z.2f} "
        f"points ({100 * found.low:+z.2f} to {100 * found.high:+z.2f}, {100 * policy.alpha:.2g} % on each side, "
        f"{found.draws:,} draws); {100 * policy.max_drop:g} points are allowed{open_end}"
    )

"""What the accuracy gate says, however it was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.runs.formats.variants import Gate, Outcome, SliceResult, WorstItem
from headrace.validate.noninferiority import Decision
from headrace.validate.of_sets import SetFinding
from headrace.validate.policy import Policy

OUTCOMES: Mapping[Decision, Outcome] = {
    Decision.ACCEPT: "passed",
    Decision.REJECT: "rejected",
    Decision.INCONCLUSIVE: "inconclusive",
}


#: Items that are shown as those that lost most.
MOST_WORST = 12


@dataclass(slots=True)
class Judged:
    """What the gate said."""

    gate: Gate
    warnings: list[str] = field(default_factory=list)
    worst: tuple[WorstItem, ...] = ()
    slices: tuple[SliceResult, ...] = ()
    """Every part of the golden set that was looked at."""


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
        f"{policy.metric.name} {found.b:.4f} against {found.a:.4f}, of {num_items:,} items; drop {100 * found.drop:+.2f} "
        f"points ({100 * found.low:+.2f} to {100 * found.high:+.2f}, {100 * policy.alpha:.2g} % on each side, "
        f"{found.draws:,} draws); {100 * policy.max_drop:g} points are allowed{open_end}"
    )

"""Whether a fault in a training is named, and whether healthy trainings are left alone.

A small loop of known step time gets one fault at a time, at several doses: dose 2 makes the step about twice as long. A run is
right if the first verdict has the class, and the stage or cause, that the fault has. What the machine does is no error of
either: a run whose first verdict is NEIGHBOUR or OVERSUBSCRIPTION is counted as `machine`, apart.

    python -m benchmarks.train.diagnosis [--quick] [--json] [--write]
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.train.diagnosis_loop import Faults, record
from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training
from headrace.runs.formats.diagnosis import Finding, VerdictClass
from headrace.runs.reader import read_run

#: Of forward and backward, seconds.
_STEP = 0.010
_OF_THE_MACHINE = frozenset({VerdictClass.NEIGHBOUR, VerdictClass.OVERSUBSCRIPTION})
OUTCOMES = ("right", "second", "machine", "wrong")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault, and what must be said of it."""

    make: Callable[[float], Faults]
    """From the seconds by which a step becomes longer."""
    verdict: str
    stage: str | None = None
    cause: str | None = None

    def accepts(self, found: Finding | None) -> bool:
        """Return whether a finding names this fault; stage and cause where they are asked for."""
        return (
            found is not None
            and found.verdict == self.verdict
            and self.stage in (None, found.stage)
            and self.cause in (None, found.cause)
        )


#: A single worker that loads in sequence delays a step by what a batch costs beyond the step.
CASES: dict[str, Case] = {
    "read": Case(make=lambda more: Faults(read=_STEP + more, workers=1), verdict="LOADING", stage="read"),
    "decode": Case(make=lambda more: Faults(decode=_STEP + more, workers=1), verdict="LOADING", stage="decode"),
    "augment": Case(make=lambda more: Faults(augment=_STEP + more, workers=1), verdict="LOADING", stage="augment"),
    "tokenise": Case(make=lambda more: Faults(tokenise=_STEP + more, workers=1), verdict="LOADING", stage="tokenise"),
    "collate": Case(make=lambda more: Faults(collate=_STEP + more, workers=1), verdict="LOADING", stage="collate"),
    "too few workers": Case(
        make=lambda more: Faults(read=_STEP + more, workers=1), verdict="LOADING", cause="too few workers"
    ),
    "no workers": Case(make=lambda more: Faults(read=more, workers=0), verdict="LOADING", cause="no workers"),
    "head of line": Case(
        make=lambda more: Faults(slow_batch=12 * more + 4 * _STEP), verdict="LOADING", cause="head of line"
    ),
    "epoch restart": Case(
        make=lambda more: Faults(worker_start=12 * more, epoch_steps=12), verdict="LOADING", cause="epoch start"
    ),
    "in the training thread": Case(make=lambda more: Faults(prepare=more), verdict="LOADING", stage="prepare"),
    "in the loss": Case(make=lambda more: Faults(loss=more), verdict="SYNC", stage="loss"),
    "before the update": Case(make=lambda more: Faults(before_update=more), verdict="SYNC", stage="before_update"),
    "after the update": Case(make=lambda more: Faults(after=more), verdict="SYNC", stage="after"),
    "optimizer": Case(make=lambda more: Faults(optimizer=more + 0.1 * _STEP), verdict="OPTIMIZER"),
    "checkpoint": Case(make=lambda more: Faults(checkpoint=10 * more), verdict="CHECKPOINT"),
    "first batch": Case(make=lambda more: Faults(first_batch=100 * more), verdict="HEALTHY"),
}
_HEALTHY = Case(make=lambda _: Faults(), verdict="HEALTHY")


def run(quick: bool) -> dict[str, Any]:
    """Return what was said of each fault, and how often a healthy training was accused.

    Args:
        quick: One run of each fault at one dose, and 20 healthy ones.
    """
    doses, rounds, healthy = ((2.0,), 1, 20) if quick else ((1.2, 2.0, 5.0), 7, 200)
    steps = 60 if quick else 120
    outcomes: dict[str, Counter[str]] = {}
    said: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="diagnosis-") as name:
        for _ in range(rounds):
            for fault, case in CASES.items():
                for dose in doses:
                    row = f"{fault}, {dose:g}"
                    outcome, first = _try(Path(name) / "run", case, dose, steps)
                    outcomes.setdefault(row, Counter())[outcome] += 1
                    said.append({"fault": row, "outcome": outcome, "first": first})
        alone = [_try(Path(name) / "run", _HEALTHY, 1.0, steps) for _ in range(healthy)]
    total: Counter[str] = sum(outcomes.values(), Counter())
    return {
        "outcomes": {row: dict(counts) for row, counts in outcomes.items()},
        "said": said,
        "runs": total.total(),
        **{outcome: total[outcome] for outcome in OUTCOMES},
        "top1": total["right"] / total.total(),
        "top2": (total["right"] + total["second"]) / total.total(),
        "healthy": len(alone),
        "healthy_outcomes": dict(Counter(outcome for outcome, _ in alone)),
        "false_alarms": [first for outcome, first in alone if outcome in ("wrong", "second")],
        "quick": quick,
    }


def _try(folder: Path, case: Case, dose: float, steps: int) -> tuple[str, str]:
    """Train with a fault; return the outcome and the first verdict in words."""
    record(folder, case.make((dose - 1.0) * _STEP), steps=steps, step_seconds=_STEP)
    found = diagnose_training(TrainingAnalysis(read_run(folder)))
    title = f"{found.first.title}: {found.first.says}"
    if case.accepts(found.first):
        return "right", title
    if found.first.verdict in _OF_THE_MACHINE:
        return "machine", title
    return ("second" if case.accepts(found.runner_up) else "wrong"), title


def as_text(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = [
        "# Whether faults of trainings are named",
        "",
        f"Forward and backward compute for {_STEP * 1e3:.0f} ms; one fault at a time.",
        "Dose 2: the step takes about twice as long.",
        "",
        f"First verdict right: {result['right']} of {result['runs']}; right as runner-up: {result['second']}; laid to the",
        f"machine: {result['machine']}; wrong: {result['wrong']}. Healthy trainings: {result['healthy']}, of them accused:",
        f"{len(result['false_alarms'])} ({result['healthy_outcomes']}).",
        "",
        f"| fault, dose | {' | '.join(OUTCOMES)} |",
        f"|---|{'---|' * len(OUTCOMES)}",
    ]
    for row, counts in result["outcomes"].items():
        lines.append(f"| {row} | {' | '.join(str(counts.get(one, 0)) for one in OUTCOMES)} |")
    missed = [one for one in result["said"] if one["outcome"] != "right"]
    lines += ["", *(f"- {one['fault']}: {one['outcome']}: {one['first']}" for one in missed)]
    return "\n".join([*lines, *(f"- healthy: {one}" for one in result["false_alarms"])])


if __name__ == "__main__":
    measure.run_benchmark("train.diagnosis", __doc__.splitlines()[0], run, as_text)

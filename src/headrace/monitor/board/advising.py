"""What a diagnosis says to do next, for who has never read one: what limits in plain words, one thing to do, and why."""

from __future__ import annotations

from headrace.monitor.board.records import Advice
from headrace.report.markup import sentence
from headrace.runs.formats.diagnosis import DiagnosisDocument, Finding, Remedy, VerdictClass

#: Verdicts that name nothing to mend.
_FINE = frozenset({VerdictClass.HEALTHY, VerdictClass.ARRIVAL_LIMITED})
#: Verdicts that name nothing yet: another run has to tell.
_OPEN = frozenset({VerdictClass.INCONCLUSIVE, VerdictClass.UNTRUSTED})
#: Less is no advice.
_WORTH, _NOTHING = 1.03, "Nothing that headrace can predict would gain 3 %."


def make_advice(found: DiagnosisDocument, meaning: str) -> Advice:
    """Return what to do about the run that was diagnosed.

    Args:
        found: The diagnosis.
        meaning: Of its verdict, in a sentence or two.
    """
    first = found.first
    stage = f" Stage: {first.stage}." if first.stage and first.verdict not in _OPEN else ""
    why = f"{first.title}: {sentence(first.says)}"
    says = f"{meaning}{stage}"
    if first.verdict in _FINE:
        return Advice(says=f"{says} Nothing needs to be done.", why=why)
    remedy = _choose(first)
    if remedy is None:
        return Advice(says=says, to_do=_NOTHING, why=why, command=found.experiment)
    return Advice(
        says=says, to_do=f"{sentence(remedy.says)}{_foretell(remedy)}", why=why,
        command=remedy.command or (found.experiment if first.verdict in _OPEN else ""), settings=remedy.settings,
    )  # fmt: skip


def _choose(first: Finding) -> Remedy | None:
    """Return the remedy that is predicted to gain most, else the first of which nobody knows; it decides what is open."""
    if first.verdict in _OPEN:
        return first.remedies[0] if first.remedies else None
    predicted = [(one.ratio.mid, one) for one in first.remedies if one.ratio is not None]
    gain, best = max(predicted, key=lambda one: one[0], default=(0.0, None))
    if gain >= _WORTH:
        return best
    return next((one for one in first.remedies if one.ratio is None), None)


def _foretell(remedy: Remedy) -> str:
    if remedy.ratio is None:
        return ""
    low, mid, high = remedy.ratio.low, remedy.ratio.mid, remedy.ratio.high
    return f" Predicted: {mid:.2f} times the throughput ({low:.2f} to {high:.2f})."

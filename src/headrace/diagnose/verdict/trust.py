"""Runs whose numbers cannot be believed: a check failed, or profiling itself slowed them."""

from __future__ import annotations

from headrace.diagnose.verdict.proposal import Advice, Proposal, line
from headrace.runs.formats.diagnosis import EvidenceLine, VerdictClass
from headrace.runs.formats.profile import ProfileDocument
from headrace.runs.rerun_command import profile_again

#: What profiling may cost, as a share of the CPU time per item or of the services, before the answer is about profiling. Also
#: as a share of one core: of a run that computes little, a large share is still next to nothing of whatever could limit it.
_OVERHEAD = 0.05


def propose_untrusted(document: ProfileDocument) -> Proposal | None:
    """Return the verdict UNTRUSTED with its reasons; None if the run's numbers can be believed."""
    overhead = _overhead(document)
    too_much = overhead.supports is True
    if not document.distrust and not too_much:
        return None
    reasons = list(document.distrust)
    if too_much and not any(one.startswith("overhead") for one in reasons):
        reasons.append(overhead.says)
    failed = [
        line(check.name, check.says, check.value, check.limit, True, check.source)
        for check in document.checks
        if check.status == "failed"
    ]
    return Proposal(
        verdict=VerdictClass.UNTRUSTED,
        stage=None,
        cause="checks" if document.distrust else "overhead",
        says="the numbers of this run cannot be believed: " + "; ".join(reasons),
        rule=f"a check of the run failed, or profiling surely cost more than {_OVERHEAD:.0%} of the CPU time and of a core",
        resources=(),
        share=0.0,
        evidence=(*failed, overhead),
        advice=(
            Advice(
                says="mend what the reasons name (fewer clocks, larger items, no second profiler), and profile again",
                command=profile_again(document, "-o", f"{document.run}-again"),
            ),
        ),
    )


def _overhead(document: ProfileDocument) -> EvidenceLine:
    """Return what profiling surely cost: the lower end of the interval."""
    estimate = document.overhead
    lows = []
    if estimate is not None:
        lows = [
            low
            for low in (estimate.low, estimate.clocks_ratio[0] if estimate.clocks_ratio else None)
            if low is not None
        ]
    if estimate is None or not lows:
        return line("overhead", "what profiling cost: not measured", None, _OVERHEAD)
    surely = max(lows) - 1
    cores = _cores_used(document)
    of_a_core = "" if cores is None else f", which is {max(0.0, surely) * cores:.1%} of a core"
    says = f"{estimate.says} (at least {max(0.0, surely):.1%}{of_a_core}; up to {_OVERHEAD:.0%} is allowed)"
    is_too_much = surely > _OVERHEAD and (cores is None or surely * cores > _OVERHEAD)
    return line("overhead", says, surely, _OVERHEAD, is_too_much, "paired blocks within the run")


def _cores_used(document: ProfileDocument) -> float | None:
    account = document.cpu
    return account.total_seconds / account.elapsed_seconds if account and account.elapsed_seconds > 0 else None

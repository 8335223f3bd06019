"""What a rule hands over: a possible verdict, the facts for and against it, and what could be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.runs.formats.diagnosis import EvidenceLine, Finding, Remedy, VerdictClass
from headrace.runs.formats.prediction import Change

#: A cause that takes less of the bottleneck's time than this is not named: removed altogether, it would give a ninth more at
#: most, which a run of a few seconds hardly tells from noise.
WORTH_NAMING = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to do; what it buys is simulated later, for the findings that are shown."""

    says: str
    settings: tuple[str, ...] = ()
    """Changes of the Plan, `KEY=VALUE`."""
    change: Change | None = None
    """What to simulate where settings do not say it; None with `settings`, and where it cannot be predicted."""
    command: str = ""
    """To type next, if not the what-if or tune that follows from the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A possible verdict."""

    verdict: VerdictClass
    stage: str | None
    cause: str = ""
    says: str
    rule: str
    resources: tuple[str, ...]
    """Names of the candidates whose gain is this one's: the resource that it explains."""
    share: float
    """Of the resource's time that this cause takes, 0 to 1; 0 for the resource's own work, which is left when nothing special
    explains it."""
    evidence: tuple[EvidenceLine, ...] = ()
    advice: tuple[Advice, ...] = ()
    removal: Change | None = None
    """The bottleneck out of the way, for the question what limits then."""
    measured_gain: float | None = None
    """Throughput ratio for a fifth more of it, worked out from time that was seen to be lost; None: only simulated."""
    is_latency: bool = False
    """It costs latency, not throughput."""
    sets_pace: bool = False
    """It is waited for again and again, and works at its own pace: until that is faster, more of the cores gain nothing."""
    is_lesser: bool = False
    """What it holds up takes longer by work of its own: where that gains as much, that comes first."""
    is_seen: bool = False
    """The cause itself was counted or sampled: refusals, throttled periods, collections. Else it is inferred from times."""

    def as_finding(self, **shown: Any) -> Finding:
        """Return it as a finding of high confidence whose gain is not known; `shown` names fields that are otherwise."""
        remedies = tuple(Remedy(says=advice.says) for advice in self.advice)
        finding = Finding(
            verdict=self.verdict, stage=self.stage, cause=self.cause, says=self.says, rule=self.rule, confidence="high",
            gain=None, evidence=self.evidence, remedies=remedies,
        )  # fmt: skip
        return msgspec.structs.replace(finding, **shown)


def line(
    name: str,
    says: str,
    value: float | None,
    threshold: float | None = None,
    supports: bool | None = None,
    source: str = "",
) -> EvidenceLine:
    """Return one fact; what was not measured supports nothing."""
    return EvidenceLine(
        name=name,
        says=says,
        value=None if value is None else float(value),
        threshold=None if threshold is None else float(threshold),
        supports=None if value is None or supports is None else bool(supports),
        source=source,
    )


def at_least(name: str, what: str, value: float | None, threshold: float, source: str = "") -> EvidenceLine:
    """Return a share that speaks for a finding from a threshold on."""
    if value is None:
        return line(name, f"{what}: not measured", None, threshold)
    return line(name, f"{what}: {value:.0%} (from {threshold:.0%})", value, threshold, value >= threshold, source)

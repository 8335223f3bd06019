"""The state of a canary: the file through which commands and workers agree, and `headrace canary status --json`.

Version 1: 2026-11, first.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.base.policies.canary import CanaryPolicy, Finding

CanaryStatus = Literal["running", "promoted", "rolled back"]
CanaryAct = Literal["started", "step", "promoted", "rolled back"]


class CanaryStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was done with a canary."""

    act: CanaryAct
    at_unix_seconds: float
    share: float
    """Of the jobs that fell to it from then on."""
    reason: str
    by: Literal["headrace", "user"]


class CanaryState(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a canary, and why."""

    id: str
    """Of this canary: the salt of its split, too."""
    status: CanaryStatus
    model: dict[str, Any]
    """The `[model]` table of its Plan."""
    models: dict[str, dict[str, Any]] = {}
    """Its `[models]` tables."""
    batches: dict[str, int] = {}
    """{stage: the largest batch that its Plan names}."""
    plan_id: str = ""
    """Of the run's Plan with these models; empty until a worker has opened them."""
    stable_plan_id: str = ""
    policy: CanaryPolicy
    step: int
    """Index in `policy.shares`."""
    since_unix_seconds: float
    """When this step began."""
    findings: tuple[Finding, ...] = ()
    """As last judged."""
    judged_unix_seconds: float = 0.0
    reason: str = ""
    """Of the status or, while it runs, what is still missing."""
    steps: tuple[CanaryStep, ...] = ()
    """What was done, in order."""

    @property
    def share(self) -> float:
        """Of the jobs that fall to it now."""
        if self.status == "rolled back":
            return 0.0
        return 1.0 if self.status == "promoted" else self.policy.shares[self.step]

    def done(self, act: CanaryAct, now: float, reason: str, by: Literal["headrace", "user"]) -> CanaryState:
        """Return the state after something was done with a canary that runs, or was promoted.

        Args:
            act: What.
            now: Unix seconds.
            reason: Why.
            by: Who decided.
        """
        status: CanaryStatus = "running" if act in ("started", "step") else act  # type: ignore[assignment]
        step = self.step + (act == "step")
        after = msgspec.structs.replace(self, status=status, step=step, since_unix_seconds=now, reason=reason)
        taken = CanaryStep(act=act, at_unix_seconds=now, share=after.share, reason=reason, by=by)
        return msgspec.structs.replace(after, steps=(*self.steps, taken))

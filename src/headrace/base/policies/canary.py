"""What becomes of a canary: held, one step further, promoted, or rolled back; decided by counts, at any time.

A canary goes from a shadow (its answers are thrown away) to small shares of real jobs and to all. The rules, in this order:

- A tripwire needs no statistics: see `tripwires`.
- Then the split itself: a share that is not what was asked for makes every other figure worthless.
- Worse in one metric rolls it back. Alpha is shared out over the metrics, so that an identical canary is rolled back with a
  probability of alpha at most, however often one looks.
- The next step needs evidence that it is no worse in each metric. What is acceptable shrinks as the share grows: no step may
  risk more than the margins of all jobs, so that 10 % of them may go to what is at most ten margins worse.
- Otherwise it is held, and each metric says what is missing and when it will be known. That there are no data is a verdict of
  its own: it does not mean that all is well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.base.policies.evidence import FEWER, MORE, Bet, Counts, Tally, bet_events, bet_split, bet_within
from headrace.base.settings import check
from headrace.base.units import format_duration

Metric = Literal["failures", "answers", "latency", "feedback"]
Judged = Literal["worse", "no worse", "open", "no data", "not asked"]
Action = Literal["hold", "step", "promote", "roll back"]

#: Parts of alpha: failures are what a canary is for, and they are rare.
_PARTS: dict[Metric, float] = {"failures": 0.4, "answers": 0.2, "latency": 0.2, "feedback": 0.2}
#: Probability of calling a right split wrong.
_SPLIT_ALPHA = 0.001
#: The most that is acceptable at small shares.
_MOST_MARGIN = 0.1
#: Pairs of calls: half of the canary's are the slower ones where both take the same time.
_HALF = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryPolicy:
    """What is acceptable, and the way."""

    alpha: float = 0.025
    """Probability that an identical canary is rolled back, and that a step is taken that should not be, at most."""
    max_more_failures: float = 0.005
    """By how much its share of failed jobs may be above the other arm's; that of bad feedback, too."""
    max_disagreement: float = 0.01
    """Share of answers that it may change."""
    max_slowdown: float = 0.25
    """By how much a call of its model may take longer at the same batch size: the median of pairs of calls."""
    shares: tuple[float, ...] = (0.0, 0.01, 0.1, 0.5, 1.0)
    """Of the jobs, step by step; 0: shadow; 1: all, which is the promotion."""
    key: str = ""
    """The attribute of jobs that is drawn, such as a camera; empty: each job is drawn by its id."""

    def __post_init__(self) -> None:
        """Check every value."""
        object.__setattr__(self, "shares", tuple(self.shares))
        check(0 < self.alpha < 0.5, "alpha", self.alpha, "above 0 and below 0.5")
        for key in ("max_more_failures", "max_disagreement"):
            check(
                0 < getattr(self, key) <= _MOST_MARGIN, key, getattr(self, key), f"above 0 and at most {_MOST_MARGIN}"
            )
        check(self.max_slowdown >= 0, "max_slowdown", self.max_slowdown, "0 or more")
        grows = all(one < other for one, other in zip(self.shares, self.shares[1:], strict=False))
        is_way = len(self.shares) > 1 and self.shares[0] >= 0 and self.shares[-1] == 1 and grows
        check(is_way, "shares", self.shares, "shares that grow, the last of them 1")

    def margin_at(self, margin: float, share: float) -> float:
        """Return what is acceptable of a canary that is to have a share of the jobs."""
        return min(_MOST_MARGIN, margin / share)


class Seen(msgspec.Struct):
    """All that was seen of a canary; what several workers saw is added up."""

    drawn: dict[float, Counts] = {}
    """{share of the canary: jobs by arm, as they came}: what comes later says less of the split, as one arm may take longer."""
    jobs: dict[float, Counts] = {}
    """{share of the canary: jobs, and those that failed}."""
    feedback: dict[float, Counts] = {}
    """The same of jobs whose users told how they liked the answer."""
    num_slower: float = 0
    """Pairs of calls of which the canary's was the slower one, by more than is acceptable."""
    num_pairs: float = 0
    num_changed: float = 0
    """Items whose answer was another one than that of the model in use."""
    num_compared: float = 0
    trips: list[str] = []
    """What rolls it back at once, in words."""

    def plus(self, other: Seen) -> Seen:
        """Return what both saw."""
        return Seen(
            drawn=_sum(self.drawn, other.drawn),
            jobs=_sum(self.jobs, other.jobs),
            feedback=_sum(self.feedback, other.feedback),
            num_slower=self.num_slower + other.num_slower,
            num_pairs=self.num_pairs + other.num_pairs,
            num_changed=self.num_changed + other.num_changed,
            num_compared=self.num_compared + other.num_compared,
            trips=[*self.trips, *other.trips],
        )


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one metric."""

    metric: str
    verdict: Judged
    e_worse: float = 1.0
    """How strongly the counts say that it is worse: e-value."""
    e_no_worse: float = 1.0
    """The same that it is no worse than acceptable at the next step."""
    says: str = ""
    known_in_seconds: float | None = None
    """When it would be known that it is no worse, if all goes on like this; None: it is known, or nobody can tell."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, and why."""

    action: Action
    reason: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class _Question:
    """One metric: what is bet on, and what it says in words."""

    metric: Metric
    worse: Bet
    no_worse: Bet
    worse_tally: Tally
    no_worse_tally: Tally
    share: float
    """Key of the present counts in `no_worse_tally`."""
    num: float
    """Counted of the canary."""
    counted: str
    missing: str
    """What is said where nothing was counted."""


def judge(policy: CanaryPolicy, seen: Seen, step: int, seconds: float) -> Decision:
    """Return what becomes of a canary.

    Args:
        policy: What is acceptable.
        seen: Since it began.
        step: Index in `policy.shares`, below the last.
        seconds: Since this step began.
    """
    share, following = policy.shares[step], policy.shares[step + 1]
    asked = _questions(policy, seen, share, following)
    findings = tuple(_find(policy, question, seconds) for question in asked)
    if seen.trips:
        return Decision(action="roll back", reason=seen.trips[0], findings=findings)
    if bet_split().log_e(seen.drawn) >= -math.log(_SPLIT_ALPHA):
        return Decision(action="roll back", reason=_split_says(seen), findings=findings)
    for found in findings:
        if found.verdict == "worse":
            return Decision(action="roll back", reason=found.says, findings=findings)
    open_ones = [found for found in findings if found.verdict in ("open", "no data")]
    if open_ones:
        return Decision(action="hold", reason="; ".join(found.says for found in open_ones), findings=findings)
    action: Action = "promote" if following == 1 else "step"
    return Decision(action=action, reason="; ".join(found.says for found in findings), findings=findings)


def _questions(policy: CanaryPolicy, seen: Seen, share: float, following: float) -> list[_Question]:
    within = bet_within(policy.margin_at(policy.max_more_failures, following))
    more, fewer = bet_events(MORE), bet_events(FEWER)
    worst, next_worst = policy.max_disagreement, policy.margin_at(policy.max_disagreement, following)
    changed = Counts(bad_canary=seen.num_changed, bad_stable=seen.num_compared - seen.num_changed)
    found = [
        _Question(
            *("answers", more, fewer, {worst: changed}, {next_worst: changed}, next_worst, seen.num_compared),
            f"{seen.num_changed:,.0f} of {seen.num_compared:,.0f} answers changed",
            "no answer was compared yet",
        )
    ]
    if share:  # a shadow serves nobody, and its calls are slow because it gives way to others
        slower = {_HALF: Counts(bad_canary=seen.num_slower, bad_stable=seen.num_pairs - seen.num_slower)}
        found += [
            _jobs_question("failures", seen.jobs, share, more, within, policy.key),
            _Question(
                *("latency", more, fewer, slower, slower, _HALF, seen.num_pairs),
                f"{seen.num_slower:,.0f} of {seen.num_pairs:,.0f} calls took over {policy.max_slowdown:.0%} longer",
                "no batch was answered by both models yet",
            ),
        ]
        if seen.feedback:
            found.append(_jobs_question("feedback", seen.feedback, share, more, within, policy.key))
    return found


def _jobs_question(metric: Metric, tally: Tally, share: float, worse: Bet, no_worse: Bet, key: str) -> _Question:
    total = Counts()
    for counts in tally.values():
        total = total.plus(counts)
    went = "failed" if metric == "failures" else "were told to be bad"
    what = f"times that a {key} was drawn" if key and metric == "failures" else "jobs"
    counted = (
        f"{total.bad_canary:,.4g} of {total.canary:,.0f} {what} of the canary {went}, "
        f"{total.bad_stable:,.4g} of {total.stable:,.0f} others"
    )
    missing = "no job fell to the canary yet" if metric == "failures" else "no feedback on the canary yet"
    if key and metric == "failures":
        missing = f"no {key} was the canary's to the end of five minutes yet"
    return _Question(metric, worse, no_worse, tally, tally, share, total.canary, counted, missing)


def _find(policy: CanaryPolicy, question: _Question, seconds: float) -> Finding:
    metric = question.metric
    if not question.num:
        return Finding(metric=metric, verdict="no data", says=f"{metric}: no data: {question.missing}")
    goal_worse, goal = -math.log(policy.alpha * _PARTS[metric]), -math.log(policy.alpha)
    worse, no_worse = question.worse.log_e(question.worse_tally), question.no_worse.log_e(question.no_worse_tally)
    verdict: Judged = "worse" if worse >= goal_worse else "no worse" if no_worse >= goal else "open"
    known = None
    if verdict == "open":
        known = question.no_worse.seconds_to(goal, question.no_worse_tally, question.share, seconds)
    ends = {
        "worse": f"worse for sure (e {_shown(worse)} of {_shown(goal_worse)})",
        "no worse": f"no worse for sure (e {_shown(no_worse)} of {_shown(goal)})",
        "open": f"not known yet (e {_shown(no_worse)} of {_shown(goal)} that it is no worse, {_shown(worse)} of "
        f"{_shown(goal_worse)} that it is worse); {_when(known)}",
    }
    return Finding(
        metric=metric, verdict=verdict, e_worse=_value(worse), e_no_worse=_value(no_worse),
        says=f"{metric}: {question.counted}: {ends[verdict]}", known_in_seconds=known,
    )  # fmt: skip


def _split_says(seen: Seen) -> str:
    shares = "; ".join(
        f"{counts.canary / (counts.canary + counts.stable):.2%} of {counts.canary + counts.stable:,.0f} jobs fell to the "
        f"canary instead of {share:.2%}"
        for share, counts in seen.drawn.items()
        if counts.canary + counts.stable
    )
    return f"split: {shares}: jobs do not go where they should, so no other figure can be believed"


def _when(seconds: float | None) -> str:
    return "as it is, it will never be" if seconds is None else f"about {format_duration(seconds)} more would tell"


def _shown(log_value: float) -> str:
    return f"{_value(log_value):,.3g}" if log_value < math.log(1e6) else f"1e{log_value / math.log(10):.0f}"


def _value(log_value: float) -> float:
    return math.exp(max(-700.0, min(700.0, log_value)))


def _sum(one: dict[float, Counts], other: dict[float, Counts]) -> dict[float, Counts]:
    total = dict(one)
    for share, counts in other.items():
        total[share] = total[share].plus(counts) if share in total else counts
    return total

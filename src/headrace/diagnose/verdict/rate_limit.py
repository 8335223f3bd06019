"""The other side limits how often it may be asked: it answers at its own pace, or refuses with 429."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from headrace.base.units import format_duration
from headrace.diagnose.concurrency import QUITE_EVEN, UNEQUAL
from headrace.diagnose.span_columns import Array
from headrace.diagnose.verdict import trends
from headrace.diagnose.verdict.facts import Facts, StageView
from headrace.diagnose.verdict.network import describe_waiting, is_waiting
from headrace.diagnose.verdict.pace import EVEN, FEWEST_CALLS, QUICKER, Pace, find_pace
from headrace.diagnose.verdict.proposal import Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import EvidenceLine, VerdictClass
from headrace.runs.formats.prediction import Change
from headrace.runs.reader import Run
from headrace.runs.rerun_command import profile_again

#: Share of the tries that were answered 429 (too many requests).
_REFUSED = 0.05
#: As candidates are simulated.
_FIFTH_MORE = 1.2
#: Of the requests, those that were let in at once; and how busy a stage's workers are if jobs depend on its answers.
_QUICK_PERCENT, _OCCUPIED = 10, 0.85
#: Share of the service that a stage sleeps which asks again later, and that it is seen to ask.
_ASLEEP, _ASKING = 0.3, 0.05
_ANSWERED_429 = re.compile(r"\b(?:answered|http|status(?:[ _]code)?[:=]?) *429\b|\btoo many requests\b", re.IGNORECASE)


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose for stages that wait for somebody who sets the pace, or says so."""
    for view in facts.stages:
        if is_waiting(view):
            yield from _paced(facts, view) or _asks_again(facts, view)
    yield from _refused(facts)


def refused_share(run: Run) -> float:
    """Return the share of the deliveries that ended without success because the other side answered 429; 0 without any."""
    counters = run.info.counters
    failed = counters.retried + counters.dead_lettered + counters.rejected
    if not failed:
        return 0.0
    texts = [one.reason for one in run.errors()]
    texts += [str(row["example"]) for row in (run.info.summary or {}).get("reasons") or []] if not texts else []
    of_failed = sum(bool(_ANSWERED_429.search(text)) for text in texts) / max(1, len(texts))
    return of_failed * failed / max(1, failed + counters.delivered)


def _paced(facts: Facts, view: StageView) -> list[Proposal]:
    pace = find_pace(facts, view)
    if pace is None:
        return []
    if pace.quick_ratio is None or pace.is_rationed:
        return [_rationed(facts, view, pace)]
    return [_in_line(facts, view, pace, pace.quick_ratio)]


def _in_line(facts: Facts, view: StageView, pace: Pace, quick_ratio: float) -> Proposal:
    enough = max(1, math.ceil(pace.per_second * quick_ratio * view.service))
    steps = " at even steps," if pace.unevenness <= EVEN else ""
    under_way = pace.per_second * view.service  # Little, 1961
    return Proposal(
        verdict=VerdictClass.RATE_LIMIT,
        stage=view.name,
        cause="paced",
        says=(
            f"what {view.name} asks answers {pace.per_second:.3g} a second{steps} and an item takes "
            f"{format_duration(view.service)} because {under_way:.2g} are under way: more workers would only stand in line"
        ),
        rule=(
            f"at least {FEWEST_CALLS} requests under way, the time between two answers spreads by at most {EVEN:.0%} of its "
            "mean (or a request takes the longer, the more are under way, on cores that are not full), and requests with at "
            f"most half as many before them as usual take at most {QUICKER:.0%} of the usual time"
        ),
        resources=view.resources,
        share=1 - quick_ratio,
        evidence=(
            _even_line(pace),
            line(
                "in_line",
                f"a request with few before it takes {quick_ratio:.0%} of the usual time (up to {QUICKER:.0%})",
                quick_ratio,
                QUICKER,
                True,
                "Little, 1961",
            ),
            *describe_waiting(view),
        ),
        advice=_ask_less(facts, view, enough),
        removal=Change(speedups={view.name: 4.0}),
        is_seen=True,
    )


def _rationed(facts: Facts, view: StageView, pace: Pace) -> Proposal:
    """Return the verdict on a service that gives out so many answers a second, and refuses or passes over the rest."""
    seconds = facts.service_seconds(view)
    quick = float(np.percentile(seconds, _QUICK_PERCENT))
    asleep = view.waits("sleep") or 0.0
    even = "even" if pace.unevenness <= EVEN else "rather even"
    again = f"; its workers sleep {asleep:.0%} of that time, as those do that ask again later" if asleep else ""
    return Proposal(
        verdict=VerdictClass.RATE_LIMIT,
        stage=view.name,
        cause="rationed",
        says=(
            f"what {view.name} asks gives out {pace.per_second:.3g} answers a second at {even} steps, while an item takes "
            f"anything from {format_duration(quick)} to {format_duration(float(seconds.max()))}, by luck{again}: more workers "
            "would only be refused more often"
        ),
        rule=(
            f"at least {FEWEST_CALLS} requests under way all the time, the time between two answers spreads by at most "
            f"{QUITE_EVEN:.0%} of its mean, and that of a request at least twice as much"
        ),
        resources=view.resources,
        share=max(0.0, 1 - quick / view.service) if view.service else 0.0,
        measured_gain=_gain_of_more_answers(facts, view),
        evidence=(
            _even_line(pace, QUITE_EVEN),
            _unequal_line(seconds),
            *describe_waiting(view),
        ),
        advice=_ask_less(facts, view, max(1, math.ceil(pace.per_second * quick))),
        removal=Change(speedups={view.name: 4.0}),
        is_seen=True,
    )


def _asks_again(facts: Facts, view: StageView) -> list[Proposal]:
    """Return the verdict on a stage that sleeps between its requests, for some items long and for others not at all."""
    asleep, asking = view.waits("sleep") or 0.0, view.waits("network") or 0.0
    seconds = facts.service_seconds(view)
    if asleep < _ASLEEP or asking < _ASKING or len(seconds) < trends.FEWEST_ITEMS or trends.spread(seconds) < UNEQUAL:
        return []
    quick, slow = (float(one) for one in np.percentile(seconds, [_QUICK_PERCENT, 100 - _QUICK_PERCENT]))
    return [
        Proposal(
            verdict=VerdictClass.RATE_LIMIT,
            stage=view.name,
            cause="asks again",
            says=(
                f"{view.name} sleeps {asleep:.0%} of its {format_duration(view.service)} per item between requests, for some "
                f"items not at all ({format_duration(quick)} in all) and for others long ({format_duration(slow)} and more), "
                "as it does who is refused, or told to wait, and asks again later"
            ),
            rule=(
                f"a stage that waits for the network sleeps at least {_ASLEEP:.0%} of its service, and the time of an item "
                f"spreads by at least {UNEQUAL:.0%} of its mean"
            ),
            resources=view.resources,
            share=asleep,
            measured_gain=_gain_of_more_answers(facts, view),
            evidence=(
                at_least("asleep", f"share of {view.name}'s service asleep", asleep, _ASLEEP),
                _unequal_line(seconds),
                *describe_waiting(view),
            ),
            advice=(
                Advice(says=f"look at what {view.name} is answered before it sleeps: a refusal (429, 503) is a limit"),
                *_ask_less(facts, view, max(1, view.workers // 2)),
            ),
            removal=Change(speedups={view.name: 4.0}),
            is_seen=True,
        )
    ]


def _unequal_line(seconds: Array) -> EvidenceLine:
    unequal = trends.spread(seconds)
    says = f"spread of the time that a request takes: {unequal:.0%} of its mean (from {UNEQUAL:.0%})"
    return line("unequal_requests", says, unequal, UNEQUAL, True)


def _gain_of_more_answers(facts: Facts, view: StageView) -> float | None:
    """Return what a fifth more answers would gain, as far as nothing else limits; None if jobs do not depend on them.

    A simulation does not know the ration: it takes the luck of the requests for their length.
    """
    if facts.throughput <= 0 or view.account.utilization is None or view.account.utilization < _OCCUPIED:
        return None
    others = [bound.throughput for bound in facts.bounds if bound.stage != view.name]
    return min([_FIFTH_MORE, *(bound / facts.throughput for bound in others)])


def _even_line(pace: Pace, most: float = EVEN) -> EvidenceLine:
    says = f"spread of the time between two answers: {pace.unevenness:.0%} of its mean (up to {most:.0%})"
    return line("even_answers", says, pace.unevenness, most, pace.unevenness <= most)


def _ask_less(facts: Facts, view: StageView, enough: int) -> tuple[Advice, ...]:
    """Return what helps against a limit of somebody else's, and how to make sure that it is one."""
    return (
        Advice(
            says="ask for a higher limit, or a second key or server (predicted for one that is twice as high)",
            change=Change(speedups={view.name: 2.0}),
        ),
        Advice(says="ask less: several items in one request, a cache of answers, or no request where none is needed"),
        Advice(
            says=f"try it with {enough} workers: if as many jobs a second are done, it is the limit",
            command=profile_again(facts.info, "--set", f"{view.account.station}.workers={enough}"),
        ),
    )


def _refused(facts: Facts) -> Iterator[Proposal]:
    share = refused_share(facts.evidence.run)
    failed = {stage.name: stage.failed for stage in facts.evidence.stages}
    view = max(facts.stages, key=lambda view: failed[view.name], default=None)
    if share >= _REFUSED and view is not None:
        yield propose_refused(facts.evidence.run, view.name, share, ("retries", *view.resources))


def propose_refused(run: Run, stage: str | None, share: float, resources: tuple[str, ...] = ()) -> Proposal:
    """Return the verdict on requests that were refused.

    Args:
        run: The run.
        stage: Which asks.
        share: Of the deliveries that failed because of it.
        resources: Candidates whose gain is this one's.
    """
    counters = run.info.counters
    lost = f"; {counters.dead_lettered:,} jobs were dead-lettered" if counters.dead_lettered else ""
    return Proposal(
        verdict=VerdictClass.RATE_LIMIT,
        stage=stage,
        cause="refused",
        says=(
            f"the other side refuses: {share:.0%} of the deliveries ended with its answer 429, too many requests{lost}. Asking "
            "again costs requests too"
        ),
        rule=f"at least {_REFUSED:.0%} of the deliveries fail with the answer 429",
        resources=resources,
        share=share,
        measured_gain=1 / (1 - share * (1 - 1 / _FIFTH_MORE)),
        evidence=(at_least("refused", "share of the deliveries that were answered 429", share, _REFUSED),),
        advice=(
            Advice(says="ask no more than is allowed: fewer workers of that stage, so that nothing is refused"),
            Advice(says="ask for a higher limit, or less: several items in one request, a cache of answers"),
        ),
        removal=Change(speedups={stage: 4.0}) if stage else None,
        is_seen=True,
    )

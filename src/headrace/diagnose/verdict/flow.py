"""Work done again, and work done but held back: retries, duplicates, delivery in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from headrace.base.units import format_duration
from headrace.diagnose.replay import CannotReplay
from headrace.diagnose.span_columns import Array
from headrace.diagnose.verdict.facts import Facts, StageView
from headrace.diagnose.verdict.proposal import WORTH_NAMING, Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import VerdictClass
from headrace.runs.formats.prediction import Change

#: Shares below this are not named.
_SEEN = 0.005
#: Share of the latency that done items are held back.
_HELD = 0.2


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose for stages that work in vain, and for the order."""
    yield from _retries(facts)
    yield from _propose_ordering(facts)


def compute_wasted_share(facts: Facts, view: StageView) -> float | None:
    """Return the share of a stage's service that was in vain.

    That is: tries that failed, items that it had served before, and deliveries of jobs that were lost or given back. Items
    whose service was repeated after a batch was split count as served once: their batch failed, not they.
    """
    spans, own = facts.evidence.spans, facts.evidence.stage_rows(view.name)
    seconds = (spans.ended[own] - spans.started[own]) / spans.batch_size[own] * spans.weight[own]
    total = float(seconds.sum())
    if total <= 0:
        return None
    # The last good service of an item is the one that counted.
    order = np.lexsort((spans.ended[own], spans.is_ok[own], spans.unit[own]))
    unit = spans.unit[own][order]
    is_useful = np.append(unit[1:] != unit[:-1], True) & spans.is_ok[own][order]
    if facts.do_jobs_come_again:
        is_useful &= _is_delivered(facts, own)[order]
    return max(0.0, 1 - float(seconds[order][is_useful].sum()) / total)


def _is_delivered(facts: Facts, own: slice) -> Array:
    """Return for each of a stage's spans whether that delivery of its job was finished."""
    spans, jobs = facts.evidence.spans, facts.evidence.jobs
    attempts = int(spans.attempt.max(initial=0)) + 1
    done = jobs.root[jobs.is_delivered].astype(np.int64) * attempts + jobs.attempt[jobs.is_delivered]
    return np.isin(spans.root[own].astype(np.int64) * attempts + spans.attempt[own], done)


def _retries(facts: Facts) -> Iterator[Proposal]:
    """Propose for each stage that fails or works in vain; what is done again only since another stage fails is that stage's."""
    shares = {view.name: compute_wasted_share(facts, view) or 0.0 for view in facts.stages}
    found = [_retry(facts, view, shares[view.name]) for view in facts.stages if shares[view.name] >= WORTH_NAMING]
    failing = _find_failing_stage(facts)
    of_others = [one for one in found if failing and one.cause == "failures" and not _fails(facts, one.stage or "")]
    yield from (one for one in found if one not in of_others)
    if not of_others or failing is None or shares[failing.name] >= WORTH_NAMING:
        return
    worst = max(of_others, key=lambda one: one.share)
    speedups = {one.stage: 1 / max(0.05, 1 - one.share) for one in of_others if one.stage}
    yield dataclasses.replace(
        worst,
        stage=failing.name,
        says=f"{failing.name} fails: {worst.says}",
        resources=(*worst.resources, *failing.resources),
        advice=(dataclasses.replace(worst.advice[0], change=Change(speedups=speedups)), *worst.advice[1:]),
    )


def _fails(facts: Facts, stage: str) -> bool:
    """Return whether tries of the stage itself failed."""
    is_ok = facts.evidence.spans.is_ok[facts.evidence.stage_rows(stage)]
    return bool((~is_ok).mean() >= _SEEN)


def _find_failing_stage(facts: Facts) -> StageView | None:
    """Return the stage with the most failures; None if none failed."""
    failed = {stage.name: stage.failed for stage in facts.evidence.stages}
    views = [view for view in facts.stages if failed.get(view.name)]
    return max(views, key=lambda view: failed[view.name], default=None)


def _retry(facts: Facts, view: StageView, share: float) -> Proposal:
    spans, own = facts.evidence.spans, facts.evidence.stage_rows(view.name)
    again = float((spans.attempt[own] > 1).mean())
    failed = float((~spans.is_ok[own]).mean())
    counters = facts.info.counters
    is_lease = counters.lost > 0 and again + counters.lost / max(counters.received, 1) >= failed
    visibility = facts.plan.source.visibility_seconds
    if is_lease:
        counts = f"{counters.lost:,} lost their lease, {counters.retried:,} failed"
        why = f"jobs were received again while they were worked on ({counts})"
        advice = Advice(
            says="a longer visibility timeout, above the slowest job's latency, or fewer jobs in flight",
            settings=(f"source.visibility_seconds={4 * visibility:g}",) if visibility else (),
            change=None if visibility else Change(speedups={view.name: 1 / max(0.05, 1 - share)}),
        )
    else:
        why = _in_vain(facts, failed, again)
        advice = Advice(
            says="find out what fails (errors.jsonl of the run folder); wait longer between tries, or stop trying what is down",
            change=Change(speedups={view.name: 1 / max(0.05, 1 - share)}),
        )
    return Proposal(
        verdict=VerdictClass.RETRY,
        stage=view.name,
        cause="redelivery" if is_lease else "failures",
        says=f"{share:.0%} of {view.name}'s time goes to work that is done again or in vain: {why}",
        rule=f"at least {WORTH_NAMING:.0%} of a stage's service is spent on tries that fail or items served before",
        resources=("retries", "in_flight", *view.resources),
        share=share,
        evidence=(
            at_least("wasted", f"share of {view.name}'s service in vain", share, WORTH_NAMING),
            line(
                "attempts",
                f"{again:.0%} of its items came in a second or later delivery",
                again,
                None,
                again > 0 or None,
            ),
            line("failed", f"{failed:.0%} of its tries failed", failed, None, failed > 0 or None),
        ),
        advice=(advice, Advice(says="more workers would do more of it in vain")),
        removal=Change(speedups={view.name: 4.0}),
        is_seen=True,
    )


def _in_vain(facts: Facts, failed: float, again: float) -> str:
    """Return in words why work was in vain, by what was seen: its own tries, other stages' failures, second deliveries."""
    counters = facts.info.counters
    given_back = {
        "given back to be tried again": counters.retried,
        "given back without its counting against them": counters.returned,
        "given up": counters.rejected + counters.dead_lettered,
    }
    seen = [f"{number:,} were {words}" for words, number in given_back.items() if number]
    parts = [f"{failed:.0%} of its tries failed and were made again"] if failed >= _SEEN else []
    parts += [f"of {counters.received:,} deliveries {' and '.join(seen)}, in this stage or after it"] if seen else []
    parts += [f"{again:.0%} of its items came in a second or later delivery"] if again >= _SEEN else []
    return "; ".join(parts) or "items were served more than once"


def _propose_ordering(facts: Facts) -> Iterator[Proposal]:
    latency = facts.document.latency.mean
    if not facts.plan.run.ordered or not latency or len(facts.stages) < 2:
        return
    held = estimate_held_seconds(facts)
    if held is None:
        return
    of_latency = held / latency
    settings = ("run.ordered=false",)
    try:
        ratio = facts.replay.ratio(Change(settings=settings))
    except (CannotReplay, ValueError):
        ratio = None
    costs = max(0.0, 1 - 1 / ratio) if ratio else 0.0
    is_latency = costs < WORTH_NAMING
    if is_latency and of_latency < _HELD:
        return
    slowest = max(facts.stages, key=_unevenness)
    yield Proposal(
        verdict=VerdictClass.ORDERING,
        stage=facts.stages[-1].name,
        says=(
            f"results that are done wait {format_duration(held)} of their {format_duration(latency)} for an earlier, slower "
            f"one to be delivered first; the most uneven stage is {slowest.name}"
        ),
        rule=f"done items are held {_HELD:.0%} of the latency or more, or the order costs {WORTH_NAMING:.0%} of throughput",
        resources=("order", "in_flight", *facts.stages[-1].resources, *slowest.resources),
        share=of_latency if is_latency else costs,
        evidence=(
            at_least("held", "time held in order over the latency", of_latency, _HELD),
            line(
                "order_costs",
                "throughput without the order, by simulation: "
                + ("not predicted" if ratio is None else f"x{ratio:.2f}"),
                ratio,
                1 / (1 - WORTH_NAMING),
                ratio is not None and costs >= WORTH_NAMING,
            ),
        ),
        advice=(
            Advice(says="deliver each result when it is done, if who receives them can sort", settings=settings),
            Advice(
                says="or let more jobs be in flight, so that workers go on while one is slow",
                settings=(f"source.max_in_flight={2 * (facts.plan.source.max_in_flight or 64)}",),
            ),
        ),
        removal=Change(settings=settings),
        is_latency=is_latency,
    )


def estimate_held_seconds(facts: Facts) -> float | None:
    """Return how long done items are held on average before the delivery takes them; None if it cannot be told.

    Of those delivered in the window, as the latency is that it is held against: while a run begins, all wait for the first.
    """
    spans = facts.evidence.spans
    before, after = facts.stages[-2], facts.stages[-1]
    first, last = facts.evidence.stage_rows(before.name), after.rows
    done = np.full(len(spans.unit_ids), -1, np.int64)
    done[spans.unit[first]] = spans.put[first]
    known = done[spans.unit[last]] >= 0
    if not known.any():
        return None
    held = (spans.arrived[last] - done[spans.unit[last]])[known]
    return float(np.maximum(held, 0).mean()) / 1e9


def _unevenness(view: StageView) -> float:
    service = view.account.service
    return (service.maximum or 0.0) - (service.mean or 0.0)

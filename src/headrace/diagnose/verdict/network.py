"""Waiting for the network before the model (download) and after it (callback): latency, bandwidth, a slow tail, set-up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.base.units import format_duration, format_size
from headrace.diagnose.verdict import trends
from headrace.diagnose.verdict.facts import Facts, StageView
from headrace.diagnose.verdict.pace import find_pace
from headrace.diagnose.verdict.proposal import WORTH_NAMING, Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import EvidenceLine, VerdictClass
from headrace.runs.formats.prediction import Change

#: A stage waits rather than computes when this much of its service is blocked.
_WAITS = 0.5
#: What samples of a thread call waiting for something outside the process.
_OUTSIDE = ("network", "sleep", "process", "other")
#: Items slower than so many medians are a tail; a lognormal of sigma 0.5 has one in 1,500 of them.
_TAIL_MEDIANS = 4.0
#: And they are few: a tail of more items than this is not one.
_TAIL_ITEMS = 0.10
#: New connections per item from which on they count as not kept alive.
_NEW_CONNECTIONS = 0.5
#: Spread of bytes per second over that of items per second: on a full link bytes are steady and items are not, else sizes that
#: differ make bytes less steady than items, so that it is above 1.
_STEADY = 0.9
#: Share of the time that grows with size.
_BY_SIZE = 0.5


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose for each stage that waits for something outside."""
    for view in facts.stages:
        if not is_waiting(view):
            continue
        if view.work in ("download", "deliver", "callback"):
            is_before = view.work == "download"
        else:
            is_before = facts.model is None or view.index < facts.model.index
        is_paced = find_pace(facts, view) is not None  # more workers would stand in line: RATE_LIMIT says so
        if is_before:
            if not is_paced:
                yield _latency(facts, view, VerdictClass.DOWNLOAD_LATENCY)
                yield from _tail(facts, view, VerdictClass.DOWNLOAD_LATENCY)
            yield from _set_up(facts, view, VerdictClass.DOWNLOAD_LATENCY)
            yield from _bandwidth(facts, view)
        elif not _asks_somebody(facts, view):
            yield _propose_slow_writing(view)
        else:
            if not is_paced:
                yield _latency(facts, view, VerdictClass.CALLBACK)
                yield from _tail(facts, view, VerdictClass.CALLBACK)
            yield from _set_up(facts, view, VerdictClass.CALLBACK)


def _asks_somebody(facts: Facts, view: StageView) -> bool:
    """Return whether a stage waits for an answer: it opened connections, or its threads were seen to wait for the network.

    Where nothing was sampled, of what is no delivery, and of one that sleeps, as an emulated one does, it is taken to.
    """
    if view.work != "deliver":
        return True
    waits = view.waits("network", "sleep")
    return bool(facts.note(f"{view.name}.connections")) or waits is None or waits > 0


def is_waiting(view: StageView) -> bool:
    """Return whether a stage's service is mostly waiting for something outside the process.

    A stage that computes by kind does so only if the network is what it waits for: one that sleeps may be emulated.
    """
    if view.account.kind == "device" or not _is_blocked(view):
        return False
    is_io = view.account.kind == "io"
    outside = view.waits(*_OUTSIDE) if is_io else view.waits("network")
    if outside is None:
        return is_io
    inside = ("disk", "lock", "gil", "output") if is_io else ("disk", "lock", "gil", "output", "sleep")
    return (is_io or outside > 0) and outside >= max(view.waits(cause) or 0.0 for cause in inside)


def is_idle(view: StageView) -> bool:
    """Return whether a stage that computes by kind spends its time neither computing nor kept from it.

    It sleeps, or asks somebody; where samples do not tell, nothing speaks for a disk, a lock or the GIL either.
    """
    if view.account.kind != "cpu" or not _is_blocked(view):
        return False
    outside = view.waits(*_OUTSIDE)
    return outside is None or outside >= max(view.waits(cause) or 0.0 for cause in ("disk", "lock", "gil", "output"))


def _is_blocked(view: StageView) -> bool:
    return view.blocked_share is not None and view.blocked_share >= _WAITS


def more_workers(view: StageView, times: int = 2) -> Advice:
    """Return the advice to serve more items side by side."""
    count = view.workers * times
    says = f"serve {count} items side by side instead of {view.workers}: waiting costs no core"
    return Advice(says=says, settings=(f"{view.account.station}.workers={count}",))


def describe_waiting(view: StageView) -> list[EvidenceLine]:
    """Return what speaks for waiting."""
    found = [at_least("blocked", f"share of {view.name}'s service spent waiting", view.blocked_share, _WAITS)]
    network = view.waits("network")
    if network is not None:
        text = f"samples of its threads found them waiting for the network {network:.0%} of the service"
        found.append(line("network", text, network, None, network > 0 or None))
    if view.cpu_share is not None:
        text = f"CPU is {view.cpu_share:.0%} of the service"
        found.append(line("cpu", text, view.cpu_share, 1 - _WAITS, view.cpu_share <= 1 - _WAITS))
    return found


def _latency(facts: Facts, view: StageView, verdict: VerdictClass) -> Proposal:
    what = "a download" if verdict is VerdictClass.DOWNLOAD_LATENCY else "a delivery"
    most = next(one.most_workers for one in facts.evidence.stages if one.name == view.name) or view.workers
    says = (
        f"{what} takes {format_duration(view.service)}, {view.blocked_share or 0:.0%} of it waiting for an answer, and "
        f"{most} at a time give at most {most / view.service:.3g}/s"
    )
    return Proposal(
        verdict=verdict,
        stage=view.name,
        says=says,
        rule=f"its stage gains most, and is blocked at least {_WAITS:.0%} of the service, waiting for the outside",
        resources=view.resources,
        share=0.0,
        evidence=tuple(describe_waiting(view)),
        advice=(more_workers(view), more_workers(view, 4)),
        removal=Change(speedups={view.name: 4.0}),
    )


def _propose_slow_writing(view: StageView) -> Proposal:
    """Return the proposal for a delivery that waits and asks nobody: a file, whose writing is no callback."""
    return Proposal(
        verdict=VerdictClass.DISK,
        stage=view.name,
        cause="results",
        says=(
            f"writing a result takes {format_duration(view.service)}, {view.blocked_share or 0:.0%} of it waiting, and not for "
            "the network"
        ),
        rule=f"the delivery's stage gains most, asks nobody, and is blocked at least {_WAITS:.0%} of the service",
        resources=view.resources,
        share=0.0,
        evidence=tuple(describe_waiting(view)),
        advice=(Advice(says="write results to a faster disk, or many at once (`hr.parquet`)"), more_workers(view)),
        removal=Change(speedups={view.name: 4.0}),
    )


def _tail(facts: Facts, view: StageView, verdict: VerdictClass) -> Iterator[Proposal]:
    seconds = facts.service_seconds(view)
    if len(seconds) < trends.FEWEST_ITEMS:
        return
    items, share = trends.slow_share(seconds, _TAIL_MEDIANS)
    if share < WORTH_NAMING or items > _TAIL_ITEMS:
        return
    median = float(np.median(seconds))
    limit = format_duration(_TAIL_MEDIANS * median)
    worst = format_duration(float(seconds.max()))
    says = (
        f"{items:.1%} of the items take more than {_TAIL_MEDIANS:g} medians of {format_duration(median)} (up to {worst}), and "
        f"those take {share:.0%} of all the time that {view.name}'s workers are busy"
    )
    yield Proposal(
        verdict=verdict,
        stage=view.name,
        cause="tail",
        says=says,
        rule=(
            f"at most {_TAIL_ITEMS:.0%} of the items, each slower than {_TAIL_MEDIANS:g} medians, take at least "
            f"{WORTH_NAMING:.0%} of the time"
        ),
        resources=view.resources,
        share=share,
        evidence=(
            at_least("tail", f"share of {view.name}'s time in the slow few", share, WORTH_NAMING),
            line("slow_items", f"{items:.1%} of the items are slow", items, _TAIL_ITEMS, items <= _TAIL_ITEMS),
            *describe_waiting(view),
        ),
        advice=(
            Advice(
                says=f"give up on an answer after about {limit} and ask again (a time limit or a hedged request): a mean "
                "of more workers only hides the few",
                change=Change(speedups={view.name: 1 / (1 - share)}),
            ),
            more_workers(view),
        ),
        removal=Change(speedups={view.name: 4.0}),
    )


def _set_up(facts: Facts, view: StageView, verdict: VerdictClass) -> Iterator[Proposal]:
    connections = facts.note(f"{view.name}.connections")
    if connections is None or not view.account.items:
        return
    per_item = connections / view.account.items
    if per_item < _NEW_CONNECTIONS:
        return
    microseconds = facts.note(f"{view.name}.connect_microseconds")
    total = view.account.busy_seconds
    share = microseconds / 1e6 / total if microseconds is not None and total else None
    if share is not None and share < WORTH_NAMING:
        return
    each = f", {format_duration(microseconds / 1e6 / connections)} each" if microseconds and connections else ""
    yield Proposal(
        verdict=verdict,
        stage=view.name,
        cause="set-up",
        says=f"{connections:,} connections were set up for {view.account.items:,} items{each}: they are not kept alive",
        rule=f"at least {_NEW_CONNECTIONS:g} new connections per item, and at least {WORTH_NAMING:.0%} of the time in them",
        resources=view.resources,
        share=share if share is not None else WORTH_NAMING,
        evidence=(
            at_least("connections", "new connections per item", per_item, _NEW_CONNECTIONS),
            at_least("connect", f"share of {view.name}'s time spent connecting", share, WORTH_NAMING),
            *describe_waiting(view),
        ),
        advice=(
            Advice(
                says="let the server keep connections alive (HTTP keep-alive); headrace reuses them where it may",
                change=Change(speedups={view.name: 1 / (1 - share)}) if share is not None and share < 1 else None,
            ),
            more_workers(view),
        ),
        removal=Change(speedups={view.name: 4.0}),
    )


def _bandwidth(facts: Facts, view: StageView) -> Iterator[Proposal]:
    spans, rows = facts.evidence.spans, view.rows
    started, ended = spans.started[rows] / 1e9, spans.ended[rows] / 1e9
    sizes = spans.bytes_out[rows].astype(float)
    if len(rows) < trends.FEWEST_ITEMS or sizes.sum() <= 0:
        return
    by_size = trends.size_share(ended - started, sizes)
    by_company = _company_share(started, ended)
    steadiness = _steadiness(started, ended, sizes)
    signs = [
        at_least("by_size", "share of the time that grows with an item's bytes", by_size, _BY_SIZE),
        line(
            "steady_bytes",
            "spread of bytes/s over spread of items/s: "
            + ("not measured" if steadiness is None else f"{steadiness:.2f} (below {_STEADY:g} the link is full)"),
            steadiness,
            _STEADY,
            steadiness is not None and steadiness <= _STEADY,
        ),
        at_least("by_company", "share of the time that grows with downloads side by side", by_company, _BY_SIZE),
    ]
    num_for = sum(sign.supports is True for sign in signs)
    num_against = sum(sign.supports is False for sign in signs)
    if num_for < 2 or num_against > 1:
        return
    rate = float(sizes.sum()) / max(float(ended.max() - started.min()), 1e-9)
    yield Proposal(
        verdict=VerdictClass.BANDWIDTH,
        stage=view.name,
        says=(
            f"{view.name} brings {format_size(rate)}/s however many download side by side; an item of "
            f"{format_size(float(sizes.mean()))} takes {format_duration(view.service)}: more workers would only share the link"
        ),
        rule=(
            "two of: time grows with bytes, bytes/s steadier than items/s, time grows with the number of downloads side by side"
        ),
        resources=view.resources,
        share=max(by_size or 0.0, by_company or 0.0, _BY_SIZE),
        evidence=(*signs, *describe_waiting(view)),
        advice=(
            Advice(says="fetch fewer bytes: smaller or better compressed images, or a cache near the workers"),
            Advice(says="use a faster link, or a machine nearer to the data; more workers gain nothing here"),
        ),
        removal=Change(speedups={view.name: 4.0}),
    )


def _company_share(started: np.ndarray, ended: np.ndarray) -> float | None:
    """Return the share of the time that grows with how many download side by side."""
    return trends.size_share(ended - started, trends.company(started, ended))


def _steadiness(started: np.ndarray, ended: np.ndarray, sizes: np.ndarray) -> float | None:
    """Return the spread of bytes per second over that of items per second; None where sizes hardly differ."""
    if trends.spread(sizes) < 0.2:
        return None
    bytes_rate = trends.rates_over_time(started, ended, sizes)
    items_rate = trends.rates_over_time(started, ended, np.ones(len(sizes)))
    if bytes_rate is None or items_rate is None or not trends.spread(items_rate):
        return None
    return trends.spread(bytes_rate) / trends.spread(items_rate)

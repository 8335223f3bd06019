"""Three kinds of evidence, apart from the simulation, that a stage is the bottleneck; two of three must agree.

Not the lowest speed: a stage that looks slow because it waits for the one after it, or for a core, is a victim. So are stations
that wait most of their time for the GIL while this stage holds it, or for a core where all are at work and this stage uses
them most: their queues and their times say nothing against it.

References:
    F. Zhou, Y. Gan, S. Ma, Y. Wang, "wPerf: generic off-CPU analysis to identify bottleneck waiting events", OSDI 2018
    (who waits for whom). P. Denning and J. Buzen, "The operational analysis of queueing network models", 1978 (utilization).
"""

from __future__ import annotations

from headrace.diagnose.verdict.cores import is_computing, most_cpu
from headrace.diagnose.verdict.facts import Facts, StageView
from headrace.diagnose.verdict.intake import call_share
from headrace.diagnose.verdict.proposal import line
from headrace.runs.formats.diagnosis import EvidenceLine

_BUSY = 0.9
#: Fill of the queue before, less that of the queue after.
_GRADIENT = 0.25
#: Of the largest time that items spend at one station.
_OF_LARGEST = 0.8
#: Share of a station's service that it waits for the GIL or a core, from which on its time is that of whoever has it.
_MOSTLY = 0.5
NAMES = ("busy", "queue_gradient", "critical_path")


def lines(facts: Facts, view: StageView) -> tuple[EvidenceLine, ...]:
    """Return the three lines for a stage."""
    return _busy(facts, view), _gradient(facts, view), _critical_path(facts, view)


def station(facts: Facts, view: StageView) -> StageView:
    """Return the first stage of the station that a stage belongs to, which has the queue and the workers."""
    return facts.stage(view.account.station) or view


def _busy(facts: Facts, view: StageView) -> EvidenceLine:
    """Is what the stage needs, worker or core, always in use?"""
    found = [
        (share, f"{view.account.station}'s workers") for share in [_workers_busy(facts, view)] if share is not None
    ]
    if (is_computing(view) or view.work == "model") and facts.core_utilization is not None:
        found.append((facts.core_utilization, "the cores"))
    if (view.waits("gil") or 0.0) > 0.1:
        held = facts.utilization("gil")
        found += [(held, "the GIL")] if held is not None else []
    if not found:
        return line("busy", f"how busy {view.name} is: not measured", None, _BUSY)
    share, what = max(found)
    says = (
        f"{what} are in use {share:.0%} of the time"
        if what != "the GIL"
        else f"the GIL is held {share:.0%} of the time"
    )
    return line("busy", f"{says} (from {_BUSY:.0%})", share, _BUSY, share >= _BUSY, "utilization law")


def _workers_busy(facts: Facts, view: StageView) -> float | None:
    """Return the share of the time that a station's workers serve one of its stages."""
    shares = [_share_of_time(facts, one) for one in facts.stages if one.account.station == view.account.station]
    known = [share for share in shares if share is not None]
    return min(1.0, sum(known)) if known else None


def _share_of_time(facts: Facts, view: StageView) -> float | None:
    """Return the share of the time that a stage's workers serve it.

    A run too short to set its beginning apart has the model's loading in it, while everybody waited; there the utilization law
    tells: the rate of the steady part times the service.
    """
    account, jobs = view.account, facts.document.counters.get("delivered", 0)
    if (
        account.utilization is None
        or facts.document.window.is_steady is not None
        or not jobs
        or not account.service.mean
    ):
        return account.utilization
    size = account.batches.mean_size if account.batches else 1.0
    by_law: float = facts.throughput * account.items / jobs * account.service.mean / size / view.workers
    return max(account.utilization, min(1.0, by_law))


def _gradient(facts: Facts, view: StageView) -> EvidenceLine:
    """Is the queue before it fuller than the one after it?"""
    own = station(facts, view)
    before, (after, next_queue, following) = own.queue_fill, _after(facts, own)
    first = next((one for one in facts.stages if one.queue_fill is not None), None)
    receiving = facts.receiving
    if (before is None or own is first) and receiving is not None and receiving.calls:
        # Receivers that wait for room stand for the queue of the first stage, which may be bounded by jobs in flight.
        in_calls = call_share(receiving)
        before = max(before or 0.0, 1 - in_calls) if in_calls is not None else before
    if before is None or after is None:
        missing = f"queue before {own.name}" if before is None else next_queue
        return line("queue_gradient", f"{missing}: not measured", None, _GRADIENT, source="wPerf, OSDI 2018")
    difference = before - after
    says = f"the way into {own.name} is {before:.0%} full, {next_queue} (difference from {_GRADIENT:.0%})"
    others = [*facts.stages[: own.index], *([following] if following else [])]
    for one in others if difference < _GRADIENT else ():
        if taken := _find_taken(facts, view, one.account.station):
            says += f"; but {one.name} mostly waits for {taken} that {view.name} has"
            return line("queue_gradient", says, difference, _GRADIENT, source="wPerf, OSDI 2018")
    return line("queue_gradient", says, difference, _GRADIENT, difference >= _GRADIENT, "wPerf, OSDI 2018")


def _after(facts: Facts, own: StageView) -> tuple[float | None, str, StageView | None]:
    """Return how full the next queue is, that in words, and its stage; 0 where none comes, None where it was not measured."""
    for one in facts.stages[own.index + 1 :]:
        if one.account.station == own.account.station or not one.account.queue_capacity:
            continue
        fill = one.queue_fill
        return fill, f"queue before {one.name}" if fill is None else f"the next queue {fill:.0%}", one
    return 0.0, "and none comes after it", None


def _critical_path(facts: Facts, view: StageView) -> EvidenceLine:
    """Do items spend most of their time at it, waiting for it and in it?"""
    spent: dict[str, float] = {}
    for one in facts.stages:
        time = (one.account.queue_wait.mean or 0.0) + (one.account.setup or 0.0) + one.service
        spent[one.account.station] = spent.get(one.account.station, 0.0) + time
    largest, own = max(spent.values(), default=0.0), spent.get(view.account.station, 0.0)
    total = sum(spent.values())
    if total <= 0:
        return line("critical_path", "where items spend their time: not measured", None, _OF_LARGEST)
    says = f"items spend {own / total:.0%} of their time waiting for {view.account.station} and in it"
    if own < largest:
        longest = max(spent, key=lambda name: spent[name])
        says += f", and {largest / total:.0%} at {longest}"
        if own < _OF_LARGEST * largest and (taken := _find_taken(facts, view, longest)):
            says += f", which mostly waits for {taken} that {view.name} has"
            return line("critical_path", says, own / largest, _OF_LARGEST)
    return line("critical_path", says, own / largest, _OF_LARGEST, own >= _OF_LARGEST * largest)


def _find_taken(facts: Facts, view: StageView, station: str) -> str:
    """Return what another station mostly waits for while a stage has it: the GIL, a core; empty if that is none."""
    if station == view.account.station:
        return ""
    holders, busy = facts.gil_holders, facts.core_utilization
    has_gil = holders is not None and holders.most is not None and holders.most[0] == view.name
    has_cores = busy is not None and busy >= _BUSY and is_computing(view) and most_cpu(facts) is view
    waits = service = 0.0
    for one in facts.stages:
        if one.account.station == station:
            waits += one.service * (has_gil * (one.waits("gil") or 0.0) + has_cores * (one.delay_share or 0.0))
            service += one.service
    if not service or waits < _MOSTLY * service:
        return ""
    return " or ".join(what for what, is_taken in (("the GIL", has_gil), ("a core", has_cores)) if is_taken)

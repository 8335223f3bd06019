"""How jobs come in: too few of them, a broker that hands out too few at a time, a source that is slow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from headrace.base.formatting import quote_arg
from headrace.base.records import Receiving, SourceWork
from headrace.base.units import format_duration
from headrace.diagnose.verdict.facts import Facts
from headrace.diagnose.verdict.proposal import Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import EvidenceLine, LatencyPart, LatencyPartKind, VerdictClass
from headrace.runs.formats.prediction import Change
from headrace.runs.rerun_command import profile_again

#: Share of the receivers' time within calls of the source from which on they wait for it, not for room.
_IN_CALLS = 0.5
#: Fill of the fullest queue up to which queues count as empty.
_EMPTY = 0.25
#: Utilization of the busiest stage up to which there is headroom.
_HEADROOM = 0.9
#: Jobs over jobs asked for, up to which calls bring few.
_FEW_JOBS = 0.5
#: Calls from which on their rhythm is looked at; share of them that bring the same number of jobs, at least so many.
_MIN_CALLS, _SAME_CALLS, _FEWEST = 30, 0.95, 2
#: Spread of the times between calls up to which they count as even; correlation with the one before from which on no clock sets
#: them: half-way between -0.5 and 0.
_EVEN, _OWN_TIME = 0.5, -0.25
#: A job that was this many calls old when it was received, and this many seconds, had to wait in the source.
_OLD_CALLS, _OLD_SECONDS = 5.0, 0.25
#: Jobs waiting in the source that are a backlog.
_BACKLOG = 5.0


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose for the way in."""
    receiving = facts.receiving
    backlog = has_backlog(facts)
    if receiving is None or not receiving.calls:
        if _is_idle(facts):
            yield arrivals(facts, None)
        return
    in_calls = call_share(receiving)
    if in_calls is None or in_calls < _IN_CALLS:
        return
    work = facts.info.source_work
    if work is not None and not facts.do_jobs_come_again:
        yield _working(facts, receiving, in_calls, work)
    elif backlog is False or (backlog is None and _do_calls_wait(facts, receiving)):
        if _is_idle(facts):
            yield arrivals(facts, receiving)
    elif backlog and _jobs_share(receiving) <= _FEW_JOBS:
        yield _broker(facts, receiving, in_calls)
    elif backlog:
        yield _source(facts, receiving, in_calls)
    elif not facts.do_jobs_come_again:  # calls that wait for jobs to come again starve nobody
        yield from (_capped if hands_out_few(receiving) else _starved)(facts, receiving, in_calls)


def _do_calls_wait(facts: Facts, receiving: Receiving) -> bool:
    """Return whether calls wait for senders: live streams keep nothing, and other sources come back without a job then."""
    return bool(facts.info.streams) or receiving.empty_call_seconds >= 0.2 * receiving.call_seconds


def call_share(receiving: Receiving) -> float | None:
    """Return the share of the receivers' time that they spend within calls of the source."""
    total = receiving.call_seconds + receiving.blocked_seconds + receiving.inline_seconds
    return receiving.call_seconds / total if total > 0 else None


def has_backlog(facts: Facts) -> bool | None:
    """Return whether jobs wait in the source while receivers ask for them; None where the source does not tell.

    The age of the jobs tells; how many are there on an average counts the moments too in which nobody asked, for want of room.
    """
    receiving, visible = facts.receiving, facts.machine.get("source.visible")
    age = receiving.last_age_seconds if receiving else None
    if receiving is not None and age is not None and receiving.calls:
        return age >= max(_OLD_SECONDS, _OLD_CALLS * receiving.call_seconds / receiving.calls)
    return None if visible is None else visible >= _BACKLOG


def hands_out_few(receiving: Receiving) -> bool | None:
    """Return whether calls look as if they leave jobs behind, where the source does not tell; None where that was not recorded.

    Whoever waits for jobs gets as many as come together, when they come: by chance, or by the sender's clock, which a late call
    does not put off. A service that hands out so many at a time, and takes its own time for them, does neither.
    """
    takes_own_time, brought = takes_its_own_time(receiving), receiving.calls - receiving.empty_calls
    if takes_own_time is None:
        return None
    is_same = receiving.most_calls >= _SAME_CALLS * brought and receiving.most_jobs >= _FEWEST
    is_less = receiving.jobs <= _FEW_JOBS * receiving.asked
    return is_same and is_less and takes_own_time


def takes_its_own_time(receiving: Receiving) -> bool | None:
    """Return whether calls end at even times that no clock sets, as those of a slow source do; None if it was not recorded."""
    spread, correlation = receiving.gap_spread, receiving.gap_correlation
    if spread is None or correlation is None or receiving.calls - receiving.empty_calls < _MIN_CALLS:
        return None
    return spread <= _EVEN and correlation >= _OWN_TIME


def idle_lines(facts: Facts) -> list[EvidenceLine]:
    """Return how empty the queues and how idle the stages are."""
    fills = [(view.queue_fill, view.name) for view in facts.stages if view.queue_fill is not None]
    works = [(view.account.utilization, view.name) for view in facts.stages if view.account.utilization is not None]
    fill, queue = max(fills, default=(None, ""))
    busy, stage = max(works, default=(None, ""))
    return [
        line(
            "queues",
            "fill of the queues: not measured" if fill is None else f"the fullest queue ({queue}) is {fill:.0%} full",
            fill,
            _EMPTY,
            fill is not None and fill <= _EMPTY,
        ),
        line(
            "utilization",
            "utilization: not measured"
            if busy is None
            else f"the busiest stage ({stage}) is at work {busy:.0%} of the time",
            busy,
            _HEADROOM,
            busy is not None and busy <= _HEADROOM,
            "utilization law",
        ),
    ]


def _is_idle(facts: Facts) -> bool:
    lines = idle_lines(facts)
    return any(one.supports for one in lines) and all(one.supports is not False for one in lines)


def headroom(facts: Facts) -> float | None:
    """Return how many times as many jobs the tightest bound inside the pipeline allows; None without a bound."""
    inside = [bound.throughput for bound in facts.bounds if bound.name not in ("arrivals", "receiving")]
    return min(inside) / facts.throughput if inside and facts.throughput > 0 else None


def _jobs_share(receiving: Receiving) -> float:
    return receiving.jobs / receiving.asked if receiving.asked else 1.0


def _describe_receiving(facts: Facts, receiving: Receiving) -> list[EvidenceLine]:
    per_call = receiving.jobs / receiving.calls
    visible = facts.machine.get("source.visible")
    age = receiving.last_age_seconds
    backlog = has_backlog(facts)
    return [
        at_least(
            "in_calls", "share of the receivers' time within calls of the source", call_share(receiving), _IN_CALLS
        ),
        line(
            "jobs_per_call",
            f"{per_call:.2g} jobs per call, {receiving.asked / receiving.calls:.3g} asked for",
            per_call,
        ),
        line(
            "backlog",
            "jobs that could be received: " + ("not measured" if visible is None else f"{visible:,.0f} on average"),
            visible,
            _BACKLOG,
            backlog,
        ),
        line(
            "age",
            "age of the last jobs when received: "
            + ("not measured" if age is None else format_duration(max(0.0, age))),
            age,
            None,
            backlog,
        ),
    ]


def arrivals(facts: Facts, receiving: Receiving | None) -> Proposal:
    """Return the proposal that too few jobs come."""
    room = headroom(facts)
    lines = idle_lines(facts)
    if receiving is not None:
        in_calls = call_share(receiving)
        lines.append(at_least("in_calls", "share of the receivers' time waiting for jobs", in_calls, _IN_CALLS))
    times = f"; about {room:.1f} times as many could be done" if room is not None and room > 1 else ""
    parts = _describe_latency(facts)
    return Proposal(
        verdict=VerdictClass.ARRIVAL_LIMITED,
        stage=None,
        says=f"no more than {facts.throughput:.3g} jobs a second come in, and all are done{times}{parts}",
        rule=(
            f"queues at most {_EMPTY:.0%} full, no stage at work more than {_HEADROOM:.0%}, receivers wait for jobs and none "
            "wait in the source"
        ),
        resources=("arrivals", "receiving"),
        share=0.0,
        evidence=tuple(lines),
        advice=(
            *(_answer_sooner(part) for part in facts.latency_parts[:1]),
            Advice(
                says="for throughput nothing: fewer workers or a smaller machine would do, if more jobs are not to come"
            ),
            Advice(
                says="what twice the jobs would need",
                command=f"headrace capacity {quote_arg(facts.evidence.run.path)} --rate {_write_rate(2 * facts.throughput)}/s",
            ),
        ),
    )


def _describe_latency(facts: Facts) -> str:
    """Return where a job's time goes, as half a sentence: the two largest parts."""
    largest, total = facts.latency_parts[:2], sum(part.seconds for part in facts.latency_parts)
    shown = ", ".join(f"{part.share:.0%} of it {part.says}" for part in largest)
    return f". A job takes {format_duration(total)}: {shown}" if largest else ""


_SOONER: dict[LatencyPartKind, str] = {
    "request": "send smaller requests over a nearer or faster network, or give the service more of a core",
    "workers": "give {} more workers, if cores are free while jobs wait for them",
    "device": "make calls of {} shorter (headrace optimize), or let more of them run at a time (workers, instances)",
    "batch": "lower {}.max_wait_seconds, or its batch",
    "work": "make {} itself cheaper; workers and queues do not shorten it",
    "room": "find what is slow after {}: it takes its items late",
    "between": "cut jobs into fewer parts, or do not keep their order (run.ordered)",
}


def _answer_sooner(part: LatencyPart) -> Advice:
    """Return what would shorten the largest part of the latency."""
    return Advice(says=f"for latency: {_SOONER[part.kind].format(part.stage)} ({part.share:.0%} of a job's time)")


def _write_rate(rate: float) -> str:
    """Return a rate as an option takes it, without an exponent."""
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"


def _broker(facts: Facts, receiving: Receiving, in_calls: float) -> Proposal:
    per_call, seconds = receiving.jobs / receiving.calls, receiving.call_seconds / receiving.calls
    more = 4 * facts.plan.source.receivers
    return Proposal(
        verdict=VerdictClass.BROKER,
        stage=None,
        says=(
            f"jobs wait in the source, yet a call brings {per_call:.2g} of {receiving.asked / receiving.calls:.3g} asked for "
            f"and takes {format_duration(seconds)}: {receiving.num_receivers} receiver(s) get "
            f"{receiving.num_receivers * per_call / seconds:.3g} jobs a second at most"
        ),
        rule=(
            f"receivers spend at least {_IN_CALLS:.0%} of their time in calls that bring at most {_FEW_JOBS:.0%} of what they "
            "ask for, while jobs wait in the source"
        ),
        resources=("receiving", "arrivals"),
        share=in_calls,
        evidence=(*_describe_receiving(facts, receiving), *idle_lines(facts)),
        advice=(
            Advice(says="ask with more receivers side by side", settings=(f"source.receivers={more}",)),
            Advice(says="let the broker hand out several jobs per call (SQS: MaxNumberOfMessages, long polling)"),
        ),
        removal=Change(settings=(f"source.receivers={more}",)),
    )


def _capped(facts: Facts, receiving: Receiving, in_calls: float) -> Iterator[Proposal]:
    """Propose where a source does not tell whether jobs wait in it, and its calls look as if some did."""
    most, asked = receiving.most_jobs, receiving.asked / receiving.calls
    correlation = receiving.gap_correlation
    clock = line(
        "clock",
        f"times between calls, each with the one before: correlation {correlation:.2f} (a clock of the sender's: -0.5, calls "
        f"that take their own time: 0; from {_OWN_TIME})",
        correlation,
        _OWN_TIME,
        True,
    )
    yield Proposal(
        verdict=VerdictClass.BROKER,
        stage=None,
        says=(
            f"{_describe_calls(receiving, in_calls)}: always {most} of {asked:.3g} asked for, and at no clock's times, as a "
            f"service does that hands out no more than {most} at a time. Whether jobs wait in it was not measured"
        ),
        rule=(
            f"receivers spend at least {_IN_CALLS:.0%} of their time in calls that bring the same number of jobs, at most "
            f"{_FEW_JOBS:.0%} of what they ask for, after times that are even and follow no clock"
        ),
        resources=("receiving", "arrivals"),
        share=in_calls,
        evidence=(*_describe_receiving(facts, receiving), clock, *idle_lines(facts)),
        advice=(
            Advice(says=f"let the service hand out more than {most} jobs per call, or answer sooner"),
            _tell_apart(facts),
        ),
    )


def _source(facts: Facts, receiving: Receiving, in_calls: float) -> Proposal:
    settings = (f"source.receivers={4 * facts.plan.source.receivers}",)
    return Proposal(
        verdict=VerdictClass.SOURCE,
        stage=None,
        says=f"{_describe_calls(receiving, in_calls)}: it hands them out more slowly than they could be done",
        rule=f"receivers spend at least {_IN_CALLS:.0%} of their time in calls of the source, and jobs wait in it",
        resources=("receiving", "arrivals"),
        share=in_calls,
        evidence=(*_describe_receiving(facts, receiving), *idle_lines(facts)),
        advice=(
            Advice(says="receive with more threads", settings=settings),
            Advice(says="list, sort or open less per job in the source"),
        ),
        removal=Change(settings=settings),
    )


def _working(facts: Facts, receiving: Receiving, in_calls: float, work: SourceWork) -> Proposal:
    """Return the proposal where a source that has all its jobs does not make them fast enough."""
    verdict = VerdictClass.DECODE if work.is_decoding else VerdictClass.SOURCE
    room = headroom(facts)
    times = f"; the stages could do about x{room:.1f}" if room is not None and room > 1 else ""
    return Proposal(
        verdict=verdict,
        stage=None,
        says=f"{_describe_calls(receiving, in_calls)}: it {work.does}{times}",
        rule=(
            f"receivers spend at least {_IN_CALLS:.0%} of their time in calls of a source that has all its jobs and works for "
            "each"
        ),
        resources=("receiving", "arrivals", "source"),
        share=in_calls,
        evidence=(*_describe_receiving(facts, receiving), *idle_lines(facts)),
        advice=(
            *(Advice(says=way) for way in work.cheaper),
            Advice(
                says="what a source that takes half as long would bring",
                command=f"headrace whatif {quote_arg(facts.evidence.run.path)} --speedup receiving=2",
            ),
        ),
    )


def _starved(facts: Facts, receiving: Receiving, in_calls: float) -> Iterator[Proposal]:
    """Propose both where a source that is slow and one that has no job yet look the same; the first alone where they do not."""
    room = headroom(facts)
    times = f"; about x{room:.1f} could be done" if room is not None and room > 1 else ""
    may_be_slow = takes_its_own_time(receiving) is not False
    calls = _describe_calls(receiving, in_calls)
    either = ". Either no more jobs are there, or the source is slow (SOURCE)" if may_be_slow else ""
    starved = Proposal(
        verdict=VerdictClass.STARVED,
        stage=None,
        says=f"{calls}{either}. Whether jobs were there to be had was not measured{times}",
        rule=(
            f"receivers spend at least {_IN_CALLS:.0%} of their time in calls of a source that does not tell whether jobs wait "
            "in it"
        ),
        resources=("receiving", "arrivals"),
        share=in_calls,
        evidence=(*_describe_receiving(facts, receiving), *idle_lines(facts)),
        advice=(
            Advice(says="nothing to mend if jobs come when others send them (a camera, a sensor, another service)"),
            _tell_apart(facts),
            _FASTER_SOURCE,
        ),
    )
    yield starved
    if may_be_slow:
        yield dataclasses.replace(
            starved,
            verdict=VerdictClass.SOURCE,
            says=(
                f"{calls}. If jobs are there, the source is slow in handing them out; whether they were was not measured"
            ),
            advice=(_tell_apart(facts), _FASTER_SOURCE),
        )


_FASTER_SOURCE = Advice(
    says="if it is slow: list, sort or open less per job in the source, or receive with more threads (source.receivers) if it "
    "may be called by several"
)


def _tell_apart(facts: Facts) -> Advice:
    """Return what tells a slow source from one that has no more jobs: no experiment where the jobs are requests."""
    if facts.info.served:
        return Advice(says="which of the two it is shows whether senders wait before their requests are read")
    return Advice(
        says="which of the two it is shows when the receivers are held up for short stretches: if that costs throughput the "
        "source is slow, else no more jobs are there",
        command=profile_again(facts.info, "--experiment"),
    )


def _describe_calls(receiving: Receiving, in_calls: float) -> str:
    seconds = receiving.call_seconds / receiving.calls
    return (
        f"receivers spend {in_calls:.0%} of their time in calls of the source, {format_duration(seconds)} each for "
        f"{receiving.jobs / receiving.calls:.2g} jobs"
    )

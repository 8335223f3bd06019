"""Live streams that are not alike: one that stalls, and one that gets far less of the pipeline than others, or later."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Sequence

from headrace.base.formatting import pluralize
from headrace.base.units import format_duration
from headrace.diagnose.verdict.facts import Facts
from headrace.diagnose.verdict.proposal import WORTH_NAMING, Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import EvidenceLine, VerdictClass
from headrace.runs.formats.profile import StreamAccount
from headrace.runs.rerun_command import again, is_address

#: Seconds without a frame, all stalls of a stream together, from which on they are looked at.
_STALLED_SECONDS = 2.0
#: A gain is that of a fifth more.
_FIFTH_MORE = 1.2
#: Of the frames that were wanted: a stream that lacks fewer got what it asked for.
_LACKING = 0.1
#: What a stream gets over what another of its kind gets, up to which it is set back; fewest frames that say anything.
_SET_BACK, _FEWEST_FRAMES = 0.5, 20
#: Age of its answers over those of the others, and by how much at least, from which on it is late.
_OLDER, _OLDER_SECONDS = 2.0, 0.1
_MOST_NAMED = 3
_PAGE = ("--live-page", "8001")


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose for live streams; not of some time of a run, whose counts are of the whole."""
    if facts.info.window:
        return
    streams = facts.document.streams
    stalled = sorted((one for one in streams if _is_stalled(one)), key=lambda one: -one.stalled_share)
    if stalled:
        yield _stall(facts, stalled)
    for is_urgent in (False, True):  # what the user puts behind the others is no skew
        yield from _skew(facts, [one for one in streams if one.is_urgent == is_urgent])


def _is_stalled(stream: StreamAccount) -> bool:
    return stream.stalled_seconds >= _STALLED_SECONDS and stream.stalled_share >= WORTH_NAMING


def _stall(facts: Facts, stalled: Sequence[StreamAccount]) -> Proposal:
    worst, streams = stalled[0], facts.document.streams
    lost = sum(one.stalled_share for one in streams) / len(streams)
    more = [f"and {len(stalled) - _MOST_NAMED:,} more do so"] if len(stalled) > _MOST_NAMED else []
    return Proposal(
        verdict=VerdictClass.SOURCE,
        stage=None,
        cause="stall",
        says="; ".join([*map(_describe_stall, stalled[:_MOST_NAMED]), *more]),
        rule=(
            f"a live stream brings no frame for at least {WORTH_NAMING:.0%} of its time and {_STALLED_SECONDS:g} s, in pauses "
            "of 1 s and more that are five times as long as what usually lies between two of its frames"
        ),
        resources=("arrivals", "receiving"),
        share=worst.stalled_share,
        evidence=(
            at_least(
                "stalled", f"share of its time in which {worst.name} stood still", worst.stalled_share, WORTH_NAMING
            ),
            line("stalls", f"{pluralize(worst.stalls, 'stall')}, the longest {_seconds(worst)}", worst.stalls),
            line("connections", _describe_connections(worst), worst.connections),
            line("other_streams", _describe_others(streams, stalled), len(streams) - len(stalled)),
        ),
        advice=(
            Advice(says=_way_out(worst)),
            _watch(facts, "see when it comes and when it does not, while the pipeline runs"),
        ),
        measured_gain=1 / (1 - min(lost, 0.95) * (1 - 1 / _FIFTH_MORE)),
        is_seen=True,
    )


def _describe_stall(stream: StreamAccount) -> str:
    if not stream.came:
        return f"{stream.name} brought no frame at all"
    return f"{stream.name} brought nothing for {format_duration(stream.stalled_seconds)} of {format_duration(stream.seconds)}"


def _seconds(stream: StreamAccount) -> str:
    return format_duration(stream.longest_stall_seconds)


def _describe_connections(stream: StreamAccount) -> str:
    if stream.connections <= 1:
        return "its connection was not opened again"
    return (
        f"its connection broke off, or was given up, and was opened again {pluralize(stream.connections - 1, 'time')}"
    )


def _describe_others(streams: Sequence[StreamAccount], stalled: Sequence[StreamAccount]) -> str:
    well = len(streams) - len(stalled)
    if well:
        return f"{pluralize(well, 'other stream')} came all the time: it is not this machine"
    return "no stream came all the time: look at what they share, such as the network of this machine"


def _way_out(stream: StreamAccount) -> str:
    if not stream.came:
        return f"look whether {stream.name} is switched on, and whether its address and password are right"
    return (
        f"look at {stream.name}, its power and its network: it froze, began anew or was cut off. One that sends nothing while "
        "nothing moves is as it should be"
    )


def _skew(facts: Facts, streams: Sequence[StreamAccount]) -> Iterator[Proposal]:
    """Propose that one of several streams of one kind is set back, or late."""
    found = [skew for one in streams if (skew := _setback(one, streams) or _lateness(one, streams))]
    if not found:
        return
    share, worst, says, fact = max(found, key=lambda one: one[0])
    reasons = sorted({**worst.dropped, **worst.failed}.items(), key=lambda one: -one[1])
    shown = ", ".join(f"{reason} {number:,}" for reason, number in reasons[:_MOST_NAMED])
    yield Proposal(
        verdict=VerdictClass.INPUT_SKEW,
        stage=None,
        cause="streams",
        says=says,
        rule=(
            f"a live stream lacks answers to at least {_LACKING:.0%} of its frames and gets at most {_SET_BACK:.0%} of what "
            f"another gets that is as urgent, or its answers are at least {_OLDER:g} times as old as those of the others and "
            f"{_OLDER_SECONDS * 1000:g} ms older"
        ),
        resources=(),
        share=share,
        evidence=(
            fact,
            line("not_answered", f"its frames that were not answered: {shown or 'none'}", sum(n for _, n in reasons)),
        ),
        advice=(
            Advice(
                says="make its frames as cheap as the others': size=(width, height) and region= of headrace.live_video, or a "
                "smaller picture in the camera"
            ),
            Advice(says="ask less of all of them, so that nothing is dropped: fps= of headrace.live_video"),
            _watch(facts, "see the ages and drops of all, while the pipeline runs"),
        ),
        is_latency=True,
        is_seen=True,
    )


_Found = tuple[float, StreamAccount, str, EvidenceLine]


def _setback(stream: StreamAccount, streams: Sequence[StreamAccount]) -> _Found | None:
    """Return how far a stream is set back; None where it got what it asked for, or as much as others."""
    most = max(streams, key=lambda one: one.answered_per_second or 0.0)
    got, best = stream.answered_per_second or 0.0, most.answered_per_second or 0.0
    if stream.wanted < _FEWEST_FRAMES or stream.answered > (1 - _LACKING) * stream.wanted or got > _SET_BACK * best:
        return None
    says = (
        f"{stream.name} got answers to {got:.2g} of {stream.wanted_per_second or 0.0:.3g} frames a second, and {most.name} to "
        f"{best:.3g}"
    )
    share = 1 - got / best
    fact = line("set_back", f"its answers over those of {most.name}: {1 - share:.0%}", 1 - share, _SET_BACK, True)
    return share, stream, says, fact


def _lateness(stream: StreamAccount, streams: Sequence[StreamAccount]) -> _Found | None:
    """Return how late a stream is; None where it is not, or where nothing tells."""
    ages = [one.age_p50_seconds for one in streams if one is not stream and one.age_p50_seconds is not None]
    own, usual = stream.age_p50_seconds, statistics.median(ages) if ages else None
    if own is None or usual is None or own < _OLDER * usual or own < usual + _OLDER_SECONDS:
        return None
    says = f"answers of {stream.name} are {format_duration(own)} old, and those of the others {format_duration(usual)}"
    fact = line(
        "age", f"median age of its answers over that of the others: x{own / usual:.1f}", own / usual, _OLDER, True
    )
    return 1 - usual / own, stream, says, fact


def _watch(facts: Facts, why: str) -> Advice:
    """Return the command that shows the streams as they come; none where the run was begun from code."""
    info = facts.info
    command = shlex.join(["headrace", "run", *again(info), *_PAGE]) if is_address(info.pipeline) else ""
    return Advice(says=f"{why} (--live-page)", command=command)

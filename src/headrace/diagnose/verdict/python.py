"""What Python itself costs: the GIL, locks of the program, the cyclic garbage collector."""

from __future__ import annotations

import math
from collections.abc import Iterator

from headrace.base.units import format_duration
from headrace.diagnose.verdict.facts import MUCH_GIL_WAIT, Facts, StageView
from headrace.diagnose.verdict.proposal import WORTH_NAMING, Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import EvidenceLine, VerdictClass
from headrace.runs.formats.prediction import Change
from headrace.runs.rerun_command import profile_again

#: Cores beyond which a run is not held back by one lock that all its work needs.
_ONE_CORE = 1.4
#: Times the length of a profile beyond which a longer one is not advised.
_MOST_TIMES = 20
_LOCK_WAIT = 0.25
#: Of what the holder of the GIL computes: then the collector is named before the GIL.
_COLLECTS_MUCH = 0.3
#: Of what a stage gains by being faster, from which on more of the cores or the GIL counts as what it lacks.
_LIMITS = 0.5
#: Cores to leave idle before a lock, not the cores, is what limits.
_CORES_FREE = 0.9


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose for stages that wait within the process, and for the collector."""
    for view in facts.stages:
        yield from _gil(facts, view)
        yield from _lock(facts, view)
    yield from _gc(facts)


def _gil(facts: Facts, view: StageView) -> Iterator[Proposal]:
    waits = view.waits("gil")
    if waits is None or view.account.executor == "process" or facts.cores <= 1:
        return  # on one core who waits for the GIL would wait for that core instead
    waits += _behind_gil(facts, view)
    if waits < MUCH_GIL_WAIT:
        return
    holder = facts.gil_holder or _guess_holder(facts, view)
    seen = _find_seen_holder(facts, holder)
    own = facts.own_cores
    used = line(
        "own_cores",
        f"the run used {own:.2f} of {facts.cores:g} cores" if own is not None else "cores used: not measured",
        own,
        _ONE_CORE,
        own is not None and own <= max(_ONE_CORE, 0.75 * facts.cores),
    )
    wanted = max(2, min(holder.workers, int(facts.cores)))
    # Encoding results cannot leave this process: what helps is less to encode.
    verdict = VerdictClass.SERIALIZATION if holder.work in ("deliver", "callback") else VerdictClass.GIL
    yield Proposal(
        verdict=verdict,
        stage=holder.name,
        cause="gil" if verdict is VerdictClass.SERIALIZATION else "",
        says=(
            f"{view.name} spends {waits:.0%} of its {format_duration(view.service)} per item waiting for Python's global "
            f"interpreter lock, which one thread holds at a time; {holder.name} needs it most{_name_others(facts, holder)}"
        ),
        rule=f"at least {MUCH_GIL_WAIT:.0%} of the service waiting for the GIL, by samples of its threads",
        resources=_find_resources(facts, view, holder, seen),
        share=waits,
        evidence=(
            at_least("gil_wait", f"share of {view.name}'s service waiting for the GIL", waits, MUCH_GIL_WAIT),
            used,
            line("samples", f"from {view.samples:,} samples of blocked threads", float(view.samples), 10, None),
            *_describe_holder(facts, seen),
        ),
        advice=(
            *_by_looking_longer(facts),
            *_by_nms(holder),
            *_in_processes(facts, holder, wanted),
            Advice(
                says=(
                    f"hand {holder.name} smaller results, as NumPy arrays rather than lists: encoding them holds the GIL"
                    if holder.work == "deliver"
                    else f"let {holder.name} do more in each call of NumPy or OpenCV, which let go of the GIL, and less in "
                    "Python between them; more threads gain nothing"
                )
            ),
        ),
        removal=Change(speedups={holder.name: 4.0}),
        is_lesser=_collects_much(facts, holder) or _needs_itself_more(facts, view, holder, seen),
    )


def _needs_itself_more(facts: Facts, waiting: StageView, holder: StageView, seen: StageView | None) -> bool:
    """Return whether a stage that waits for the GIL needs its time for its own work rather than for waiting.

    That it waits for a core as long says so, too: but not where the holder, seen to be one, gains more by being faster. Who
    gets the GIL often finds the core taken on which it is woken, also where another is free.
    """
    if waiting is holder or (waiting.cpu_share or 0.0) + (waiting.delay_share or 0.0) < (waiting.waits("gil") or 0.0):
        return False
    return seen is None or (facts.gain(*seen.resources) or 1.0) < (facts.gain(*waiting.resources) or 1.0)


def _behind_gil(facts: Facts, view: StageView) -> float:
    """Return the share of a stage's service at a lock whose holder, another of its workers, waits for the GIL meanwhile."""
    return facts.lock_wait_while(view, "gil", by_own=True)


def _by_looking_longer(facts: Facts) -> Iterator[Advice]:
    """Yield what tells who holds the GIL where so many looks do not: more of them, not an experiment that delays stages."""
    found = facts.gil_holders
    times = None if found is None else found.times_to_tell
    if found is None or times is None:
        return
    again = profile_again(facts.info, "-o", f"{facts.evidence.run.path}-again", longer=True)
    yield Advice(
        says=f"to know whether {' or '.join(found.alike[:2])} holds it longer: {_say_longer(times)}", command=again
    )


def _say_longer(times: float) -> str:
    """Return how much longer a profile has to be; not by what factor where that is hopeless, as two that are equal stay so."""
    if times > _MOST_TIMES:
        return f"they are too near for {_MOST_TIMES} times as long a profile, so mend either"
    return f"profile about {max(2, math.ceil(times))} times as long"


def _by_nms(holder: StageView) -> Iterator[Advice]:
    if holder.work == "postprocess":
        yield Advice(says="if it suppresses overlapping boxes: `hr.nms` does so in C++, without the GIL")


def _in_processes(facts: Facts, holder: StageView, workers: int) -> Iterator[Advice]:
    """Yield the advice to use processes where the runtime allows it: not where a worker delivers, cuts or joins."""
    station = holder.account.station
    roles = {stage.role for stage in facts.evidence.stages if stage.station == station}
    if roles == {"map"}:
        settings = (f"{station}.executor=process", f"{station}.workers={workers}")
        yield Advice(says=f"run {holder.name} in processes, which have a GIL each", settings=settings)


def _find_seen_holder(facts: Facts, named: StageView) -> StageView | None:
    """Return the stage that is named if samples show it to hold the GIL in most moments in which others wait; else None."""
    found = facts.gil_holders
    return None if found is None or found.most is None or found.most[0] != named.name else named


def _find_resources(facts: Facts, waiting: StageView, holder: StageView, seen: StageView | None) -> tuple[str, ...]:
    """Return what gains if the GIL is held for less time: it itself, and who waits for it, made faster.

    Not who waits and holds it as often as the one that is named: what that gains by less work of its own is not the other's.
    """
    if seen is not None and not _is_simulated_so(facts, seen):
        return seen.resources
    if seen is None and _holds_as_often(facts, waiting, holder):
        return ("gil", *holder.resources)
    return ("gil", *waiting.resources, *(seen.resources if seen is not None else ()))


def _holds_as_often(facts: Facts, waiting: StageView, holder: StageView) -> bool:
    """Return whether another stage than the holder was seen with the GIL at least as often."""
    shares = {} if facts.gil_holders is None else facts.gil_holders.shares
    return waiting is not holder and shares.get(waiting.name, 0.0) >= shares.get(holder.name, 1.0)


def _is_simulated_so(facts: Facts, holder: StageView) -> bool:
    """Return whether the simulated GIL is held mostly by this stage: else what more of that GIL gives is not its gain."""
    shares = facts.replay.holds_gil
    held = {one.name: one.cpu_seconds * shares.get(one.name, 0.0) for one in facts.stages}
    return held[holder.name] >= 0.5 * sum(held.values())


def _describe_holder(facts: Facts, seen: StageView | None) -> Iterator[EvidenceLine]:
    found = facts.gil_holders
    if seen is not None and found is not None and found.most is not None:
        share = found.most[1]
        says = (
            f"{seen.name} held it in {share:.0%} of {found.num_moments:,} moments in which a thread waited for it, by who was "
            "at work then"
        )
        if found.errors is not None:
            says = found.describe(seen.name)
        yield line("gil_holder", says, share, None, True)


def _name_others(facts: Facts, holder: StageView) -> str:
    """Return which stages hold the GIL about as often as the one that is named, in words; empty if none does."""
    others = [] if facts.gil_holders is None else [one for one in facts.gil_holders.alike if one != holder.name]
    return f", and {' and '.join(others)} held it about as often" if others else ""


def _guess_holder(facts: Facts, waiting: StageView) -> StageView:
    """Return the stage that needs the GIL most: the most CPU among stages of threads that wait for it or hold on to it."""
    wanting = [
        view
        for view in facts.stages
        if view.account.executor != "process" and (not view.releases_gil or (view.waits("gil") or 0.0) >= MUCH_GIL_WAIT)
    ]
    return max(wanting, key=lambda view: view.cpu_seconds, default=waiting)


def _lock(facts: Facts, view: StageView) -> Iterator[Proposal]:
    waits = view.waits("lock")
    if waits is None or view.workers < 2 or view.work == "model":
        return
    if facts.do_native_threads_fight or facts.waits_in_library(view):
        return  # a library's calls, or its threads, wait for one another at its locks: OVERSUBSCRIPTION says so
    waits -= facts.lock_wait_while(view, "output", "disk")  # which LOGGING explains
    waits -= _behind_gil(facts, view)
    if waits < _LOCK_WAIT:
        return
    busy = facts.core_utilization
    yield Proposal(
        verdict=VerdictClass.LOCK,
        stage=view.name,
        says=(
            f"the {view.workers} workers of {view.name} spend {waits:.0%} of its {format_duration(view.service)} per item "
            "waiting for a lock that is not the GIL: they take turns"
        ),
        rule=f"at least {_LOCK_WAIT:.0%} of the service of a stage with several workers waiting for a lock",
        resources=view.resources,
        share=waits,
        evidence=(
            at_least("lock_wait", f"share of {view.name}'s service waiting for a lock", waits, _LOCK_WAIT),
            line(
                "cores_free",
                f"cores at work: {busy:.0%}" if busy is not None else "cores at work: not measured",
                busy,
                _CORES_FREE,
                busy is not None and busy < _CORES_FREE,
            ),
            line("samples", f"from {view.samples:,} samples of blocked threads", float(view.samples), 10, None),
        ),
        advice=(
            Advice(
                says=f"hold the lock in {view.name} for less of the work, or give each worker what it guards",
                change=Change(speedups={view.name: 1 / max(0.05, 1 - waits)}),
            ),
            Advice(
                says="or use one worker: the others only wait in line", settings=(f"{view.account.station}.workers=1",)
            ),
        ),
        removal=Change(speedups={view.name: 4.0}),
    )


def _collecting(facts: Facts, view: StageView) -> float:
    """Return the share of the time in which threads of a stage's workers collect garbage; 0 where that was not sampled."""
    return facts.machine.get(f"stage:{view.account.station}.gc_seconds_share", 0.0)


def _collects_much(facts: Facts, view: StageView) -> bool:
    """Return whether a good part of what a stage's workers compute, and hold the GIL for, is the collector."""
    if _collected(facts) < WORTH_NAMING:
        return False
    worked = sum(one.cpu_seconds for one in facts.stages if one.account.station == view.account.station)
    return _collecting(facts, view) * facts.document.elapsed_seconds >= _COLLECTS_MUCH * worked > 0


def _collected(facts: Facts) -> float:
    """Return the collector's share of what the stages computed; 0 where it was not measured."""
    share_of_time = facts.machine.get("run.gc_seconds_share", 0.0)
    # The collector holds the GIL: while it runs, one core works and no other Python does.
    worked = sum(view.cpu_seconds for view in facts.stages)
    elapsed = max(facts.document.elapsed_seconds, 1e-9)
    return share_of_time / max(min(1.0, worked / elapsed), share_of_time, 1e-9)


def _gc(facts: Facts) -> Iterator[Proposal]:
    share = _collected(facts)
    if share < WORTH_NAMING:
        return
    share_of_time = facts.machine["run.gc_seconds_share"]
    # Threads of which stage collect was sampled; of older recordings it is guessed, by who computes most.
    most = max(facts.stages, key=lambda view: (_collecting(facts, view), view.cpu_seconds))
    where = f", most of it in {most.name}" if _collecting(facts, most) >= share_of_time / 2 else ""
    collecting = (_collecting(facts, most) or share_of_time) * facts.document.elapsed_seconds
    of_its_time = collecting / max(_find_sped_up_seconds(facts, most), 1e-9)
    gone = Change(speedups={most.name: 1 / max(0.05, 1 - of_its_time)})
    yield Proposal(
        verdict=VerdictClass.GC,
        stage=most.name,
        says=(
            f"Python's cyclic garbage collector ran {share_of_time:.0%} of the time, holding the GIL: {share:.0%} of what the "
            f"stages computed{where}"
        ),
        rule=f"at least {WORTH_NAMING:.0%} of the stages' computing is the collector",
        resources=("cores", "gil", *most.resources),
        share=share,
        evidence=(
            at_least("gc", "share of the stages' computing that is the collector", share, WORTH_NAMING),
            line("gc_time", f"the collector ran {share_of_time:.1%} of the time", share_of_time, None, True),
        ),
        advice=(
            Advice(
                says="do not call gc.collect() per item; raise gc.set_threshold, or gc.freeze() after loading",
                change=gone,
            ),
            Advice(says="or make no reference cycles: it is they that the collector looks for"),
        ),
        removal=gone,
        is_seen=True,
    )


def _find_sped_up_seconds(facts: Facts, view: StageView) -> float:
    """Return the seconds of a stage that a speed-up shortens and that limit the run.

    Where cores or the GIL limit, what it computes. Else its workers do, whose waiting outside would be shortened as well:
    less computing must not count as less of that.
    """
    shared, own = (facts.gain(*names) or 1.0 for names in (("cores", "gil"), view.resources))
    if shared - 1 >= _LIMITS * (own - 1):
        return view.cpu_seconds
    others = (view.waits("gil") or 0.0) + (view.delay_share or 0.0)
    return max(view.cpu_seconds, (view.account.busy_seconds or 0.0) * (1 - others))

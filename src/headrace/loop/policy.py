"""Which step of a loop comes next, or why it ends. No clock, no measuring: a function of the steps so far.

profile, diagnose; then what is predicted to gain most of what was not tried yet for this Plan: tune first, since it costs no
accuracy, then optimize. What is found is profiled again, and so on, until the goals are met or nothing is left to gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.base.units import format_duration
from headrace.runs.formats.diagnosis import VerdictClass
from headrace.runs.formats.loop import LoopAsked, LoopStep, StepKind, Stop

#: About how long each step takes before it is known, in seconds; those that measure blocks take what those take.
_USUAL_SECONDS: dict[StepKind, float] = {"profile": 12.0, "diagnose": 10.0, "validate": 30.0, "optimize": 300.0}
#: What a search finds is worth nothing until it was looked at and proved.
_SEARCHES: tuple[StepKind, ...] = ("tune", "optimize")
_AFTER_SEARCH: tuple[StepKind, ...] = ("profile", "diagnose", "compare")
#: A search for a variant with less than this share of its usual time finds nothing.
_LEAST_OF_OPTIMIZE = 0.5
#: Of a search for a Plan: short runs that tell what batches and threads cost, and predicting.
_PREDICT_SECONDS = 13.0
#: Blocks are judged after so many pairs; what tells the rate of each side before takes as long as so many blocks.
PAIRS, _PILOTS = 8, 4
#: A block of the slower side lasts at most so many times that of the faster.
_MOST_UNEVEN = 4.0
#: The last comparison goes on for so long if it is not sure.
COMPARE_SECONDS = 60.0
#: A diagnosis takes no new run: that of a profile is always made. Answers that may have changed are looked at, or taken back.
_ALWAYS: tuple[StepKind | None, ...] = (None, "diagnose")
#: What a diagnosis may say of a run that was too short or too disturbed: one more run may tell.
_DOUBTFUL = (VerdictClass.UNTRUSTED, VerdictClass.INCONCLUSIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What to do."""

    kind: StepKind | None
    """None: to end."""
    why: str
    stop: Stop = ""
    """Of an end."""
    keep: tuple[str, ...] = ()
    """Of a tuning: settings that stay as they are."""
    seconds: float | None = None
    """What the step may take, so that what must follow it can still be done; None: no limit."""


def choose_next(asked: LoopAsked, steps: Sequence[LoopStep], left_seconds: float | None) -> Next:
    """Return what to do.

    Args:
        asked: What was asked for.
        steps: All steps so far, in order.
        left_seconds: Of the budget; None without one.
    """
    known = [one for one in steps if one.outcome != "out of time"]
    chosen = _choose(asked, known)
    if chosen.kind in _ALWAYS or left_seconds is None:
        return chosen
    assert chosen.kind is not None
    after = _list_after(chosen, known)
    least = find_least(asked, chosen.kind, known)
    gain = _find_predicted(known) if chosen.kind == "tune" else 1.0
    reserve = sum(expect_seconds(asked, kind, known, gain) for kind in after)
    if left_seconds < least + reserve and chosen.kind != "validate":
        then = f", and what must follow ({', '.join(after)}) {format_duration(reserve)}" if after else ""
        return Next(
            kind=None,
            stop="budget",
            why=f"the budget does not suffice for {'another' if steps else 'a'} step: {chosen.kind} takes at least "
            f"{format_duration(least)}{then}; {format_duration(max(0.0, left_seconds))} are left",
        )
    return replace(chosen, seconds=max(0.0, left_seconds - reserve))


def choose_proof(asked: LoopAsked, steps: Sequence[LoopStep], left_seconds: float | None) -> Next:
    """Return the last step, which measures the last Plan against the first; or why it is not taken."""
    least = find_least(asked, "compare", steps)
    if left_seconds is not None and left_seconds < least:
        why = (
            f"the last Plan was not compared with the first: that takes at least {format_duration(least)}, and "
            f"{format_duration(max(0.0, left_seconds))} are left"
        )
        return Next(kind=None, stop="budget", why=why)
    return Next(kind="compare", why="to prove what was gained", seconds=left_seconds)


def expect_seconds(asked: LoopAsked, kind: StepKind, steps: Sequence[LoopStep], gain: float = 1.0) -> float:
    """Return about how long a step will take: as long as the last of its kind here, before one was taken the usual.

    A search takes what it is given, so that its last says nothing.

    Args:
        asked: What was asked for.
        kind: Of the step.
        steps: All so far.
        gain: Of the last comparison: how many times as fast the Plan may yet become.
    """
    known = [one.seconds for one in steps if one.kind == kind and kind not in _SEARCHES]
    if known:
        return known[-1]
    if kind == "tune":
        return 2 * find_least(asked, kind, steps)
    if kind == "compare":  # mostly it is sure at the first look; if not it goes on to the second, as long as it may
        first = _take_pairs(asked, steps, gain * _find_gained(steps))
        return min(2 * first, max(first, COMPARE_SECONDS))
    return _USUAL_SECONDS[kind]


def find_least(asked: LoopAsked, kind: StepKind, steps: Sequence[LoopStep]) -> float:
    """Return the least time in which a step tells anything: of one that measures, what its first look takes."""
    if kind == "compare":
        return _take_pairs(asked, steps, _find_gained(steps))
    if kind == "tune":
        blocks = _take_pairs(asked, steps, _find_predicted(steps))
        return expect_seconds(asked, "profile", steps) + _PREDICT_SECONDS + blocks
    if kind == "optimize":  # what it finds is compared end to end by itself, after its own budget
        return _LEAST_OF_OPTIMIZE * _USUAL_SECONDS[kind] + expect_seconds(asked, "compare", steps)
    return expect_seconds(asked, kind, steps)


def _take_pairs(asked: LoopAsked, steps: Sequence[LoopStep], ratio: float) -> float:
    """Return how long blocks of two Plans take until they are looked at, one so many times as fast as the other."""
    measured = [one.block_seconds for one in steps if one.block_seconds is not None]
    block = measured[-1] if measured else asked.block_seconds
    uneven = min(_MOST_UNEVEN, max(ratio, 1 / ratio))
    return (PAIRS * (1 + uneven) + _PILOTS) * block


def _find_predicted(steps: Sequence[LoopStep]) -> float:
    """Return how many times as fast the last diagnosis predicts the Plan to become; 1 where it predicts nothing."""
    return next((one.plan_gain or 1.0 for one in reversed(steps) if one.kind == "diagnose"), 1.0)


def _find_gained(steps: Sequence[LoopStep]) -> float:
    """Return how many times as fast the last Plan is as the first, by what the steps measured."""
    return math.prod(one.ratio.mid for one in steps if one.outcome == "better" and one.ratio and one.ratio.mid > 0)


def _list_after(chosen: Next, steps: Sequence[LoopStep]) -> tuple[StepKind, ...]:
    """Return the steps without which one would be in vain, or would leave what was changed unproved."""
    if chosen.kind in _SEARCHES:
        may_change_answers = chosen.kind == "tune" and not chosen.keep
        return ("validate", *_AFTER_SEARCH) if may_change_answers else _AFTER_SEARCH
    looks: tuple[StepKind, ...] = ("diagnose",) if chosen.kind == "profile" else ()
    return (*looks, "compare") if has_changed(steps) and chosen.kind != "compare" else looks


def is_unvalidated(steps: Sequence[LoopStep]) -> bool:
    """Return whether the last Plan decodes otherwise than one whose answers were looked at."""
    return bool(steps) and steps[-1].kind == "tune" and steps[-1].changes_answers


def has_changed(steps: Sequence[LoopStep]) -> bool:
    """Return whether the Plan is another one than at the beginning."""
    return bool(steps) and steps[-1].plan_after != steps[0].plan_before


def _choose(asked: LoopAsked, steps: Sequence[LoopStep]) -> Next:
    last = steps[-1] if steps else None
    if last is None:
        return Next(kind="profile", why="to see where the time goes")
    if last.kind == "profile":
        return Next(kind="diagnose", why="to see what limits it")
    if is_unvalidated(steps):
        return Next(kind="validate", why="the better Plan decodes otherwise: the answers must stay")
    if last.kind == "validate" and last.outcome == "refused":
        return Next(
            kind="tune", why="the answers changed: another Plan, which decodes as before", keep=list_kept(asked, steps)
        )
    look = next((one for one in reversed(steps) if one.kind == "diagnose"), None)
    if look is None or look.plan_before != last.plan_after:
        return Next(kind="profile", why="the Plan changed: what limits it now?")
    return _choose_change(asked, steps, look)


def _choose_change(asked: LoopAsked, steps: Sequence[LoopStep], look: LoopStep) -> Next:
    """Return what may gain something; `look` is the diagnosis of the present Plan."""
    last, looks = steps[-1], [one for one in steps if one.kind == "diagnose"]
    if look.is_met:
        return Next(kind=None, stop="goal met", why="the goals are met")
    if look.verdict == VerdictClass.FAILURES:
        return Next(kind=None, stop="jobs fail", why="jobs fail: what makes them fail comes before their speed")
    is_doubtful = look.verdict in _DOUBTFUL
    if last is look and is_doubtful and sum(one.plan_before == look.plan_before for one in looks) < 2:
        return Next(kind="profile", why=f"the diagnosis is {look.verdict}: one longer run may tell")
    tried = [one for one in steps if one.outcome != "interrupted"]  # that one is done again
    tuned = [one for one in tried if one.kind == "tune"]
    if all(one.plan_before != look.plan_before for one in tuned) and (
        not tuned or _may_gain(look.plan_gain, asked) or is_doubtful
    ):
        gain = f"x{look.plan_gain:.3g} is predicted" if look.plan_gain else "nothing was tried yet"
        return Next(kind="tune", why=f"settings of the Plan: {gain}", keep=list_kept(asked, steps))
    if (
        asked.golden
        and asked.model
        and all(one.kind != "optimize" for one in tried)
        and _may_gain(look.model_gain, asked)
    ):
        ceiling = f"x{look.model_gain:.3g} at most" if look.model_gain else "how much is not known"
        return Next(kind="optimize", why=f"a cheaper model may gain: {ceiling}")
    return Next(kind=None, stop="nothing left", why=_say_nothing_left(asked, look, steps))


def list_kept(asked: LoopAsked, steps: Sequence[LoopStep]) -> tuple[str, ...]:
    """Return the settings that a tuning leaves alone: those that change answers, where nothing can say that they do not."""
    is_refused = any(one.kind == "validate" and one.outcome == "refused" for one in steps)
    can_be_asked = bool(asked.golden) and not asked.golden.endswith((".npz", ".npy"))  # arrays are decoded already
    return () if can_be_asked and not is_refused else ("decode.scale",)


def _may_gain(ratio: float | None, asked: LoopAsked) -> bool:
    """Return whether so much is predicted that it is worth trying; what is not known is."""
    return ratio is None or ratio >= 1 + asked.least_gain


def _say_nothing_left(asked: LoopAsked, look: LoopStep, steps: Sequence[LoopStep]) -> str:
    parts = []
    if any(one.outcome == "not sure" for one in steps):
        parts.append("a search could not tell: a quieter machine, or --seconds 3s, would")
    if look.plan_gain is not None:
        parts.append(f"settings of the Plan are predicted to gain x{look.plan_gain:.3g} at most")
    if not asked.golden:
        parts.append("the model was left alone: what may change answers needs --golden and --data")
    elif look.model_gain is not None and not _may_gain(look.model_gain, asked):
        parts.append(f"a free model would gain x{look.model_gain:.3g}")
    return "; ".join(["nothing is left that is predicted to gain enough", *parts])

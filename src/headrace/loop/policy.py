"""Which step of a loop comes next, or why it ends. No clock, no measuring: a function of the steps so far.

profile, diagnose; then what is predicted to gain most of what was not tried yet for this Plan: tune first, since it costs no
accuracy, then optimize. What is found is profiled again, and so on, until the goals are met or nothing is left to gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.base.units import format_duration
from headrace.runs.formats.diagnosis import VerdictClass
from headrace.runs.formats.loop import LoopAsked, LoopStep, StepKind, Stop

#: About how long each step takes, in seconds, for `--dry-run` and to end within a budget.
USUAL_SECONDS: dict[StepKind, float] = {
    "profile": 12.0, "diagnose": 10.0, "tune": 90.0, "validate": 30.0, "optimize": 300.0, "compare": 40.0,
}  # fmt: skip
#: A search takes what it is given. What it finds is worth nothing until it was looked at and proved.
_SEARCHES: tuple[StepKind, ...] = ("tune", "optimize")
_AFTER_SEARCH: tuple[StepKind, ...] = ("profile", "diagnose", "compare")
#: A search with less than this share of its usual time finds nothing; a comparison with less tells nothing.
_LEAST_SHARE: dict[StepKind, float] = {"tune": 0.5, "optimize": 0.5, "compare": 0.5}
#: A diagnosis takes no new run: that of a profile is always made.
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
    """What a search may take, so that what it finds can still be looked at and proved, and what the last comparison may take;
    None: no limit, or another step."""


def choose_next(asked: LoopAsked, steps: Sequence[LoopStep], left_seconds: float | None) -> Next:
    """Return what to do.

    Args:
        asked: What was asked for.
        steps: All steps so far, in order.
        left_seconds: Of the budget; None without one.
    """
    chosen = _choose(asked, steps)
    if chosen.kind in _ALWAYS or left_seconds is None:
        return chosen
    assert chosen.kind is not None
    after = _list_after(chosen.kind, steps)
    least = _LEAST_SHARE.get(chosen.kind, 1.0) * expect_seconds(chosen.kind, steps)
    reserve = sum(expect_seconds(kind, steps) for kind in after)
    if left_seconds < least + reserve:
        then = f", and what must follow ({', '.join(after)}) {format_duration(reserve)}" if after else ""
        return Next(
            kind=None,
            stop="budget",
            why=f"the budget does not suffice for {'another' if steps else 'a'} step: {chosen.kind} takes at least "
            f"{format_duration(least)}{then}; {format_duration(max(0.0, left_seconds))} are left",
        )
    return replace(chosen, seconds=left_seconds - reserve) if chosen.kind in _SEARCHES else chosen


def choose_proof(steps: Sequence[LoopStep], left_seconds: float | None) -> Next:
    """Return the last step, which measures the last Plan against the first; or why it is not taken."""
    least = _LEAST_SHARE["compare"] * expect_seconds("compare", steps)
    if left_seconds is not None and left_seconds < least:
        why = (
            f"the last Plan was not compared with the first: that takes at least {format_duration(least)}, and "
            f"{format_duration(max(0.0, left_seconds))} are left"
        )
        return Next(kind=None, stop="budget", why=why)
    return Next(kind="compare", why="to prove what was gained", seconds=left_seconds)


def expect_seconds(kind: StepKind, steps: Sequence[LoopStep]) -> float:
    """Return about how long a step will take: as long as the last of its kind here, before one was taken the usual.

    A search takes what it is given, so that its last says nothing.
    """
    known = [one.seconds for one in steps if one.kind == kind and kind not in _SEARCHES]
    return known[-1] if known else USUAL_SECONDS[kind]


def _list_after(kind: StepKind, steps: Sequence[LoopStep]) -> tuple[StepKind, ...]:
    """Return the steps without which one would be in vain, or would leave what was changed unproved."""
    if kind in _SEARCHES:
        return _AFTER_SEARCH
    looks: tuple[StepKind, ...] = ("diagnose",) if kind == "profile" else ()
    return (*looks, "compare") if has_changed(steps) and kind != "compare" else looks


def has_changed(steps: Sequence[LoopStep]) -> bool:
    """Return whether the Plan is another one than at the beginning."""
    return bool(steps) and steps[-1].plan_after != steps[0].plan_before


def _choose(asked: LoopAsked, steps: Sequence[LoopStep]) -> Next:
    last = steps[-1] if steps else None
    if last is None:
        return Next(kind="profile", why="to see where the time goes")
    if last.kind == "profile":
        return Next(kind="diagnose", why="to see what limits it")
    if last.kind == "tune" and last.changes_answers:
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

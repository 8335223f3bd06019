"""What all cases come to: which verdicts were right, which refusals justified, and how far off predictions were.

What is right is measured. A fault counts if taking it away gained a tenth; where the gain is not clear, the case is counted as
such and not scored. Where a diagnosis names another stage, that stage was halved: if this gained as much as the fault's
removal, or as half of it where the fault is more work, the diagnosis is right, and the fault was not what held up the pipeline.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from benchmarks.truth.effort import effort_in_words, summarize_effort
from benchmarks.truth.rows import HAS_ROOM, KNOWN_WELL, WORTH_FINDING, Frozen, Named, Row, Truth
from benchmarks.verdicts_required import UNDECIDED, Required
from headrace.ledger.track_record import SIGN_BAND

#: Classes that a starved pipeline is right to be called.
WELL = ("HEALTHY", "ARRIVAL_LIMITED", "STARVED")
_ALMOST = 0.97

Outcome = Literal["right", "second", "wrong", "undecided", "alarm", "not scored"]
#: Why a case says nothing of the diagnosis.
Reason = Literal["", "not run", "disturbed", "no room", "not clear", "harmless"]


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """One case with its judgement."""

    row: Row
    required: tuple[str, ...]
    """What was right to say: of each fault that counts, or of a healthy pipeline."""
    outcome: Outcome
    both: bool | None = None
    """Both of two faults among the first three findings; None: there are not two that count."""
    justified: bool | None = None
    """Of a refusal to decide; None: it decided."""
    why: str = ""
    """Why it is not scored."""
    reason: Reason = ""
    """The same as a word."""


def score(row: Row) -> Scored:
    """Return the judgement of one case, by today's rules of what is right."""
    case = row.case
    reason, why = _why_not(row)
    if reason:
        justified = True if _is_undecided(row) and not row.problem else None
        return Scored(row=row, required=(), outcome="not scored", why=why, reason=reason, justified=justified)
    if not case.planted:
        return _score_healthy(row)
    counting = [one for number, one in enumerate(case.planted) if _counts(row, number)]
    required = [one.required(case.spec) for one in counting]
    outcome = _outcome(row, required)
    return Scored(
        row=row,
        required=tuple(map(str, required)),
        outcome=outcome,
        both=_names_both(row, required) if len(required) == 2 else None,
        justified=False if outcome == "undecided" else None,
    )


def _why_not(row: Row) -> tuple[Reason, str]:
    """Return why a case says nothing of the diagnosis; empty if it does."""
    if row.problem:
        return "not run", row.problem
    if row.pilots and not row.rounds and not row.truths:
        shown = ", ".join("not measured" if gain is None else f"x{gain:.2f}" for gain in row.pilots[-1].gains)
        return ("harmless" if row.case.planted else "no room"), f"the last pilot showed too little: {shown}"
    if row.is_disturbed:
        return "disturbed", f"others took {row.rivals:.2f} cores"
    if not row.case.planted:
        gain = row.truths.get("arrivals")
        has_room = gain is not None and gain.low >= HAS_ROOM
        return ("", "") if has_room else ("no room", f"it may not have been starved: {_gain(gain)}")
    gains = [row.truths.get(f"cure {number}") for number in range(len(row.case.planted))]
    if any(gain is not None and gain.is_gain for gain in gains):
        return "", ""
    measured = ", ".join(map(_gain, gains))
    if any(gain is None or gain.is_gain is None for gain in gains):
        return "not clear", f"the truth is not clear: {measured}"
    return "harmless", f"the fault costs too little: {measured}"


def _gain(gain: Truth | None) -> str:
    return "not measured" if gain is None else f"x{gain.ratio:.2f} [{gain.low:.2f}-{gain.high:.2f}]"


def _counts(row: Row, number: int) -> bool:
    gain = row.truths.get(f"cure {number}")
    return gain is not None and gain.is_gain is True


def _is_undecided(row: Row) -> bool:
    return row.said.first is not None and row.said.first.verdict in UNDECIDED


def _score_healthy(row: Row) -> Scored:
    if _is_undecided(row):
        return Scored(row=row, required=WELL, outcome="undecided", justified=False)
    right = row.said.first is not None and row.said.first.verdict in WELL
    return Scored(row=row, required=WELL, outcome="right" if right else "alarm")


def _outcome(row: Row, required: Sequence[Required]) -> Outcome:
    if not row.said.two:
        return "wrong"
    first, *rest = row.said.two
    if any(names(one, first) for one in required) or _is_right_by_measurement(row, first):
        return "right"
    if any(names(one, finding) for one in required for finding in rest):
        return "second"
    return "undecided" if _is_undecided(row) else "wrong"


def names(required: Required, finding: Named) -> bool:
    """Return whether a finding says what is required; a TIE does if it names the stage."""
    if finding.verdict == "TIE":
        return any(stage in finding.says.split() for stage in required.stages)
    return (
        finding.verdict in required.verdicts
        and (not required.stages or finding.stage is None or finding.stage in required.stages)
        and (not required.causes or finding.cause in required.causes)
    )


def _is_right_by_measurement(row: Row, first: Named) -> bool:
    """Return whether halving the blamed stage gained as much as any of the faults: halved as well, or else cured."""
    gain = row.truths.get(f"halved {first.stage}")
    planted = [
        row.truths.get(f"halved {one.stage}") or row.truths.get(f"cure {number}")
        for number, one in enumerate(row.case.planted)
    ]
    most = max((truth.ratio for truth in planted if truth is not None), default=math.inf)
    return gain is not None and gain.is_gain is True and gain.ratio >= _ALMOST * most


def _names_both(row: Row, required: Sequence[Required]) -> bool:
    return all(any(names(one, finding) for finding in row.said.three) for one in required)


# --- what-if


def predictions_of(row: Row) -> list[tuple[Frozen, Truth | None]]:
    """Return each prediction with what was measured; None: it was refused, or gave too few results."""
    return [(one, row.truths.get(f"change {number}")) for number, one in enumerate(row.predictions)]


def errors(pairs: Iterable[tuple[Frozen, Truth | None]]) -> dict[str, Any]:
    """Return how far off predictions were.

    Returns:
        `changes` (predicted and measured), `refused`, `mean`, `p90` (nearest rank) and `max` of |predicted / measured - 1|;
        `coverage`: the share whose predicted interval holds the measured point; `overlap`: whose predicted and measured
        intervals meet; `sign_right`: on the right side of 1, of those surely more than 5 % away from it. None where there
        are none.
    """
    pairs = list(pairs)
    known = [(one.predicted, truth) for one, truth in pairs if one.predicted is not None and truth is not None]
    found = sorted(abs(ours.mid / truth.ratio - 1) for ours, truth in known)
    signed = [
        (ours, truth) for ours, truth in known if abs(truth.ratio - 1) > SIGN_BAND and not truth.low <= 1 <= truth.high
    ]
    return {
        "changes": len(known),
        "refused": sum(one.predicted is None for one, _ in pairs),
        "mean": statistics.fmean(found) if found else None,
        "p90": found[math.ceil(0.9 * len(found)) - 1] if found else None,
        "max": found[-1] if found else None,
        "coverage": share(ours.low <= truth.ratio <= ours.high for ours, truth in known),
        "overlap": share(ours.low <= truth.high and truth.low <= ours.high for ours, truth in known),
        "sign_right": share((ours.mid - 1) * (truth.ratio - 1) > 0 for ours, truth in signed),
        "n_signed": len(signed),
    }


def share(values: Iterable[bool]) -> float | None:
    """Return the share that is true; None of none."""
    flags = list(values)
    return sum(flags) / len(flags) if flags else None


# --- all of it


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the benchmark's object."""
    scored = [score(row) for row in rows]
    faulty = [one for one in scored if one.row.faults and one.outcome != "not scored"]
    healthy = [one for one in scored if not one.row.faults and one.outcome != "not scored"]
    refusals = [one for one in scored if one.justified is not None]
    clear = [row for row in rows if not row.problem and not row.is_disturbed]
    return {
        "cases": len(rows),
        "scored": len(faulty),
        "top1": share(one.outcome == "right" for one in faulty),
        "top2": share(one.outcome in ("right", "second") for one in faulty),
        "two_faults": sum(one.both is not None for one in faulty),
        "both_of_two": share(one.both for one in faulty if one.both is not None),
        "healthy": len(healthy),
        "healthy_false": sum(one.outcome == "alarm" for one in healthy),
        "healthy_undecided": sum(one.outcome == "undecided" for one in healthy),
        "refusals": len(refusals),
        "refusals_justified": sum(one.justified is True for one in refusals),
        "not_scored": sum(one.outcome == "not scored" for one in scored),
        "not_scored_by_reason": dict(Counter(one.reason for one in scored if one.reason)),
        "effort": summarize_effort(rows),
        "whatif": errors(pair for row in clear for pair in predictions_of(row)),
        "whatif_known_well": errors(
            (one, truth)
            for row in clear
            for one, truth in predictions_of(row)
            if truth is not None and truth.is_known_well
        ),
        "whatif_by_kind": _by_kind(clear),
        "with_experiment": _with_experiment(rows),
        "seeds": [row.seed for row in rows],
        "rows": [msgspec.to_builtins(row) for row in rows],
    }


def _with_experiment(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return the same figures of what is said and predicted after experiments; None if none were made."""
    again = [
        msgspec.structs.replace(row, said=row.experimented.said, predictions=row.experimented.predictions)
        for row in rows
        if row.experimented is not None
    ]
    if not again:
        return None
    scored = [one for one in map(score, again) if one.row.faults and one.outcome != "not scored"]
    whatif = errors(pair for row in again if not row.is_disturbed for pair in predictions_of(row))
    return {
        "cases": len(again),
        "top1": share(one.outcome == "right" for one in scored),
        "top2": share(one.outcome in ("right", "second") for one in scored),
        "whatif_mean": whatif["mean"],
        "coverage": whatif["coverage"],
    }


def _by_kind(rows: Sequence[Row]) -> dict[str, Any]:
    pairs = [pair for row in rows for pair in predictions_of(row)]
    return {
        kind: errors(pair for pair in pairs if pair[0].kind == kind) for kind in sorted({one.kind for one, _ in pairs})
    }


# --- telling


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result for readers, from `summarize`'s object."""
    rows = [msgspec.convert(row, Row) for row in result["rows"]]
    scored = [score(row) for row in rows]
    wrong = [one for one in scored if one.outcome in ("wrong", "second", "undecided", "alarm")]
    lines = ["# Whether headrace is right about pipelines that nobody has seen", "", *_headline(result), ""]
    lines += ["| kind of fault | scored | right first | in the first two |", "|---|---|---|---|", *_kinds(scored), ""]
    lines += ["| change | predicted and measured | mean error | 90 % within | largest | within the interval |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [
        f"| {kind} | {_cells(one)} |"
        for kind, one in (
            ("all", result["whatif"]),
            (f"all whose measured interval spans less than x{KNOWN_WELL}", result["whatif_known_well"]),
            *result["whatif_by_kind"].items(),
        )
    ]
    lines += ["", "## Verdicts that were not right", ""]
    for one in wrong:
        lines += [*_told(one), ""]
    lines += ["## Predictions that were far off", "", *_far_off(rows), ""]
    lines += [
        "## Not scored",
        "",
        *(f"* seed {one.row.seed}, {_what(one.row)}: {one.why}" for one in scored if one.why),
    ]
    return "\n".join(lines)


def _headline(result: Mapping[str, Any]) -> list[str]:
    whatif = result["whatif"]
    verdicts = (
        f"{result['cases']} cases. Of {result['scored']} with a fault whose removal gained {WORTH_FINDING - 1:.0%} or more, "
        f"the verdict was right first in {percent(result['top1'])}, in the first two in {percent(result['top2'])}; of "
        f"{result['two_faults']} with two such faults both were among the first three in {percent(result['both_of_two'])}. Of "
        f"{result['healthy']} starved healthy pipelines {result['healthy_false']} were called faulty, "
        f"{result['healthy_undecided']} undecided. {result['refusals_justified']} of {result['refusals']} refusals to decide "
        "were justified: no single cause gained so much, or the machine was disturbed."
    )
    predictions = (
        f"{whatif['changes']} predicted changes: mean error {percent(whatif['mean'])}, 90 % within "
        f"{percent(whatif['p90'])}, largest {percent(whatif['max'])}; {percent(whatif['coverage'])} of the measured ratios lie "
        f"within the interval that nine in ten should keep to ({percent(whatif['overlap'])} of the intervals meet); "
        f"{percent(whatif['sign_right'])} of {whatif['n_signed']} on the right side of 1; {whatif['refused']} refused."
    )
    effort = effort_in_words(result["effort"], result["not_scored_by_reason"])
    return [verdicts, "", predictions, *_experiments_in_words(result["with_experiment"]), *effort]


def _experiments_in_words(again: Mapping[str, Any] | None) -> list[str]:
    if again is None:
        return []
    text = (
        f"After experiments with {again['cases']} of the running pipelines: right first in {percent(again['top1'])}, in the "
        f"first two in {percent(again['top2'])}; mean error of predictions {percent(again['whatif_mean'])}, "
        f"{percent(again['coverage'])} within the interval."
    )
    return ["", text]


def _kinds(scored: Sequence[Scored]) -> Iterable[str]:
    found: dict[str, list[Scored]] = {}
    for one in scored:
        if one.outcome != "not scored":
            for kind in [fault.split()[0] for fault in one.row.faults] or ["healthy"]:
                found.setdefault(kind if len(one.row.faults) < 2 else "two faults", []).append(one)
    for kind, ones in sorted(found.items()):
        unique = list({one.row.seed: one for one in ones}.values())
        first = percent(share(one.outcome == "right" for one in unique))
        yield f"| {kind} | {len(unique)} | {first} | {percent(share(one.outcome in ('right', 'second') for one in unique))} |"


def _what(row: Row) -> str:
    return " + ".join(row.faults) or "healthy"


def _told(one: Scored) -> list[str]:
    """Return a wrong verdict with its evidence against the truth."""
    row = one.row
    lines = [f"### Seed {row.seed}: {_what(row)} ({one.outcome})", ""]
    lines += [f"Required: {' and '.join(one.required)}. {_known(row)}"]
    if row.said.problem:
        lines += ["", f"No diagnosis: {row.said.problem}"]
    for place, finding in zip(("first", "second", "next"), (*row.said.two, row.said.next_bottleneck), strict=False):
        if finding is not None:
            gain = "" if finding.gain is None else f", gain x{finding.gain:.2f}"
            where = f" at {finding.stage}" if finding.stage else ""
            cause = f" ({finding.cause})" if finding.cause else ""
            lines += [f"* {place}: **{finding.verdict}**{cause}{where} ({finding.confidence}{gain}): {finding.says}"]
            lines += [f"    * {line}" for line in finding.evidence]
    return lines


def _known(row: Row) -> str:
    gains = [
        f"{_in_words(name, row)} {_gain(truth)}" for name, truth in row.truths.items() if not name.startswith("change")
    ]
    return f"Measured: {', '.join(gains)}; {row.throughput or 0:.4g}/s; others {row.rivals:.2f} cores."


def _in_words(name: str, row: Row) -> str:
    word, _, number = name.partition(" ")
    return f"without {row.faults[int(number)]}" if word == "cure" and number.isdigit() else name


def _far_off(rows: Sequence[Row]) -> Iterable[str]:
    pairs = [
        (abs(one.predicted.mid / truth.ratio - 1), row, one, truth)
        for row in rows
        if not row.problem
        for one, truth in predictions_of(row)
        if one.predicted is not None and truth is not None
    ]
    for error, row, one, truth in sorted(pairs, key=lambda pair: -pair[0])[: max(10, len(pairs) // 10)]:
        assert one.predicted is not None
        ours = one.predicted
        predicted = f"x{ours.mid:.2f} [{ours.low:.2f}-{ours.high:.2f}]"
        yield (
            f"* seed {row.seed} ({_what(row)}), {one.says}: predicted {predicted}, measured {_gain(truth)}: {error:.0%} off"
        )


def _cells(one: Mapping[str, Any]) -> str:
    return f"{one['changes']} | " + " | ".join(percent(one[key]) for key in ("mean", "p90", "max", "coverage"))


def percent(value: float | None) -> str:
    """Return a share for readers."""
    return "-" if value is None else f"{value:.1%}"

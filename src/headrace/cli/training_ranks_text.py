"""What ranks show side by side, for a terminal of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, wrap_lines
from headrace.base.units import format_duration

if TYPE_CHECKING:
    from headrace.runs.formats.training_ranks import RanksDocument, RanksJudged, SameData


def ranks_text(document: RanksDocument) -> list[list[str]]:
    """Return the paragraphs: what was found, a table of the ranks, and data that came twice."""
    parts = []
    if document.judged is not None:
        parts += [wrap_lines([_sentence(document.judged)]), _table(document.judged)]
    elif document.why_not:
        parts.append(wrap_lines([f"Ranks are not compared: {document.why_not}"]))
    # Some programs make a loader for each epoch; a sentence says it for all of them.
    parts += [wrap_lines([sentence]) for sentence in dict.fromkeys(map(_same, document.same_data))]
    return parts


def _sentence(judged: RanksJudged) -> str:
    straggler = judged.straggler
    if straggler is not None:
        how = "would come last on cores of its own" if straggler.had_cores else "comes last"
        where = (
            straggler.phase
            if straggler.reason == "was not measured"
            else f"{straggler.phase}, where it {straggler.reason}"
        )
        return (
            f"STRAGGLER: the others wait for rank {straggler.rank}, which {how} in {straggler.share_last:.0%} of "
            f"{judged.num_steps:,} steps, by {format_duration(straggler.lead_seconds)} ({straggler.lead_share:.0%} of the "
            f"step). It takes {format_duration(straggler.phase_seconds)} longer in {where}"
        )
    if judged.finding == "communication":
        return (
            f"COMMUNICATION: all ranks come at about the same time, and the exchange itself takes {judged.rest_share:.0%} of "
            f"the step; exchange less often (no_sync), fewer bytes, or over a faster link"
        )
    if judged.finding == "moving":
        where = "" if judged.moving_phase is None else f", most in {judged.moving_phase}"
        why = "batches cost differently, or ranks share what loads them"
        if judged.moves_with_cores:
            why = "ranks are refused a core by turns, so give them more cores or stop other programs"
        return (
            f"Ranks wait {judged.wait_share:.0%} of the step for the last one, which changes from step to step{where}: {why}; "
            "no rank is to blame"
        )
    if judged.finding == "not told apart":
        seconds = judged.uncertainty_seconds  # 0: of one host
        clocks = f" or from clocks that disagree by {format_duration(seconds)}" if seconds else ""
        return (
            f"One rank comes last in most of {judged.num_steps:,} steps, which is not told apart from chance{clocks}: record "
            "more steps"
        )
    return (
        f"Ranks are balanced: they wait {judged.wait_share:.0%} of the step for each other, and exchange for "
        f"{judged.rest_share:.0%}"
    )


def _table(judged: RanksJudged) -> list[str]:
    rows = [
        (
            str(one.rank),
            format_duration(one.own_seconds),
            format_duration(one.wait_seconds),
            format_duration(one.rest_seconds),
            f"{one.share_last:.0%}",
        )
        for one in judged.rows
    ]
    return align_columns([("rank", "own work", "+ waits for others", "+ exchange", "comes last"), *rows])


def _same(same: SameData) -> str:
    named = ", ".join(map(str, same.ranks))
    if same.what == "ranks":
        return (
            f"DUPLICATED_DATA: ranks {named} were given the same batches, all {same.num_batches} that were compared: they do "
            "the work of one. Use a DistributedSampler, or split the files by rank"
        )
    cure = "call set_epoch before each epoch" if same.sampler == "DistributedSampler" else "shuffle in each epoch"
    return (
        f"The second epoch began with the batches of the first, in the same order (rank {named}): {cure}, unless the order is "
        "meant to be fixed"
    )

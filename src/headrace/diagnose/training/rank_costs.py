"""Costs of training with several processes: one that is late, the exchange of gradients, and data that all of them get."""

from __future__ import annotations

from headrace.base.formatting import pluralize
from headrace.base.units import format_duration
from headrace.diagnose.training.cost import WORTH_WORK, Cost, fact
from headrace.diagnose.training.stragglers import LAST_SHARE, LEAD_SHARE
from headrace.runs.formats.diagnosis import EvidenceLine, Remedy, VerdictClass
from headrace.runs.formats.training_ranks import Finding, RanksJudged, Reason, Same, SameData, Straggler


def waiting_for_ranks(judged: RanksJudged, batches: int = 1) -> Cost | None:
    """Return what waiting for one another costs, or the exchange itself.

    Args:
        judged: What the ranks show side by side.
        batches: That a step accumulates.
    """
    if (
        judged.rest_share < 0 or judged.wait_share >= 1
    ):  # ranks that leave an exchange before all have come: no exchange
        return None
    if judged.straggler is not None:
        return _straggler(judged, judged.straggler)
    if judged.finding is Finding.MOVING:
        phase = judged.moving_phase
        return Cost(
            verdict=VerdictClass.STRAGGLER,
            stage=phase,
            cause="changes",
            says=f"ranks wait {judged.wait_share:.0%} of the step for one another, each time for another one"
            + (f", late in {phase}" if phase else "")
            + (": mostly because that one had no core" if judged.moves_with_cores else ""),
            rule=f"ranks wait for one another, and no rank is the last in {LAST_SHARE:.0%} of the steps",
            share=judged.wait_share,
            evidence=_facts(judged),
            remedies=(
                Remedy(says="stop other programs; fewer threads or loader workers in each rank, or a machine for each")
                if judged.moves_with_cores
                else Remedy(says="even out the batches: samples of equal cost, or loading further ahead"),
            ),
        )
    if judged.finding is Finding.COMMUNICATION:
        return Cost(
            verdict=VerdictClass.COMMUNICATION,
            stage="exchange",
            says=f"exchanging gradients takes {judged.rest_share:.0%} of the step when all ranks have come",
            rule="all ranks come at about the same time, and the exchange itself takes at least as long as waiting for them",
            share=judged.rest_share,
            evidence=_facts(judged),
            remedies=(
                *_exchange_less(batches),
                Remedy(
                    says="exchange gradients in two bytes: a hook (ddp_comm_hooks.default_hooks.fp16_compress_hook; "
                    "bf16_compress_hook needs NCCL)",
                    settings=("gradients=float16",),
                ),
                Remedy(says="look at what more ranks bring, and what takes the rest: headrace train scale"),
            ),
        )
    return None


def _exchange_less(batches: int) -> tuple[Remedy, ...]:
    """Return fewer exchanges: once for each update, where each accumulated batch has one, and once for larger updates."""
    larger = Remedy(
        says=f"exchange less often: accumulate gradients of {4 * batches} batches under model.no_sync()",
        settings=(f"accumulate={4 * batches}",),
    )
    if batches == 1:
        return (larger,)
    once = Remedy(
        says=f"exchange once for the {batches} batches of an update, if each is exchanged now: all but the last under "
        "model.no_sync()",
        settings=(f"accumulate={batches}",),
    )
    return once, larger


def _straggler(judged: RanksJudged, found: Straggler) -> Cost:
    how = "would come last on cores of its own" if found.had_cores else "comes last"
    return Cost(
        verdict=VerdictClass.STRAGGLER,
        stage=found.phase,
        says=f"all ranks wait for rank {found.rank}: it {how} in {found.share_last:.0%} of the steps, by "
        f"{format_duration(found.lead_seconds)} ({found.lead_share:.0%} of the step), and {_reason(found)} in {found.phase}",
        rule=f"one rank has its gradients last in at least {LAST_SHARE:.0%} of the steps, later than the next by more than the "
        f"clocks' uncertainty and {LEAD_SHARE:.0%} of the step, and not for a worse core alone, unless that lasts",
        share=found.lead_share if found.had_cores else max(judged.wait_share, found.lead_share),
        evidence=(
            fact("last", f"last in {found.share_last:.0%} of the steps (from {LAST_SHARE:.0%})", found.share_last, LAST_SHARE),
            fact("lead", f"later by {found.lead_share:.1%} of the step (from {LEAD_SHARE:.0%})", found.lead_share, LEAD_SHARE),
            *_facts(judged),
        ),
        remedies=(
            Remedy(says=f"look at what rank {found.rank} does in {found.phase} that others do not: its data, its machine"),
        ),
    )  # fmt: skip


def _reason(found: Straggler) -> str:
    """Return what the rank does in its phase; without clocks of its CPU only that it is longer there."""
    return "takes longer" if found.reason is Reason.UNKNOWN else str(found.reason)


def _facts(judged: RanksJudged) -> tuple[EvidenceLine, ...]:
    return (
        fact(
            "waiting", f"waiting for the last rank: {judged.wait_share:.0%} of the step", judged.wait_share, WORTH_WORK
        ),
        fact("exchange", f"the exchange when all have come: {judged.rest_share:.0%} of the step", judged.rest_share),
        fact(
            "clocks",
            f"clocks may disagree by {format_duration(judged.uncertainty_seconds)}",
            judged.uncertainty_seconds,
        ),
    )


def same_data(found: SameData) -> Cost | None:
    """Return ranks that do the same work; an order that is the same in each epoch may be what was wanted."""
    if found.what is not Same.RANKS:
        return None
    named = ", ".join(map(str, found.ranks))
    return Cost(
        verdict=VerdictClass.DUPLICATED_DATA,
        stage=None,
        says=f"ranks {named} were given the same batches: {pluralize(len(found.ranks), 'rank')} do the work of one",
        rule="the first batches of several ranks are equal, and differ from one another",
        share=0.0,
        evidence=(
            fact("compared", f"batches that were compared, all equal: {found.num_batches}", found.num_batches, 1),
        ),
        remedies=(Remedy(says="give each rank its part: DataLoader(..., sampler=DistributedSampler(dataset))"),),
    )


def note_of_order(found: SameData) -> str | None:
    """Return a warning of an order that does not change."""
    if found.what is not Same.EPOCHS:
        return None
    says = "an epoch began with the batches of the one before, in the same order"
    return f"{says}; with a DistributedSampler call set_epoch(epoch)"

"""Costs of loading: batches that are waited for, epochs that begin anew, and work on batches in the training thread."""

from __future__ import annotations

import numpy as np

from headrace.base.formatting import pluralize, quote_arg
from headrace.base.units import format_duration
from headrace.diagnose.training import rate
from headrace.diagnose.training.cost import WORTH_WORK, Cost, View, fact
from headrace.runs.formats.diagnosis import EvidenceLine, Remedy, VerdictClass
from headrace.runs.formats.training_profile import LoadingProfile
from headrace.runs.training_phases import LoaderWork, Phase

#: The field's red flags: shares of the step that waits for data.
RED_FLAG, VERY_RED_FLAG = 0.2, 0.3
#: Cause of waits for batches that are ready: what bringing them from a worker takes.
HAND_OVER = "hand-over"
#: Workers that load for this share of the time have no room for what varies.
BUSY = 0.8
#: Waits are bunched if a tenth of the steps have this share of them.
_BUNCHED = 0.6
#: ... and batches are uneven if the 95th percentile is so many times the median.
_UNEVEN = 1.5
#: A first epoch that reads so many times as slowly as later ones read cold data; fewer batches than these say nothing of it.
_COLD, _FEW_BATCHES = 2.0, 8
#: Work that takes this share of a batch is named.
_NAMED = 0.4
#: Waits are for the hand-over if batches were ready for this share of them.
_READY = 0.5


def waiting(view: View) -> Cost | None:
    """Return what waiting for batches costs in plain steps."""
    wait = view.phase(Phase.WAIT)
    if wait is None:
        return None
    loading = view.profile.loading
    cause, why = _cause(view, loading)
    is_handed_over = cause == HAND_OVER
    own = _own_seconds(view)
    return Cost(
        verdict=VerdictClass.LOADING,
        stage=_work(loading) if loading is not None and not is_handed_over else None,
        cause=cause,
        says=f"{format_duration(wait.seconds)} of a step of {format_duration(view.step_seconds)} ({wait.share:.0%}) wait for "
        f"data{why}{view.worker_lines if _num_workers(view) else view.lines(Phase.WAIT)}",
        rule=f"waiting for batches takes at least {WORTH_WORK:.0%} of the training's time, beyond chance and recording "
        f"({RED_FLAG:.0%} where batches are ready and are handed over); workers, where there are some, are too few or their "
        f"work is too dear if they are busy {BUSY:.0%} of it",
        share=view.share_of(max(wait.seconds - own, 0.0)),
        most=_share_of_all_waits(view),
        least=view.least_share(Phase.WAIT, own),
        worth=RED_FLAG if is_handed_over else WORTH_WORK,
        evidence=(
            fact("wait", f"share of the step that waits for data: {wait.share:.0%} (red flag of the field: from "
                 f"{RED_FLAG:.0%}, urgent from {VERY_RED_FLAG:.0%})", wait.share, RED_FLAG),
            fact("parts", view.parts(Phase.WAIT), wait.seconds),
            *_facts(loading),
        ),
        remedies=_remedies(view, cause, loading),
    )  # fmt: skip


def _cause(view: View, loading: LoadingProfile | None) -> tuple[str, str]:
    """Return the cause within the class, and a clause that says it."""
    workers = _num_workers(view)
    if workers == 0:
        return "no workers", ": the training thread loads them itself, and the model waits meanwhile"
    if loading is None or loading.busy_share is None:
        return "", ""
    who = "1 worker is" if loading.workers == 1 else f"{loading.workers} workers are"
    busy = f"{who} busy {loading.busy_share:.0%} of the time"
    if loading.busy_share < BUSY and _is_bunched(view) and loading.p95_seconds >= _UNEVEN * loading.median_seconds:
        slow = f"one batch in twenty takes {loading.p95_seconds / loading.median_seconds:.1f} times the median"
        return "head of line", f": {slow}, and those that are ready wait behind it"
    if loading.busy_share < BUSY and _share_ready(view) >= _READY:
        return HAND_OVER, f", though {busy}, and most batches are ready: they are handed over from process to process"
    if loading.busy_share < BUSY:
        return "", f", though {busy}"
    if _has_room(view, loading):
        return "too few workers", f": {busy}"
    return "work", f": {busy}; {_why_no_room(view, loading)}"


def _share_of_all_waits(view: View) -> float:
    """Return the share of the time that faster loading would save at most: first batches of epochs come sooner, too."""
    return view.lasting_seconds(Phase.WAIT) / view.seconds if view.seconds else 0.0


def _own_seconds(view: View) -> float:
    """Return what recording took of a step's waits."""
    loading = view.profile.loading
    return view.recording.wait_seconds * (1.0 if loading is None else loading.batches_per_step)


def _share_ready(view: View) -> float:
    """Return the share of the waits for a worker's batch in which that batch was collated already."""
    passage = view.rank.batches.passage
    if passage is None:
        return 0.0
    used = (passage.worker >= 0) & np.isin(view.rank.batches.step, view.rank.steps.number[view.plain])
    asked, ready, taken = passage.asked[used], passage.ready[used], passage.taken[used]
    waits = float((taken - asked).sum())
    return float(np.maximum(taken - np.maximum(asked, ready), 0.0).sum()) / waits if waits else 0.0


def note_of_hand_over(view: View) -> str | None:
    """Return a sentence on waits that are no fault of the loader's, and too short for a verdict; None otherwise."""
    found = waiting(view)
    if found is None or found.cause != HAND_OVER or not WORTH_WORK <= found.share < RED_FLAG:
        return None
    return f"{found.says}; below {RED_FLAG:.0%} that is not worth work: larger batches, or fewer and smaller tensors, lessen it"


def _num_workers(view: View) -> int | None:
    loading, about = view.profile.loading, view.profile.about
    if loading is not None:
        return loading.workers
    return max((one.workers for one in about.loaders), default=None) if about is not None and about.loaders else None


def _has_room(view: View, loading: LoadingProfile) -> bool:
    """Return whether one more worker would find a core for what it computes, by what was in use while this was recorded."""
    cores, used = view.document.num_cores or 1, _cores_in_use(view)
    if used is None:  # the training thread is taken to want one
        return loading.workers * _computing(loading) + 1 < cores
    return cores - used >= _computing(loading)


def _why_no_room(view: View, loading: LoadingProfile) -> str:
    """Return in words that `_has_room` is not the case, with what was measured."""
    cores, used = view.document.num_cores or 1, _cores_in_use(view)
    computes = f"computing is {_computing(loading):.0%} of it"
    if used is None:
        return f"{computes}, and how much of the {cores} cores is in use was not measured"
    return f"{computes}, and of {cores} cores {used:.1f} are in use: less is left than one more would compute on"


def _computing(loading: LoadingProfile) -> float:
    """Return the share of its time that a worker computes."""
    return sum(one.cpu_seconds or 0.0 for one in loading.work) / loading.seconds if loading.seconds else 1.0


def _cores_in_use(view: View) -> float | None:
    """Return how many cores all programs used; None where that is not known of the cores that this training may use."""
    try:
        use = view.profile.about.details["cores"]  # type: ignore[union-attr]
        used = float(use["all_seconds"] / use["wall_seconds"])
    except (AttributeError, KeyError, TypeError, ZeroDivisionError):  # not measured, or a file of another program
        return None
    return used if used <= (view.document.num_cores or 1) + 0.1 else None  # more: of a machine of which this is a part


def _is_bunched(view: View) -> bool:
    wait = np.sort(view.rank.steps.phases[Phase.WAIT].wall[view.plain])[::-1]
    tenth = max(1, len(wait) // 10)
    return bool(wait[:tenth].sum() >= _BUNCHED * wait.sum()) if wait.sum() else False


def _work(loading: LoadingProfile) -> str | None:
    """Return the work that takes most of a batch; items that mostly block are read."""
    if not loading.work or loading.work[0].seconds < _NAMED * loading.seconds:
        return None
    first = loading.work[0]
    if first.work == "items" and first.blocked_seconds is not None and first.blocked_seconds >= 0.5 * first.seconds:
        return "read"
    return first.work


def _facts(loading: LoadingProfile | None) -> list[EvidenceLine]:
    if loading is None:
        return [fact("loading", "what loading costs in the workers was not recorded", None)]
    found = [
        fact(
            one.work,
            f"{one.work}: {format_duration(one.seconds)} of a batch of {format_duration(loading.seconds)}",
            one.seconds,
        )
        for one in loading.work[:3]
    ]
    if loading.busy_share is not None:
        says = f"workers are busy {loading.busy_share:.0%} of the time (from {BUSY:.0%})"
        found.insert(0, fact("busy", says, loading.busy_share, BUSY))
    return found


def _remedies(view: View, cause: str, loading: LoadingProfile | None) -> tuple[Remedy, ...]:
    workers = _num_workers(view)
    wanted = _wanted_workers(view, loading)
    more = Remedy(
        says=f"load in more processes: DataLoader(..., num_workers={wanted}, persistent_workers=True)",
        settings=(f"loader.workers={wanted}", "loader.persistent=true"),
        command=f"headrace whatif {quote_arg(view.folder)} --set loader.workers={wanted} --set loader.persistent=true"
        if loading is not None
        else "",
    )
    work = _WORK_ADVICE.get(_work(loading) or "" if loading is not None else "", "")
    cheaper = [Remedy(says=work)] if work else []
    if cause == "head of line":
        return (
            Remedy(
                says="take batches as they come: DataLoader(..., in_order=False), from PyTorch 2.6",
                settings=("loader.in_order=false",),
            ),
            Remedy(
                says="load further ahead: DataLoader(..., prefetch_factor=8)",
                settings=("loader.prefetch=8",),
            ),
            *cheaper,
        )
    if cause == HAND_OVER:
        return (Remedy(says="hand over less: uint8 in place of float32, one tensor in place of many, larger batches"),)
    if cause in ("no workers", "too few workers") or workers is None:
        return (more, *cheaper)
    return (*cheaper, more) if cheaper else (more,)


def _wanted_workers(view: View, loading: LoadingProfile | None) -> int:
    """Return workers that would load as fast as the rest of the step.

    Where they compute, no more than cores; where they mostly wait, some for each core: each is a process with its own memory.
    """
    cores = view.document.num_cores or 2
    if loading is None:
        return max(2, min(cores, 4))
    rest = max(view.step_seconds - view.mean_seconds(Phase.WAIT), 1e-6)
    needed = int(np.ceil(1.2 * loading.seconds * loading.batches_per_step / rest))
    computing = sum(one.cpu_seconds or 0.0 for one in loading.work) >= 0.5 * loading.seconds
    return max(loading.workers + 1, min(needed, cores if computing else max(8, 4 * cores)))


_WORK_ADVICE = {
    "read": "read faster: pack small files into shards, keep the data on a local disk or in memory",
    "decode": "decode less: smaller images, a faster decoder (simplejpeg, torchvision.io), or decoded images kept in a cache",
    "augment": "augment in batches on the device, or with fewer and cheaper operations",
    "tokenise": "tokenise once and keep the ids, or a whole batch at a time with a fast tokeniser",
    "collate": "collate with one torch.stack into arrays of equal shape, in the workers",
    "items": "make dataset[i] cheaper: what it does outside of reading and decoding",
}


def epoch_starts(view: View) -> Cost | None:
    """Return what the turns of epochs cost, the first one left out."""
    steps, starts = view.rank.steps, view.selection.epoch_start.copy()
    starts[:1] = False
    wait = steps.phases.get(Phase.WAIT)
    if not starts.any() or wait is None:
        return None
    usual = float(np.median(wait.wall[view.plain])) if view.plain.any() else 0.0
    waits = float(np.maximum(wait.wall[starts] - usual, 0.0).sum())
    begins = view.lasting_seconds(Phase.EPOCH_START)
    each, keeps = (waits + begins) / int(starts.sum()), _keeps_workers(view)
    return Cost(
        verdict=VerdictClass.LOADING,
        stage=None,
        cause="epoch start",
        says=f"each of {pluralize(int(starts.sum()), 'further epoch')} begins with {format_duration(each)} of waiting: "
        f"{'' if keeps else 'workers start again, and '}none has loaded ahead",
        rule=f"starting the loader again, and the first batch of each epoch but the first, take at least {WORTH_WORK:.0%} "
        "of the training's time more than other batches",
        share=(waits + begins) / view.seconds if view.seconds else 0.0,
        evidence=(
            fact(
                "first_batch",
                f"the first batch is waited for {format_duration(waits / int(starts.sum()))} longer",
                waits,
            ),
            fact("restart", f"iter(loader) takes {format_duration(begins / int(starts.sum()))}", begins),
        ),
        remedies=(
            Remedy(
                says="make epochs longer (several passes over the data in one), or load a first batch faster: smaller batches"
            ),
        )
        if keeps
        else (
            Remedy(
                says="keep the workers: DataLoader(..., persistent_workers=True)",
                settings=("loader.persistent=true",),
            ),
            Remedy(says="make epochs longer, or start workers faster: fewer imports, a smaller data set object"),
        ),
    )


def _keeps_workers(view: View) -> bool:
    """Return whether no worker starts again with an epoch: they are kept, or there are none."""
    loaders = () if view.profile.about is None else view.profile.about.loaders
    used = [one for one in loaders if one.num_learnt != 0]  # not those of validation
    return bool(used) and all(one.persistent_workers or not one.workers for one in used)


def preparing(view: View) -> Cost | None:
    """Return what is done with a batch before the model is called."""
    prepare = view.phase(Phase.PREPARE)
    if prepare is None:
        return None
    about = view.profile.about
    says = f"{format_duration(prepare.seconds)} of a step of {format_duration(view.step_seconds)} ({prepare.share:.0%})"
    share, least = view.share_of(prepare.seconds), view.least_share(Phase.PREPARE)
    evidence = (fact("parts", view.parts(Phase.PREPARE), prepare.seconds),)
    if about is not None and about.device not in ("", "cpu"):
        return Cost(
            verdict=VerdictClass.TRANSFER,
            stage=Phase.PREPARE,
            says=f"{says} bring the batch to {about.device}{view.lines(Phase.PREPARE)}",
            rule=f"on a device, what is between the batch and the model takes at least {WORTH_WORK:.0%} of the training's time",
            share=share,
            least=least,
            evidence=evidence,
            remedies=(
                Remedy(
                    says="pin and do not wait: DataLoader(..., pin_memory=True), batch.to(device, non_blocking=True)"
                ),
                Remedy(says="move less: uint8 instead of float32, converted on the device"),
            ),
        )
    return Cost(
        verdict=VerdictClass.LOADING,
        stage=Phase.PREPARE,
        cause="in the training thread",
        says=f"{says} work on the batch before the model is called{view.lines(Phase.PREPARE)}",
        rule=f"on the CPU, what is between the batch and the model takes at least {WORTH_WORK:.0%} of the training's time",
        share=share,
        least=least,
        evidence=evidence,
        remedies=(Remedy(says="do it in the loader's workers: in the data set's transform or in collate_fn"),),
    )


def note_of_cold_epoch(view: View) -> str | None:
    """Return a sentence on an epoch that read from a disk or a store what later ones had in memory; None where none did."""
    read, starts = view.rank.batches.work.get(LoaderWork.READ), rate.epoch_starts(view.rank.steps)
    if read is None or len(starts) < 2:
        return None
    number, turn = view.rank.batches.step, view.rank.steps.number[starts[1]]
    first, later = (read.wall[which] for which in ((number >= 0) & (number < turn), number >= turn))
    if min(len(first), len(later)) < _FEW_BATCHES:
        return None
    cold, warm = float(np.median(first)), float(np.median(later))
    if cold < _COLD * warm or cold - warm < WORTH_WORK * view.step_seconds:
        return None
    return (
        f"reading a batch took {format_duration(cold)} in the first epoch and {format_duration(warm)} later: data came from a "
        "disk or a store, and then from memory; data that do not fit into memory are read so in each epoch"
    )

"""Costs within and between steps that are not loading: optimizer, own code, checkpoints, validation, cores that are missing."""

from __future__ import annotations

from headrace.base.formatting import pluralize
from headrace.base.units import format_duration
from headrace.diagnose.training.cost import WORTH_WORK, Cost, View, fact
from headrace.runs.formats.diagnosis import Remedy, VerdictClass
from headrace.runs.training_phases import Phase

#: An optimizer, and a loss, may take this share of the step: it is arithmetic on the same numbers.
USUAL_SHARE = 0.10
#: Validation is worth a word if it takes this share of the time: nobody trains without it.
MUCH_VALIDATION = 0.25
#: How seldom validating and saving are proposed.
_SELDOM = (2, 4, 10)
#: ... and so much of it that waits for data is loading's.
_WAITS = 0.5
#: A share of the step that waits for a core from which that is named.
_DELAYED = 0.10
#: Own threads that keep this share of the cores at work refuse one another a core.
_OWN = 0.9
#: Other programs are to blame if they used cores for this share of the time in which one was missing ...
_BLAMED = 0.5
#: ... and for this share of what this training used beside its training thread.
_BESIDE = 0.2
_SYNC_LESS = (
    Remedy(says="print, log and call .item() every 100 steps: if step % 100 == 0"),
    Remedy(says="keep sums as tensors (total += loss.detach()) and read them once per epoch"),
)
_SHOW_LOADER = Remedy(
    says="let headrace see what gives the batches: with headrace.train.profile(batches, output=...) as batches, or a DataLoader"
)
_PLACES = {
    Phase.LOSS: ("in the loss", "between the forward and the backward pass"),
    Phase.BEFORE_UPDATE: ("before the update", "between the backward pass and the optimizer"),
    Phase.AFTER: ("after the update", "after the optimizer"),
}


def optimizer(view: View) -> Cost | None:
    """Return what the optimizer takes beyond what is usual."""
    found = view.phase(Phase.OPTIMIZER)
    if found is None:
        return None
    excess = found.seconds - USUAL_SHARE * view.step_seconds
    names = ", ".join(view.profile.about.optimizers) if view.profile.about is not None else ""
    return Cost(
        verdict=VerdictClass.OPTIMIZER,
        stage=Phase.OPTIMIZER,
        says=f"optimizer.step(){f' of {names}' if names else ''} takes {format_duration(found.seconds)} of a step of "
        f"{format_duration(view.step_seconds)} ({found.share:.0%}){view.lines(Phase.OPTIMIZER)}",
        rule=f"it takes more than {USUAL_SHARE:.0%} of the step, and that costs {WORTH_WORK:.0%} of the training's time",
        share=view.share_of(max(excess, 0.0)),
        least=view.least_share(Phase.OPTIMIZER, USUAL_SHARE * view.step_seconds),
        evidence=(
            fact("share", f"share of the step: {found.share:.0%} (from {USUAL_SHARE:.0%})", found.share, USUAL_SHARE),
            fact("parts", view.parts(Phase.OPTIMIZER), found.seconds),
        ),
        remedies=(
            Remedy(says="one kernel for all parameters: foreach=True, or fused=True where the optimizer has it"),
            Remedy(says="update less often: accumulate gradients over several batches"),
        ),
    )


def own_code(view: View, phase: Phase) -> Cost | None:
    """Return what the loop's own code costs at one place of the step.

    Args:
        view: Of a rank.
        phase: `LOSS`, `BEFORE_UPDATE` or `AFTER`.
    """
    found = view.phase(phase)
    if found is None:
        return None
    cause, where = _PLACES[phase]
    if view.profile.about is not None and not view.profile.about.loaders:
        where += "; no loader was seen, so what prepares the next batch is in here"
        remedies: tuple[Remedy, ...] = (_SHOW_LOADER, *_SYNC_LESS)
    else:
        remedies = _SYNC_LESS
    usual = USUAL_SHARE * view.step_seconds if phase is Phase.LOSS else 0.0
    return Cost(
        verdict=VerdictClass.SYNC,
        stage=phase,
        cause=cause,
        says=f"the loop's own code {where} takes {format_duration(found.seconds)} of a step of "
        f"{format_duration(view.step_seconds)} ({found.share:.0%}){view.lines(phase)}",
        rule=f"the loop's own code at one place takes at least {WORTH_WORK:.0%} of the training's time; a loss "
        f"may take {USUAL_SHARE:.0%} of the step",
        share=view.share_of(max(found.seconds - usual, 0.0)),
        least=view.least_share(phase, usual),
        evidence=(fact("parts", view.parts(phase), found.seconds),),
        remedies=remedies,
    )


def between_epochs(view: View) -> Cost | None:
    """Return what the loop's own code costs from the end of one epoch to the start of the next."""
    seconds, turns = view.between_epochs
    if not turns:
        return None
    return Cost(
        verdict=VerdictClass.SYNC,
        stage=Phase.OUTSIDE,
        cause="between epochs",
        says=f"the loop's own code takes {format_duration(seconds / turns)} from one epoch to the next "
        f"({pluralize(turns, 'turn')}){view.lines(Phase.OUTSIDE)}",
        rule=f"the loop's own code between epochs takes at least {WORTH_WORK:.0%} of the training's time; validation, "
        "saving and starting the loader are not in it",
        share=seconds / view.seconds if view.seconds else 0.0,
        least=0.0 if turns == 1 else None,
        evidence=(fact("turns", f"{format_duration(seconds)} in {pluralize(turns, 'turn')}", seconds),),
        remedies=(
            Remedy(says="do it less often, in a thread, or after the training"),
            Remedy(says="make epochs longer: several passes over the data in one"),
        ),
    )


def checkpoints(view: View) -> Cost | None:
    """Return what saving costs."""
    profile = view.profile
    if not profile.checkpoints:
        return None
    share = view.lasting_seconds(Phase.CHECKPOINT) / view.seconds if view.seconds else 0.0
    each = format_duration(profile.checkpoint_seconds / profile.checkpoints)
    made = pluralize(profile.checkpoints, "checkpoint")
    return Cost(
        verdict=VerdictClass.CHECKPOINT,
        stage=None,
        says=f"{made} of {each} each stop the training while they are written{view.lines(Phase.CHECKPOINT)}",
        rule=f"saving takes at least {WORTH_WORK:.0%} of the training's time",
        share=share,
        evidence=(fact("each", f"{made} in {pluralize(profile.steps, 'step')}", profile.checkpoints),),
        remedies=(
            Remedy(says=f"save less often: {_gains_of_seldom(share)} (Trainer: save_steps; Lightning: every_n_train_steps; "
                   "Keras: save_freq)"),
            Remedy(says="copy the state to memory and write it in a thread: torch.distributed.checkpoint.async_save"),
        ),
    )  # fmt: skip


def validation(view: View) -> Cost | None:
    """Return what validation between steps costs; that after the last one alone says nothing of a longer training."""
    count, turns = view.validations
    if not turns:
        return None
    share, each = view.validation_seconds / view.seconds, view.validation_seconds / count
    waits = view.rank.validation.phases.get(Phase.WAIT)
    waiting = 0.0 if waits is None else float(waits.wall.sum() / view.rank.validation.wall.sum())
    return Cost(
        verdict=VerdictClass.VALIDATION,
        stage=None,
        says=f"{pluralize(count, 'validation')} of {format_duration(each)} each take {share:.0%} of the time",
        rule=f"validation takes at least {MUCH_VALIDATION:.0%} of the training's time, and steps go on after it",
        share=share,
        least=0.0 if turns == 1 else None,
        worth=MUCH_VALIDATION,
        evidence=(
            fact("each", f"{pluralize(count, 'validation')} in {pluralize(view.profile.steps, 'step')}", count),
            fact("wait", f"of its time {waiting:.0%} wait for data", waiting),
        ),
        remedies=(
            Remedy(says=f"validate less often: {_gains_of_seldom(share)} (Lightning: "
                   "check_val_every_n_epoch; Trainer: eval_steps; Keras: validation_freq)"),
            Remedy(says="or on fewer samples: a quarter of them brings what every 4th time does"),
            *([Remedy(says="load for it in more processes, too: num_workers of its DataLoader")] if waiting >= _WAITS else []),
        ),
    )  # fmt: skip


def _gains_of_seldom(share: float) -> str:
    """Return in words what doing something less often buys that takes a share of the time."""
    gains = (
        f"every {every}{'nd' if every == 2 else 'th'} time x{1 / (1 - share * (1 - 1 / every)):.2f}"
        for every in _SELDOM
    )
    return f"{', '.join(gains)} of the steps in the same time"


def missing_cores(view: View) -> Cost | None:
    """Return what waiting for a core costs the training thread."""
    delays = [one.run_delay_seconds for one in view.profile.phases]
    known = [one for one in delays if one is not None]
    if not known or not view.step_seconds:
        return None
    delay = sum(known)
    own, cores = _own_cores(view), view.document.num_cores
    share = view.share_of(delay) if delay >= _DELAYED * view.step_seconds else 0.0
    used = _used_cores(view)
    others = None if used is None else used[1]
    says = f"the training thread waits for a core {format_duration(delay)} of a step of {format_duration(view.step_seconds)}"
    evidence = (
        fact("run_delay", f"share of the step: {delay / view.step_seconds:.0%} (from {_DELAYED:.0%})",
             delay / view.step_seconds, _DELAYED),
        fact("own", f"this training's own threads {_own_words(own, used)} of {cores} cores", own),
        *([] if others is None else [fact("others", f"other programs use {others:.2f} cores", others)]),
    )  # fmt: skip
    # Who is to blame has to have used the cores for as long as they were missing, or for most of that; and not far less of them
    # than workers, other threads and other ranks of this training.
    is_own = used is not None and used[1] < max(
        _BLAMED * delay / view.step_seconds, _BESIDE * _beside_training(view, used[0])
    )
    workers = view.profile.loading.workers if view.profile.loading is not None else 0
    who = "its own loader workers and threads" if workers else "the model's own threads"
    if (cores and own >= _OWN * cores) or is_own:
        beside = "what other programs use is not recorded" if others is None else f"other programs use {others:.2f}"
        return Cost(
            verdict=VerdictClass.OVERSUBSCRIPTION,
            stage=None,
            cause="training",
            says=f"{says}: {who} {_own_words(own, used)} of {cores} cores; {beside}",
            rule=f"the training thread waits for a core at least {_DELAYED:.0%} of the step, and the training's own "
            f"threads want at least {_OWN:.0%} of the cores, or other programs used them for less than {_BLAMED:.0%} of that "
            f"time, or less than {_BESIDE:.0%} of what this training used beside its training thread",
            share=share,
            is_bounded=False,  # threads that refuse one another a core also spin, and evict one another's caches
            evidence=evidence,
            remedies=(
                Remedy(says="stop other programs first, if there are any (top, headrace doctor)"),
                Remedy(
                    says="fewer threads: torch.set_num_threads(1)" + (", or fewer loader workers" if workers else "")
                ),
                *(
                    [Remedy(says="make loading cheaper: what the workers compute is taken from the model")]
                    if workers
                    else []
                ),
            ),
        )
    return Cost(
        verdict=VerdictClass.NEIGHBOUR,
        stage=None,
        says=f"{says}: other programs use them",
        rule=f"the training thread waits for a core at least {_DELAYED:.0%} of the step, its own threads "
        f"want less than {_OWN:.0%} of the cores, and other programs use some",
        share=share,
        is_bounded=False,  # threads of operators wait for one another, and only the training thread's delay was measured
        evidence=evidence,
        remedies=(
            Remedy(
                says="stop the other programs, or give this run cores of its own (taskset, a cgroup, another machine)"
            ),
        ),
    )


def _own_words(wanted: float, used: tuple[float, float] | None) -> str:
    """Return how many cores this training wants by its threads, and where that was measured used."""
    return f"want {wanted:.1f}" + ("" if used is None else f" and use {used[0]:.1f}")


def _beside_training(view: View, own: float) -> float:
    """Return how many of the cores that this training used its training thread did not."""
    computing = sum(one.cpu_seconds or 0.0 for one in view.profile.phases)
    return max(own - computing / view.step_seconds, 0.0)


def _used_cores(view: View) -> tuple[float, float] | None:
    """Return how many cores this training used, all of its ranks here, and how many others did; None where it is not known."""
    host = view.profile.host
    about = [one.about for one in view.document.ranks if one.host == host and one.about is not None]
    try:
        uses: list[dict[str, float]] = [one.details["cores"] for one in about]
        everybody = max(one["all_seconds"] / one["wall_seconds"] for one in uses)
        own = sum(one["own_seconds"] / one["wall_seconds"] for one in uses)
        return own, max(everybody - own, 0.0)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # not measured, or a file of another program
        return None


def _own_cores(view: View) -> float:
    """Return how many cores the training wants: threads of the model while it computes or waits for a core, and loading."""
    about, step = view.profile.about, view.step_seconds
    threads = 1 if about is None else max(1, about.threads)
    model = [one for one in view.profile.phases if one.phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)]
    wanted = threads * sum(one.seconds - (one.blocked_seconds or 0.0) for one in model) / step
    loading = view.profile.loading
    if loading is not None and loading.workers:
        wanted += sum((one.cpu_seconds or 0.0) for one in loading.work) * loading.batches_per_step / step
    return wanted

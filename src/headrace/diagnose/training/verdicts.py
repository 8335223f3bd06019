"""The diagnosis of a training: what costs time besides forward and backward, how much, and what to do about it.

How this works: the time of a training is a sum, so nothing has to be simulated to rank what costs it: each rule of
`loading_costs`, `step_costs` and `rank_costs` returns seconds that would be saved at most. The largest is the verdict, if it is
worth work. Of several ranks the one that is slowest by its own work stands for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.formatting import pluralize, quote_arg
from headrace.base.units import format_duration
from headrace.diagnose.training.cost import WORTH_WORK, Cost, View, costs_possible, costs_worth, fact
from headrace.diagnose.training.device_costs import device_costs, healthy_device, note_of_queue
from headrace.diagnose.training.loading_costs import (
    epoch_starts,
    note_of_cold_epoch,
    note_of_hand_over,
    preparing,
    waiting,
)
from headrace.diagnose.training.memory_costs import memory_pressure, note_of_growth
from headrace.diagnose.training.profile import describe_training, set_forks_apart
from headrace.diagnose.training.rank_costs import note_of_order, same_data, waiting_for_ranks
from headrace.diagnose.training.remedies import predict_remedies
from headrace.diagnose.training.step_costs import (
    MUCH_VALIDATION,
    between_epochs,
    checkpoints,
    missing_cores,
    optimizer,
    own_code,
    validation,
)
from headrace.diagnose.training.steps import RankSteps, read_steps
from headrace.diagnose.training.trust import lacks_end
from headrace.diagnose.training.uneven_shards import uneven_shards
from headrace.runs.formats.diagnosis import Bound, Confidence, DiagnosisDocument, Finding, Remedy, VerdictClass
from headrace.runs.formats.training_profile import TrainingDocument, layer_costs
from headrace.runs.reader import Run
from headrace.runs.training_phases import Phase

#: Fewer plain steps say nothing of a mean.
FEWEST_STEPS = 20
#: ... but for a trace, whose user cannot record more, and is told how few they are.
FEWEST_TRACED = 2
#: From here on a confidence is high.
_MANY_STEPS = 50
#: A second cost of at least this part of the first is about as large.
_ALIKE = 0.85
#: A part of the model that takes this share of it stands out.
_STANDS_OUT = 0.3


class TrainingAnalysis:
    """What is worked out from the run folder of a training, once.

    Attributes:
        run: As `headrace.runs.reader.read_run` returns it; its `info.unit` is `step`.
        ranks: Steps of each process.
        document: Where the time went.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ranks: list[RankSteps]
        self.ranks, forks = set_forks_apart(run, read_steps(run))
        self.document: TrainingDocument = describe_training(run, self.ranks, forks)

    @property
    def slowest(self) -> int:
        """Position of the rank whose steps have most of their own work; 0 without ranks."""

        def own(index: int) -> float:
            found = self.document.ranks[index]
            return sum(one.seconds for one in found.phases if one.phase != Phase.EXCHANGE)

        return max(range(len(self.ranks)), key=own, default=0)


def diagnose_training(analysis: TrainingAnalysis) -> DiagnosisDocument:
    """Return what limits a training and what to do about it.

    A run that cannot be diagnosed gives a document too: INCONCLUSIVE or UNTRUSTED, with the reason and the next command.
    """
    document = analysis.document
    if document.distrust:
        return _document(analysis, _untrusted(document))
    if not analysis.ranks:
        return _document(analysis, _too_few(analysis, 0), experiment=_longer(analysis))
    view = _view(analysis)
    duplicated = next(
        (cost for one in analysis.document.together.same_data if (cost := same_data(one)) is not None), None
    )
    if view.num_plain < _fewest(document) and duplicated is None:
        if _steps_are_unseen(analysis):
            return _document(analysis, _unseen(view.num_plain))
        return _document(analysis, _too_few(analysis, view.num_plain), experiment=_longer(analysis))
    return _decide(analysis, view, duplicated)


def _fewest(document: TrainingDocument) -> int:
    return FEWEST_TRACED if document.window else FEWEST_STEPS


def find_costs(analysis: TrainingAnalysis, view: View) -> list[Cost]:
    """Return what costs time and is worth work, the largest first."""
    return costs_worth(_all_costs(analysis, view))


def _all_costs(analysis: TrainingAnalysis, view: View) -> Sequence[Cost | None]:
    if view.device is not None:
        return device_costs(view, view.device, analysis.document.together.judged)
    return [
        waiting(view),
        epoch_starts(view),
        preparing(view),
        optimizer(view),
        *(own_code(view, phase) for phase in (Phase.LOSS, Phase.BEFORE_UPDATE, Phase.AFTER)),
        between_epochs(view),
        checkpoints(view),
        validation(view),
        missing_cores(view),
        memory_pressure(view),
        uneven_shards(analysis.ranks) if _have_ends(analysis) else None,
        None if (judged := analysis.document.together.judged) is None else waiting_for_ranks(judged, view.batches),
    ]


def _have_ends(analysis: TrainingAnalysis) -> bool:
    """Return whether each rank has all steps of one process: those of a killed one miss their last, each another number."""
    numbers = {one.rank for one in analysis.ranks}
    return len(numbers) == len(analysis.ranks) and not any(lacks_end(one.about) for one in analysis.document.ranks)


def _view(analysis: TrainingAnalysis) -> View:
    at = analysis.slowest
    return View(analysis.document, analysis.ranks[at], analysis.document.ranks[at], analysis.run.path)


def _decide(analysis: TrainingAnalysis, view: View, duplicated: Cost | None) -> DiagnosisDocument:
    costs = find_costs(analysis, view)
    if duplicated is not None:
        costs.insert(0, duplicated)
    if not costs:
        doubtful = costs_possible(_all_costs(analysis, view))
        return _document(analysis, _healthy(view, doubtful), bounds=_bounds(view), warnings=_notes(analysis, view))
    first, *others = costs
    more, confidence = "", _confidence(view, first, others)
    if others and first.share and others[0].share >= _ALIKE * first.share:
        more = f"and about as much goes to {others[0].as_finding(confidence).title} ({others[0].share:.0%} of the time)"
    shown = [one.as_finding(confidence) for one in others[:2]]
    return _document(
        analysis,
        predict_remedies(analysis.run, first.as_finding(confidence, more)),
        runner_up=shown[0] if shown else None,
        next_bottleneck=shown[1] if len(shown) > 1 else None,
        bounds=_bounds(view) if all(_leaves_work_as_it_is(one) for one in costs) else (),
        warnings=_notes(analysis, view),
    )


def _leaves_work_as_it_is(cost: Cost) -> bool:
    """Return whether the training thread has the same work of its own without a cost; else it may be faster than the bounds."""
    return cost.verdict is VerdictClass.LOADING and cost.stage != Phase.PREPARE


def _confidence(view: View, first: Cost, others: list[Cost]) -> Confidence:
    doubts = (view.num_plain < _MANY_STEPS) + bool(view.document.unchecked)
    doubts += bool(others) and others[0].share >= _ALIKE * first.share > 0
    doubts += 0 if first.is_sure else 2
    return "high" if not doubts else "medium" if doubts == 1 else "low"


def _healthy(view: View, doubtful: Sequence[Cost]) -> Finding:
    if view.device is not None:
        return healthy_device(view, view.device)
    step = view.step_seconds
    model = view.mean_seconds(Phase.FORWARD) + view.mean_seconds(Phase.BACKWARD)
    loading = view.profile.loading
    lines = [
        fact("model", f"forward and backward take {format_duration(model)} of a step of {format_duration(step)}", model)
    ]
    if loading is not None and loading.busy_share is not None:
        lines.append(fact("busy", f"loader workers are busy {loading.busy_share:.0%} of the time", loading.busy_share))
    ends = f"and nothing else costs {WORTH_WORK:.0%}; good enough, stop here"
    if doubtful:
        most = max(doubtful, key=lambda one: one.share)
        if most.varies:
            what, why = f"{most.share:.0%} of this run went to a few bursts", "see whether they come again"
        else:
            what, why = f"one thing took about as much, {most.share:.0%} of this run", "be sure"
        ends = f"and nothing else surely costs {WORTH_WORK:.0%}; {what} ({most.says}): record a longer run to {why}"
    says = f"the model is what takes time: forward and backward are {model / step:.0%} of the step, {ends}"
    remedies: tuple[Remedy, ...] = (
        Remedy(says="if it must be faster: a cheaper model, bfloat16 (torch.autocast), torch.compile, or a device"),
    )
    return Finding(
        verdict=VerdictClass.HEALTHY,
        stage=None,
        cause="",
        says=says,
        rule=f"nothing besides forward and backward costs {WORTH_WORK:.0%} of the training's time",
        confidence="low" if doubtful else "high" if view.num_plain >= _MANY_STEPS else "medium",
        gain=None,
        evidence=tuple(lines),
        remedies=remedies,
    )


def _too_few(analysis: TrainingAnalysis, count: int) -> Finding:
    says = f"{pluralize(count, 'plain step')} after the warm-up {'is' if count == 1 else 'are'} too few"
    return Finding(
        verdict=VerdictClass.INCONCLUSIVE,
        stage=None,
        cause="",
        says=f"{says}; expected at least {_fewest(analysis.document)}"
        if analysis.ranks
        else "no training step was recorded",
        rule=f"a verdict on a training needs {FEWEST_STEPS} plain steps, one on a trace {FEWEST_TRACED}",
        confidence="low",
        gain=None,
        evidence=(fact("steps", says, count, _fewest(analysis.document)),),
        remedies=(
            Remedy(
                says="record a longer stretch: a hundred steps, better two epochs; how long it trains, the script's own "
                "options or code say"
            ),
        ),
    )


def _steps_are_unseen(analysis: TrainingAnalysis) -> bool:
    """Return whether nothing showed where a step ends: no batch was asked for, and no optimizer was called."""
    processes = [one.about for one in analysis.document.ranks if one.about is not None]
    return bool(processes) and not any(one.optimizers or one.loaders for one in processes)


def _unseen(count: int) -> Finding:
    """Return what is said where a longer training would show no more steps."""
    says = "no step was told from the next: no optimizer of torch.optim and no DataLoader was seen"
    return Finding(
        verdict=VerdictClass.INCONCLUSIVE,
        stage=None,
        cause="",
        says=f"{says}; expected one of them, a longer run shows no more",
        rule=f"a verdict on a training needs {FEWEST_STEPS} plain steps; a request for a batch, or an update, ends one",
        confidence="low",
        gain=None,
        evidence=(fact("steps", says, count, FEWEST_STEPS),),
        remedies=(
            Remedy(says="update the parameters with an optimizer of torch.optim (torch.optim.SGD is p -= lr * p.grad)"),
            Remedy(
                says="or let headrace see what gives the batches: with headrace.train.profile(batches, output=...) as "
                "batches, or a DataLoader"
            ),
        ),
    )


def _untrusted(document: TrainingDocument) -> Finding:
    return Finding(
        verdict=VerdictClass.UNTRUSTED,
        stage=None,
        cause="",
        says="; ".join(document.distrust),
        rule="phases miss their step, clocks contradict one another, or steps or ranks are missing",
        confidence="high",
        gain=None,
        evidence=(),
        remedies=(Remedy(says="record the training again"),),
    )


def _longer(analysis: TrainingAnalysis) -> str:
    """Return the command that records a longer run, where a script was recorded."""
    script, words = analysis.run.info.pipeline, tuple(analysis.run.info.options)
    if words[:1] != (script,) and words[:2] != ("-m", script):
        return ""
    return f"headrace train -o {quote_arg(f'{analysis.run.path}-longer')} {' '.join(map(quote_arg, words))}"


def _bounds(view: View) -> tuple[Bound, ...]:
    """Return two limits that can be redone by hand: the training thread without waiting, and the workers."""
    rate, wait = view.profile.samples_per_second, view.mean_seconds(Phase.WAIT)
    delays = (one.run_delay_seconds or 0.0 for one in view.profile.phases if one.phase != Phase.WAIT)
    own, loading = view.step_seconds - wait - sum(delays), view.profile.loading
    if rate is None or own <= 0:
        return ()
    samples = float(view.rank.steps.samples[view.plain].mean())
    found = [
        Bound(
            name="workers:train",
            stage=None,
            throughput=samples / own,
            says=f"training thread: {samples:.4g} samples / {format_duration(own)} without waiting for data or a core = "
            f"{samples / own:.4g}/s",
        )
    ]
    if loading is not None and loading.workers and loading.seconds:
        most = samples / loading.batches_per_step * loading.workers / loading.seconds
        says = f"loader: {loading.workers} workers x {samples / loading.batches_per_step:.4g} samples"
        says += f" / {format_duration(loading.seconds)} a batch = {most:.4g}/s"
        found.append(Bound(name="workers:loader", stage=None, throughput=most, says=says))
    return tuple(sorted(found, key=lambda one: one.throughput))


def _notes(analysis: TrainingAnalysis, view: View) -> tuple[str, ...]:
    """Return what is worth knowing and limits nothing by itself."""
    found = [text for one in analysis.document.together.same_data if (text := note_of_order(one)) is not None]
    if len(analysis.document.ranks) > 1:
        found.append(f"costs within steps are those of rank {view.rank.rank}, which has most work of its own")
    notes = (
        note_of_growth(view),
        _note_of_last_validation(view),
        note_of_cold_epoch(view),
        note_of_queue(view),
        None if view.device is not None else note_of_hand_over(view),
        view.recording.note(view.step_seconds),
        _note_of_layers(view),
    )
    found += [text for text in notes if text is not None]
    if analysis.document.window and view.num_plain < FEWEST_STEPS:
        found.append(
            f"{pluralize(view.num_plain, 'step')} of a trace are few: the profiler slows the host, and a step may differ"
        )
    warm_up = [one for one in view.profile.apart if one.what in ("warm_up", "recompiled")]
    if sum(one.count for one in warm_up) and not analysis.document.window:
        seconds = format_duration(sum(one.seconds for one in warm_up))
        found.append(f"{seconds} of warm-up and compiling are in no figure; they happen once in a long training")
    return tuple(found)


def _note_of_last_validation(view: View) -> str | None:
    """Return a sentence on validation that comes after the last step only: a longer training may have it more often."""
    share = view.validation_seconds / view.seconds if view.seconds else 0.0
    if share < MUCH_VALIDATION or view.validations[1]:
        return None
    return (
        f"validation after the last step takes {share:.0%} of the time of this run: see how often a longer one does it"
    )


def _note_of_layers(view: View) -> str | None:
    """Return which part of the model takes most of its time; None where that is not known, or none stands out."""
    layers = view.profile.layers
    compared, costs = layer_costs(layers)
    most, total = max(costs, default=0.0), sum(costs)
    if len(layers) < 2 or not total or most < _STANDS_OUT * total:
        return None
    first = layers[costs.index(most)]
    backward = first.backward_seconds
    whose = f" on rank {view.rank.rank}" if len(view.document.ranks) > 1 else ""
    return (
        f"of what the parts of the model take {compared}{whose}, {most / total:.0%} is {first.name} ({first.module}), one of "
        f"{len(layers)}: {format_duration(first.forward_seconds)} forward"
        + ("" if backward is None else f", {format_duration(backward)} backward")
    )


def _document(
    analysis: TrainingAnalysis,
    first: Finding,
    *,
    runner_up: Finding | None = None,
    next_bottleneck: Finding | None = None,
    bounds: tuple[Bound, ...] = (),
    experiment: str = "",
    warnings: tuple[str, ...] = (),
) -> DiagnosisDocument:
    document = analysis.document
    rate = document.ranks[analysis.slowest].samples_per_second if document.ranks else None
    return DiagnosisDocument(
        run=document.run,
        headrace_version=document.headrace_version,
        pipeline=document.pipeline,
        plan_id="",
        throughput=rate,
        first=first,
        runner_up=runner_up,
        next_bottleneck=next_bottleneck,
        candidates=(),
        bounds=bounds,
        simulated_throughput=None,
        experiment=experiment,
        trusted=document.trusted,
        distrust=document.distrust,
        unchecked=document.unchecked,
        warnings=(*warnings, *document.warnings),
        details={"unit": "step", "ranks": len(document.ranks)},
    )

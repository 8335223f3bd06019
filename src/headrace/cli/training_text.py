"""Where the time of a training went, for a terminal of 80 columns: the step as a bar, its phases, loading, what is apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.base.formatting import align_columns, pluralize, wrap_lines
from headrace.base.units import format_duration, format_rate
from headrace.cli.training_memory_text import memory_text
from headrace.cli.training_ranks_text import ranks_text
from headrace.cli.training_trace_text import trace_text
from headrace.runs.formats.training_profile import layer_costs

if TYPE_CHECKING:
    from headrace.diagnose.training.verdicts import TrainingAnalysis
    from headrace.runs.formats.diagnosis import DiagnosisDocument
    from headrace.runs.formats.training_profile import (
        LayerTime,
        LoadingProfile,
        PhaseTime,
        RankProfile,
        TrainingDocument,
    )

#: Columns of the step's bar.
_BAR = 72
_LETTERS = {
    "wait": "w", "prepare": "p", "forward": "F", "loss": "l", "backward": "B", "exchange": "x", "before_update": "u",
    "optimizer": "O", "after": "a", "epoch_start": "e", "checkpoint": "c", "outside": ".",
}  # fmt: skip
_APART = {
    "warm_up": "warm-up", "epoch_start": "first step of an epoch", "recompiled": "compiled again",
    "profiled": "a profiler at work", "uneven": "batches skipped or fetched ahead", "checkpoint": "with a "
    "checkpoint", "cut": "end not seen", "failed": "ended by an error",
    "validation": "validation", "between": "between steps",
}  # fmt: skip
#: Parts of the model that are shown.
_MOST_LAYERS = 12
#: From these shares of the step, waiting for data is a red flag to people of the field.
_RED_FLAGS = (0.3, 0.2)


def as_text(run_folder: Path) -> str:
    """Return what limits a training and where its time went; for any folder whose unit is `step`.

    Args:
        run_folder: As `headrace train` or `headrace.train.profile` wrote it; may be that of a killed run.
    """
    from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training
    from headrace.runs.reader import read_run

    analysis = TrainingAnalysis(read_run(run_folder))
    return analysis_text(analysis, diagnose_training(analysis))


def analysis_text(analysis: TrainingAnalysis, diagnosed: DiagnosisDocument) -> str:
    """Return the verdict, and below it where the time went."""
    from headrace.cli.diagnosis_text import as_text as diagnosis_text

    document = analysis.document
    without = {"warnings": (), "distrust": ()}  # the diagnosis has them
    return f"{diagnosis_text(diagnosed)}\n{profile_text(msgspec.structs.replace(document, **without))}"


def profile_text(document: TrainingDocument) -> str:
    """Return where the time went."""
    parts: list[list[str]] = []
    if document.distrust:
        parts.append(wrap_lines([f"UNTRUSTED: {'; '.join(document.distrust)}"]))
    if not document.ranks:
        parts.append(["No training step was recorded."])
    for rank in document.ranks[:1]:
        parts += [part for part in _rank(document, rank) if part]
    if len(document.ranks) > 1:
        parts.append(_ranks(document.ranks))
    parts += ranks_text(document.together)
    parts.append(wrap_lines(_not_measured(document.ranks)))
    parts.append(wrap_lines([f"warning: {text}" for text in document.warnings]))
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _rank(document: TrainingDocument, rank: RankProfile) -> list[list[str]]:
    return [
        wrap_lines(_head(document, rank)),
        _bar(rank.phases),
        _phases(rank.phases),
        wrap_lines(_waiting(rank)),
        _layers(rank.layers),
        _loading(rank.loading),
        memory_text(rank.memory),
        *([] if rank.trace is None else trace_text(rank.trace)),
        wrap_lines(_apart(rank)),
    ]


def _head(document: TrainingDocument, rank: RankProfile) -> list[str]:
    lines = [f"{document.pipeline}: {pluralize(rank.steps, 'step')} in {format_duration(_duration(document, rank))}"]
    if len(document.ranks) > 1:
        lines[0] += f"; rank {rank.rank} of {len(document.ranks)}, all ranks below"
    step = rank.step
    if step.count:
        lines.append(
            f"A step takes {format_duration(step.median)} in the middle (mean {format_duration(step.mean)}, "
            f"p95 {format_duration(step.p95)}, p99 {format_duration(step.p99)}; {pluralize(step.count, 'plain step')})"
        )
    rate = rank.samples_per_second
    whose = f" of rank {rank.rank}" if len(document.ranks) > 1 else ""
    learnt = "" if rate is None else f", {format_rate(rate)[:-2]} samples/s{whose} with the turns of epochs"
    if rank.metered_steps is not None:
        lines.append(
            f"CPU time was read in {rank.metered_steps:,} of them, which stand for the others: steps are short"
        )
    if rank.clock:
        lines.append(
            f"Phases are by the clock of {rank.clock}; the training thread launches their work, and runs ahead"
        )
    if not document.window:
        lines.append(f"Steps are {rank.steps_share:.0%} of the time{learnt}")
    return lines


def _duration(document: TrainingDocument, rank: RankProfile) -> float:
    """Return how long it lasted; of traces with pauses between them, how long what they hold did."""
    return rank.total_seconds * rank.steps_share if document.window else rank.total_seconds


def _bar(phases: Sequence[PhaseTime]) -> list[str]:
    """Return the step as one line of letters, and what they mean."""
    bar, legend, done, drawn = "", [], 0.0, 0
    for phase in phases:
        done += phase.share
        letter, end = _LETTERS[phase.phase], round(done * _BAR)
        if end > drawn:
            bar += letter * (end - drawn)
            legend.append(f"{letter} {phase.phase}")
            drawn = end
    return [f"|{bar}|", *wrap_lines(["  " + ", ".join(legend)])] if bar else []


def _phases(phases: Sequence[PhaseTime]) -> list[str]:
    has_device = any(one.host_seconds is not None for one in phases)
    rows = [
        (
            one.phase,
            format_duration(one.seconds),
            f"{one.share:.1%}",
            format_duration(one.cpu_seconds),
            format_duration(one.run_delay_seconds),
            format_duration(one.blocked_seconds),
            format_duration(one.p95_seconds),
            *([format_duration(one.host_seconds)] if has_device else []),
        )
        for one in phases
    ]
    head = (
        "phase",
        "mean",
        "of step",
        "= cpu",
        "+ run delay",
        "+ blocked",
        "p95",
        *(["in the host"] if has_device else []),
    )
    return align_columns([head, *rows]) if rows else []


def _layers(layers: Sequence[LayerTime]) -> list[str]:
    """Return the parts of the model that take most of its time."""
    compared, costs = layer_costs(layers)
    total = sum(costs)
    by_cost = sorted(zip(costs, layers, strict=True), key=lambda one: -one[0])[:_MOST_LAYERS]
    rows = [
        (
            one.name, one.module, format_duration(one.forward_seconds), format_duration(one.backward_seconds),
            f"{cost / total:.0%}", f"{one.parameters:,}",
        )
        for cost, one in (by_cost if total else [])
    ]  # fmt: skip
    if not rows:
        return []
    more = [f"and {len(layers) - len(rows)} more; --json has all"] if len(layers) > len(rows) else []
    head = ("part of the model", "class", "forward", "backward", f"of {compared}", "parameters")
    return [*align_columns([head, *rows], num_left=2), *more]


def _waiting(rank: RankProfile) -> list[str]:
    share = next((one.share for one in rank.phases if one.phase == "wait"), 0.0)
    flag = next((one for one in _RED_FLAGS if share >= one), None)
    return [f"Red flag: waiting for data is {share:.0%} of the step, more than {flag:.0%}"] if flag else []


def _loading(loading: LoadingProfile | None) -> list[str]:
    if loading is None:
        return []
    where = pluralize(loading.workers, "worker") if loading.workers else "the training thread"
    busy = "" if loading.busy_share is None else f"; workers are busy {loading.busy_share:.0%} of the time"
    head = (
        f"Loading a batch takes {format_duration(loading.seconds)} (median {format_duration(loading.median_seconds)}, "
        f"p95 {format_duration(loading.p95_seconds)}) in {where}{busy}"
    )
    rows = [
        (
            one.work,
            format_duration(one.seconds),
            format_duration(one.cpu_seconds),
            format_duration(one.run_delay_seconds),
            format_duration(one.blocked_seconds),
        )
        for one in loading.work
    ]
    table = align_columns([("work", "mean of a batch", "= cpu", "+ run delay", "+ blocked"), *rows])
    return [*wrap_lines([head + _headroom(loading.headroom)]), *table]


def _headroom(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return (
        f"; the model may become {ratio:.1f} times faster before that limits" if ratio >= 1 else "; that limits already"
    )


def _apart(rank: RankProfile) -> list[str]:
    if not rank.apart:
        return []
    rows = [(_APART.get(one.what, one.what), f"{one.count:,}", format_duration(one.seconds)) for one in rank.apart]
    lines = ["Not averaged with these steps:", *(f"  {line}" for line in align_columns(rows))]
    if rank.checkpoints:
        lines.append(f"{pluralize(rank.checkpoints, 'checkpoint')} took {format_duration(rank.checkpoint_seconds)}")
    return lines


def _not_measured(ranks: Sequence[RankProfile]) -> list[str]:
    """Return what was not measured, and why: once, whatever the number of ranks that say it."""
    found: dict[str, str] = {}
    for one in ranks:
        found |= {} if one.about is None else one.about.not_measured
    return [f"not measured: {what}: {why}" for what, why in sorted(found.items())]


def _ranks(ranks: Sequence[RankProfile]) -> list[str]:
    rows = [
        (
            str(one.rank),
            f"{one.steps:,}",
            format_duration(one.step.median),
            *(_seconds_of(one, phase) for phase in ("wait", "forward", "backward", "exchange")),
        )
        for one in ranks
    ]
    return align_columns([("rank", "steps", "step", "wait", "forward", "backward", "exchange"), *rows])


def _seconds_of(rank: RankProfile, phase: str) -> str:
    return format_duration(next((one.seconds for one in rank.phases if one.phase == phase), 0.0))

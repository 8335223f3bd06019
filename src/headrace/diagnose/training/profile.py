"""Makes the profile of a training from its run folder: step, phases, what is apart, and what loading costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from headrace.base.documents import convert_document
from headrace.base.formatting import pluralize
from headrace.diagnose.training.course import course_of, epochs_of
from headrace.diagnose.training.loading import loading_profile
from headrace.diagnose.training.memory import memory_profile
from headrace.diagnose.training.rate import find_rate
from headrace.diagnose.training.selection import Selection, select
from headrace.diagnose.training.steps import Array, RankSteps, Times, read_steps
from headrace.diagnose.training.together import describe_together
from headrace.diagnose.training.trust import check_training, read_process
from headrace.runs.formats.training import TrainingProcess
from headrace.runs.formats.training_profile import Apart, LayerTime, PhaseTime, RankProfile, Spread, TrainingDocument
from headrace.runs.formats.training_trace import trace_record
from headrace.runs.reader import Run
from headrace.runs.run_folder import RunInfo, headrace_version
from headrace.runs.training_phases import Phase

#: Programs that start a script on each rank, as `headrace train` was given them.
_LAUNCHERS = frozenset(
    {
        "torchrun",
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate",
        "accelerate.commands.launch",
        "deepspeed",
    }
)

__all__ = ["describe_training", "mean_of", "read_process", "set_forks_apart", "training_document"]


def training_document(run: Run) -> TrainingDocument:
    """Return where the time of a training went.

    Args:
        run: Whose `info.unit` is `step`. Without any recorded step the document has no ranks.
    """
    return describe_training(run, *set_forks_apart(run, read_steps(run)))


def set_forks_apart(run: Run, ranks: list[RankSteps]) -> tuple[list[RankSteps], list[RankSteps]]:
    """Return the processes that train together, and those that were forked from one of them and train for themselves.

    A child of a process that trains has that one's rank, unless it joined a group of its own.
    """
    about: dict[tuple[str, Any], TrainingProcess | None]
    about = {(one.host, one.process): read_process(run.path, one.host, one.process) for one in ranks}

    def is_fork(one: RankSteps) -> bool:
        own = about[one.host, one.process]
        number = None if own is None else own.details.get("forked_from")
        parent = about.get((one.host, number)) if isinstance(number, int) else None
        if own is None or parent is None:
            return False
        return (own.rank, own.world_size) == (parent.rank, parent.world_size)

    forks = [one for one in ranks if is_fork(one)]
    return [one for one in ranks if not any(one is fork for fork in forks)], forks


def describe_training(run: Run, ranks: list[RankSteps], forks: Sequence[RankSteps] = ()) -> TrainingDocument:
    """Return the same where the steps were read already.

    Args:
        run: The folder.
        ranks: What it holds.
        forks: Processes that train for themselves: in no figure, but said.
    """
    about = [read_process(run.path, one.host, one.process) for one in ranks]
    checked = check_training(run, ranks, about)
    apart = tuple(
        f"process {one.process} was forked from one that trains, and trained {pluralize(len(one.steps), 'step')} for itself: "
        "it is no rank, and in no figure"
        for one in forks
    )
    return TrainingDocument(
        run=run.path.resolve().name,
        headrace_version=headrace_version(),
        pipeline=_name_script(run.info),
        status=run.info.status,
        num_cores=run.info.hardware.num_cores,
        ranks=tuple(
            _describe(
                rank, process, run.info.hardware.num_cores / _num_here(ranks, rank), run.info.hardware.memory_bytes
            )
            for rank, process in zip(ranks, about, strict=True)
        ),
        together=describe_together(run, ranks, [one for one in about if one is not None]),
        trusted=not checked.distrust,
        distrust=checked.distrust,
        unchecked=checked.unchecked,
        warnings=(*apart, *checked.warnings),
        window=run.info.window,
    )


def _num_here(ranks: list[RankSteps], rank: RankSteps) -> int:
    """Return how many processes that train share the cores of one of them."""
    return sum(one.host == rank.host for one in ranks)


def _describe(
    rank: RankSteps, about: TrainingProcess | None, num_cores: float, memory_bytes: int | None
) -> RankProfile:
    steps, selection = rank.steps, select(rank.steps)
    plain = selection.plain
    total = _total_seconds(rank)
    seconds = float(steps.wall[plain].sum())
    checkpoints = [
        times.wall
        for stretches in (steps, rank.validation, rank.between)
        if (times := stretches.phases.get(Phase.CHECKPOINT)) is not None
    ]
    return RankProfile(
        rank=rank.rank,
        host=rank.host,
        process=rank.process,
        steps=len(steps),
        step=spread_of(steps.wall[plain]),
        samples_per_second=(find_rate(rank) or None) if steps.samples.any() else None,
        total_seconds=total,
        plain_share=seconds / total if total else 0.0,
        steps_share=float(steps.wall.sum()) / total if total else 0.0,
        phases=_phases(rank, plain),
        apart=_apart(rank, selection),
        checkpoints=sum(int((wall > 0).sum()) for wall in checkpoints),
        checkpoint_seconds=float(sum(wall.sum() for wall in checkpoints)),
        epoch_start_seconds=_epoch_start_seconds(rank, selection),
        loading=loading_profile(rank, plain, about, num_cores),
        lines=_lines(about),
        epochs=epochs_of(rank),
        course=course_of(steps),
        about=about,
        layers=_layers(about),
        memory=memory_profile(about, memory_bytes),
        metered_steps=steps.num_metered,
        clock=steps.clock,
        trace=None if about is None else trace_record(about.details),
    )


def _layers(about: TrainingProcess | None) -> tuple[LayerTime, ...]:
    rows = [] if about is None else about.details.get("layers", [])
    try:
        return tuple(
            convert_document(dict(zip(LayerTime.__struct_fields__, row, strict=True)), LayerTime) for row in rows
        )
    except (msgspec.ValidationError, TypeError, ValueError):  # a file that another program wrote
        return ()


def spread_of(seconds: Array) -> Spread:
    """Return how durations are spread."""
    if not len(seconds):
        return Spread(count=0, mean=None, median=None, p95=None, p99=None)
    median, p95, p99 = (float(one) for one in np.percentile(seconds, [50, 95, 99]))
    return Spread(count=len(seconds), mean=float(seconds.mean()), median=median, p95=p95, p99=p99)


def mean_of(values: Array) -> float | None:
    """Return the mean of what was measured; None where nothing was."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _phases(rank: RankSteps, plain: Array) -> tuple[PhaseTime, ...]:
    if not plain.any():
        return ()
    step = float(rank.steps.wall[plain].mean())
    found = []
    for phase in Phase:
        times = rank.steps.phases.get(phase)
        host = rank.steps.host_walls.get(phase)
        if times is not None and (times.wall[plain].any() or (host is not None and host[plain].any())):
            found.append(_phase(phase, times, plain, step, host))
    return tuple(found)


def _phase(phase: Phase, times: Times, plain: Array, step: float, host: Array | None) -> PhaseTime:
    wall = times.wall[plain]
    return PhaseTime(
        phase=phase,
        seconds=float(wall.mean()),
        share=float(wall.mean()) / step if step else 0.0,
        p95_seconds=float(np.percentile(wall, 95)),
        cpu_seconds=_measured(times.cpu[plain], wall),
        run_delay_seconds=_measured(times.run_delay[plain], wall),
        blocked_seconds=_measured(times.blocked[plain], wall),
        host_seconds=None if host is None else float(host[plain].mean()),
    )


def _measured(values: Array, wall: Array) -> float | None:
    """Return the mean, steps without the phase being 0; None where nothing was measured in those that have it."""
    return mean_of(values) if np.isfinite(values[wall > 0]).any() else None


def _apart(rank: RankSteps, selection: Selection) -> tuple[Apart, ...]:
    found = [
        Apart(what=what, count=int(mask.sum()), seconds=float(rank.steps.wall[mask].sum()))
        for what, mask in selection.apart().items()
    ]
    found += [
        Apart(what=str(stretches.unit), count=len(stretches), seconds=float(stretches.wall.sum()))
        for stretches in (rank.validation, rank.between)
    ]
    return tuple(one for one in found if one.count)


def _total_seconds(rank: RankSteps) -> float:
    stretches = [one for one in (rank.steps, rank.validation, rank.between) if len(one)]
    began = min(float(one.started.min()) for one in stretches)
    return max(float((one.started + one.wall).max()) for one in stretches) - began


def _epoch_start_seconds(rank: RankSteps, selection: Selection) -> float:
    """Return what turns of epochs cost: workers that start, and waits that are longer than those of plain steps."""
    starts = 0.0
    for stretches in (rank.steps, rank.validation, rank.between):
        times = stretches.phases.get(Phase.EPOCH_START)
        starts += 0.0 if times is None else float(times.wall.sum())
    wait = rank.steps.phases.get(Phase.WAIT)
    if wait is None or not selection.epoch_start.any():
        return starts
    usual = float(np.median(wait.wall[selection.plain])) if selection.plain.any() else 0.0
    return starts + float(np.maximum(wait.wall[selection.epoch_start] - usual, 0.0).sum())


def _name_script(info: RunInfo) -> str:
    """Return what trained; of a launcher the script that it started, and its own name."""
    started = next((word for word in info.options if word.endswith(".py")), None)
    return info.pipeline if started is None or info.pipeline not in _LAUNCHERS else f"{started} ({info.pipeline})"


def _lines(about: TrainingProcess | None) -> dict[str, tuple[tuple[str, float], ...]]:
    found = {} if about is None else about.details.get("lines", {})
    try:
        return {str(phase): tuple((str(line), float(share)) for line, share in rows) for phase, rows in found.items()}
    except (AttributeError, TypeError, ValueError):  # a file that another program wrote
        return {}

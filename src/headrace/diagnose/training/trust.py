"""Whether the figures of a training can be believed: identities that must hold, and what is missing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from headrace.base.documents import decode_document
from headrace.base.formatting import pluralize
from headrace.diagnose.training.steps import RankSteps, Stretches
from headrace.runs.contained_files import own_file
from headrace.runs.formats.training import FOLDER, TrainingProcess, process_file
from headrace.runs.reader import Run
from headrace.runs.span_files import are_files_as_written
from headrace.runs.training_phases import LoaderWork, Stretch

#: By how much of a step its phases may miss it.
PHASES_MISS = 0.001
#: By how much of a phase CPU time and run delay may exceed it: they are other clocks.
CLOCKS_MISS = 0.03
#: Phases below this share of the training are too short for the clocks' own resolution, and so is what they may be missed by: a
#: thread that loses its core between the readings of two clocks has a delay in one phase, and the time for it in the next.
_WORTH_CHECKING = 0.01
#: Times are kept as seconds since the run began, in floating point.
_CLOCK_SECONDS = 1e-5
#: Processes that did not end their recording, named one by one.
_MOST_NAMED = 8
_NAMES = {Stretch.STEP: "steps", Stretch.VALIDATION: "validations", Stretch.BETWEEN: "intervals between steps"}
_ONE = {Stretch.STEP: "step", Stretch.VALIDATION: "validation", Stretch.BETWEEN: "interval between steps"}


def lacks_end(process: TrainingProcess | None) -> bool:
    """Return whether a process was killed before it closed its recording, or still records.

    Args:
        process: What it said of itself; None: nothing.
    """
    return process is None or process.has_ended is False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the checks found, a sentence each."""

    distrust: tuple[str, ...]
    unchecked: tuple[str, ...]
    warnings: tuple[str, ...]


def read_process(run: Path, host: str, process: int) -> TrainingProcess | None:
    """Return what a process said of itself; None where it did not, or the file is damaged."""
    return read_process_file(run, process_file(run, host, process))


def read_process_file(run: Path, file: Path) -> TrainingProcess | None:
    """Return the same of a file of a run folder."""
    try:
        return decode_document(own_file(run, file).read_bytes(), TrainingProcess)
    except (OSError, ValueError, msgspec.DecodeError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """What is said of processes that did not end their recording."""

    distrust: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check_training(run: Run, ranks: Sequence[RankSteps], about: Sequence[TrainingProcess | None]) -> Checked:
    """Check what was recorded.

    Args:
        run: The folder.
        ranks: What it holds.
        about: What each process said of itself, in the same order; None where it did not.
    """
    distrust: list[str] = []
    unchecked: list[str] = []
    for rank, process in zip(ranks, about, strict=True):
        distrust += _check_phases(rank) + _check_clocks(rank, unchecked) + _check_batches(rank) + _check_work(rank)
        if (negative := int((rank.steps.samples < 0).sum())) > 0:
            distrust.append(
                f"{pluralize(negative, 'step')} of rank {rank.rank} have fewer than 0 samples: the spans were edited"
            )
        if not run.info.window:  # of some time only, the steps that others marked are numbered as these did
            distrust += _check_numbers(rank, process) + _check_course(rank) + _check_files(run, process)
    lost = abs(run.info.lost_spans) + sum(abs(one.lost_spans) for one in about if one is not None)
    if lost:
        distrust.append(f"{pluralize(lost, 'span')} could not be written: steps are missing or not whole")
    if not run.info.window:
        distrust += _check_ranks(ranks, about) + describe_lost(run, ranks)
    warnings = list(run.info.warnings) if run.info.window else []
    warnings += [text for text in run.problems if "spans could not be written" not in text]
    warnings += _missing_words(run, ranks, about)
    ends = _Ends() if run.info.window else _check_ends(ranks, about, unchecked)
    distrust += ends.distrust
    warnings += ends.warnings
    return Checked(distrust=tuple(distrust), unchecked=tuple(unchecked), warnings=tuple(warnings))


def describe_lost(run: Run, ranks: Sequence[RankSteps]) -> list[str]:
    """Name processes that trained, as they say, of which no step is there: a disk was full, or files are lost."""
    known = {process_file(run.path, one.host, one.process) for one in ranks}
    found = []
    for file in sorted((run.path / FOLDER).glob("*.json")):
        process = None if file in known else read_process_file(run.path, file)
        if process is not None and process.steps > 0 and process.details.get("forked_from") is None:
            lost = process.lost_spans
            why = (
                f"{pluralize(lost, 'span')} could not be written" if lost else "it was killed before they were written"
            )
            found.append(
                f"no step of process {process.process} is in the run folder, and it made {process.steps:,} or more: {why}, or "
                "files of spans are lost"
            )
    return found


def _missing_words(run: Run, ranks: Sequence[RankSteps], about: Sequence[TrainingProcess | None]) -> list[str]:
    """Say of which processes nothing is known but their spans, and whether that is a file's fault."""
    silent = [rank for rank, process in zip(ranks, about, strict=True) if process is None]
    files = [process_file(run.path, rank.host, rank.process) for rank in silent]
    found = [
        f"{file} cannot be read: it is damaged, or of another version; loaders, threads and the model of that process are "
        "not known, its spans are there"
        for file in files
        if file.is_file()
    ]
    if count := len(files) - len(found):
        found.append(f"{count} of {len(ranks)} processes did not live to say what they trained; their spans are there")
    return found


def _check_phases(rank: RankSteps) -> list[str]:
    """Phases have no gap and do not overlap: their sum is the step, and so is the sum of their CPU time."""
    found = []
    for stretches in (rank.steps, rank.validation, rank.between):
        wall = stretches.wall
        total = sum((times.wall for times in stretches.phases.values()), np.zeros(len(wall)))
        off = np.abs(total - wall) > PHASES_MISS * wall + 1e-9
        if off.any():
            worst = float(np.max(np.abs(total - wall)[off] / np.maximum(wall[off], 1e-9)))
            who = f"the phases of {_count(stretches, int(off.sum()))} of rank {rank.rank}"
            found.append(f"{who} miss the {stretches.unit} by up to {worst:.1%}; expected at most {PHASES_MISS:.1%}")
        if num_missed := int((stretches.clocks_missed > _CLOCK_SECONDS).sum()):
            found.append(
                f"CPU time or run delay of {_count(stretches, num_missed)} of rank {rank.rank} is not the sum of that of their "
                "phases: spans were lost or edited"
            )
    return found


def _count(stretches: Stretches, count: int) -> str:
    return f"{count:,} {(_ONE if count == 1 else _NAMES)[stretches.unit]}"


def _check_clocks(rank: RankSteps, unchecked: list[str]) -> list[str]:
    """CPU time and run delay are parts of a phase, so they cannot be more than it."""
    if all(np.isnan(times.cpu).all() for times in rank.steps.phases.values()):
        unchecked.append(f"CPU time in rank {rank.rank} was not measured")
        return []
    found, whole = [], float(rank.steps.wall.sum())
    read = np.concatenate(
        [times.cpu[(times.wall > 0) & np.isfinite(times.cpu)] for times in rank.steps.phases.values()]
    )
    if len(read) and not read.any():
        found.append(f"the steps of rank {rank.rank} have no CPU time at all, in {whole:.3g} s: the spans were edited")
    for phase, times in rank.steps.phases.items():
        wall = float(times.wall.sum())
        if wall < _WORTH_CHECKING * whole:
            continue
        used = float(np.nansum(times.cpu) + np.nansum(times.run_delay))
        if np.isnan(times.cpu).all():
            unchecked.append(f"CPU time of {phase} in rank {rank.rank} was not measured")
        elif used > (1 + CLOCKS_MISS) * wall + _WORTH_CHECKING * whole:
            found.append(
                f"CPU time and run delay of {phase} in rank {rank.rank} are {used / wall:.0%} of the phase; expected at most "
                f"{1 + CLOCKS_MISS:.0%}"
            )
    return found


def _check_batches(rank: RankSteps) -> list[str]:
    """A batch is read, made of its items and collated without a gap, then sent: its parts are the time until it was ready."""
    passage, work = rank.batches.passage, rank.batches.work
    if passage is None or not {LoaderWork.ITEMS, LoaderWork.COLLATE} <= set(work):
        return []
    made, took = work[LoaderWork.ITEMS].wall + work[LoaderWork.COLLATE].wall, passage.ready - passage.begun
    off = np.abs(made - took) > PHASES_MISS * took + _CLOCK_SECONDS
    off |= passage.ready > passage.taken + _CLOCK_SECONDS
    if not off.any():
        return []
    worst = int(np.argmax(np.abs(made - took)))
    who = f"the times of {off.sum():,} of {len(off):,} batches of rank {rank.rank} contradict each other"
    one = f"one has {made[worst]:.3g} s for items and collating, and was ready {took[worst]:.3g} s after it was begun"
    return [f"{who}: {one}; expected the same, and none that is used before it is ready"]


def _check_work(rank: RankSteps) -> list[str]:
    """A batch is used by a step that is there, and comes while it lasts; loading it computes no longer than it takes."""
    batches, found = rank.batches, []
    used = batches.step >= 0
    place = np.searchsorted(rank.steps.number, batches.step)  # steps are numbered in order of time
    place = np.minimum(place, len(rank.steps) - 1)
    lost = used & (rank.steps.number[place] != batches.step)
    if batches.passage is not None:
        taken = batches.passage.taken
        lost |= used & (
            (taken < rank.steps.started[place] - _CLOCK_SECONDS) | (taken > rank.steps.ended[place] + _CLOCK_SECONDS)
        )
    if lost.any():
        found.append(
            f"{lost.sum():,} of {len(lost):,} batches of rank {rank.rank} came at a time at which the step that used them was "
            "not in progress, or is not there"
        )
    for work, times in batches.work.items():
        wall, computed = float(times.wall.sum()), float(np.nansum(times.cpu) + np.nansum(times.run_delay))
        if work is not LoaderWork.SEND and computed > (1 + CLOCKS_MISS) * wall + _CLOCK_SECONDS * len(batches):
            found.append(
                f"CPU time and run delay of {work} of the batches of rank {rank.rank} are {computed / max(wall, 1e-9):.0%} of "
                f"what it took; expected at most {1 + CLOCKS_MISS:.0%}"
            )
    return found


def _check_course(rank: RankSteps) -> list[str]:
    """One stretch begins where the one before ends: the training thread is always in one of them."""
    kinds = [one for one in (rank.steps, rank.validation, rank.between) if len(one)]
    began, ended = np.concatenate([one.started for one in kinds]), np.concatenate([one.ended for one in kinds])
    order = np.argsort(began, kind="stable")
    gaps = began[order][1:] - ended[order][:-1]
    off = np.abs(gaps) > PHASES_MISS * (ended - began)[order][:-1] + _CLOCK_SECONDS
    if not off.any():
        return []
    worst = float(gaps[np.argmax(np.abs(gaps))])
    when = f"up to {abs(worst):.3g} s {'later' if worst > 0 else 'before that'}"
    who = f"{pluralize(int(off.sum()), 'time')} a step, a validation or an interval between steps of rank {rank.rank}"
    return [f"{who} does not begin where the one before it ended, but {when}: spans are lost, or were edited"]


def _check_numbers(rank: RankSteps, process: TrainingProcess | None) -> list[str]:
    """Stretches are numbered from 0, without holes, and the process counted the steps that it ended.

    Args:
        rank: What is there.
        process: What it says of itself; of one that was killed it says fewer steps than there are.
    """
    found, num_said = [], 0 if process is None else process.steps
    for stretches in (rank.steps, rank.validation, rank.between):
        number = stretches.number
        last_said = num_said if stretches.unit is Stretch.STEP else 0
        expected = max(int(number.max()) + 1 if len(number) else 0, last_said)
        missing = expected - len(np.unique(number))
        if missing > 0:
            found.append(
                f"{missing:,} of {expected:,} {_NAMES[stretches.unit]} of rank {rank.rank} are not in the run folder: files of "
                "spans are lost or damaged"
            )
    if process is not None and process.has_ended and len(rank.steps) > num_said:
        found.append(
            f"rank {rank.rank} has {pluralize(len(rank.steps), 'step')}, and ended {num_said:,}, as it says: spans are "
            "those of another run, or were edited"
        )
    return found


def _check_files(run: Run, process: TrainingProcess | None) -> list[str]:
    """Files are as they were written: where all clocks are scaled alike, or phases change names, every sum is still right."""
    if process is None or not process.has_ended:
        return []
    said = process.details.get("span_files")
    if are_files_as_written(run.path, process.host, process.process, said) is not False:
        return []
    who = f"the files of spans of process {process.process}"
    return [f"{who} are not those that it wrote: edited, damaged or lost; record the training again"]


def _check_ranks(ranks: Sequence[RankSteps], about: Sequence[TrainingProcess | None]) -> list[str]:
    strangers = [
        f"process {rank.process} is rank {rank.rank} in its spans, and rank {process.rank} of {process.world_size} as it says"
        for rank, process in zip(ranks, about, strict=True)
        if process is not None and process.has_ended and not rank.rank == process.rank < process.world_size
    ]
    if strangers:
        return ["; ".join(strangers[:_MOST_NAMED])]
    world = max((one.world_size for one in about if one is not None), default=len(ranks))
    there = {one.rank for one in ranks if 0 <= one.rank < world}
    num_missing = world - len(there)
    if not ranks or num_missing <= 0:
        return []
    named = ", ".join(map(str, itertools.islice((one for one in range(world) if one not in there), 8)))
    return [
        f"{pluralize(num_missing, 'rank')} of {world} left no steps: {named}; record every rank into the same folder"
    ]


def _check_ends(ranks: Sequence[RankSteps], about: Sequence[TrainingProcess | None], unchecked: list[str]) -> _Ends:
    """A process that is killed loses its last steps, and others go on for a while: ranks then differ by that alone."""
    cut = [rank for rank, process in zip(ranks, about, strict=True) if lacks_end(process)]
    if not cut:
        return _Ends()
    named = ", ".join(
        f"process {one.process} of rank {one.rank} after {pluralize(len(one.steps), 'step')}"
        for one in cut[:_MOST_NAMED]
    )
    more = f" and {len(cut) - _MOST_NAMED} more" if len(cut) > _MOST_NAMED else ""
    said = (
        f"the recording has no end in {named}{more}: killed, still at work, or what it said at the end is lost; steps of about "
        "its last 2 s are missing"
    )
    lost = {one.rank for one in cut if not _was_started_again(one, ranks)}
    if lost and lost < {one.rank for one in ranks}:
        return _Ends(distrust=(f"{said}, and other ranks have theirs",))
    if lost:  # one, or all alike: what is there is whole
        unchecked.append("the end of the training")
    return _Ends(warnings=(said,))


def _was_started_again(one: RankSteps, ranks: Sequence[RankSteps]) -> bool:
    return any(other.rank == one.rank and other.steps.started[0] > one.steps.started[0] for other in ranks)

"""Runs one case: a pilot for the dose; profile, verdict and predictions, which are frozen; then the truth, by removal.

How this works: short trials choose a dose at which what is wrong makes a difference. The case is profiled once, with all its
faults. What is said of that run folder, and what is predicted from it, goes to a file before anything else runs. Then short
blocks run in turn, without a profiler: the pipeline as it is, without each of its faults, and with each change made. What
counts are ratios to the block of the same round.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.foreign_load import ForeignLoad
from benchmarks.truth.changes import Asked, draw_changes
from benchmarks.truth.faults import own_work
from benchmarks.truth.grammar import Case
from benchmarks.truth.judging import FrozenCase, freeze, rate_of
from benchmarks.truth.pilot import find_dose, is_hopeless
from benchmarks.truth.program import machine_of, pipeline_of, plan_of
from benchmarks.truth.rivals import Rivals
from benchmarks.truth.rounds import AS_IT_IS, measure_gains
from benchmarks.truth.rows import DISTURBING_CORES, Experimented, Row, Said, append
from benchmarks.truth.spec import Spec
from benchmarks.truth.surroundings import stop_services
from headrace.base.errors import HeadraceError
from headrace.compare.blocks import quiet
from headrace.profiler.experiment.running import add_experiment
from headrace.profiler.profile import profile

FROZEN = "frozen.jsonl"
#: Profiles of a case at most, until one was not disturbed.
_PROFILES = 3


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run of a case."""

    pilot_seconds: float = 0.4
    """Of a block of a pilot."""
    profile_seconds: float = 4.0
    block_seconds: float = 0.8
    """Rates of parts of a run scatter twice as much at 0.4 s as at 0.8 s, and a block of either costs a second more."""
    most_rounds: int = 12
    """Of blocks in turn, where something is not clear before."""
    most_round_seconds: float = 40.0
    """No such round begins after so long."""
    changes: int = 1
    """Predictions."""
    experiment_seconds: float = 0.0
    """Of experiments with the running pipeline, after the profile; 0: none."""


class Phases:
    """Notes how long the parts of a case take.

    Attributes:
        seconds: {part: seconds}.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Note the length of a `with` block, also of one that fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - began


def run_case(case: Case, folder: Path, length: Length, *, keep: bool = False) -> Row:
    """Run a case and return what came of it; never raises for what a pipeline or a diagnosis does.

    Args:
        case: The case, as drawn.
        folder: Of the run folder, and of the file of what is frozen.
        length: How much is run.
        keep: Leave the run folder there.
    """
    row, phases = Row(case=case), Phases()
    began, problem = time.monotonic(), ""
    try:
        with ForeignLoad() as foreign, _quiet():
            row = _measure(case, folder, length, phases)
        row = msgspec.structs.replace(row, foreign=foreign.cores)
    except (HeadraceError, OSError, RuntimeError, ValueError) as error:
        # One case that this machine cannot run must not cost the others.
        problem = f"{type(error).__name__}: {error}"
    finally:
        stop_services()
    if not keep:
        _remove(run_folder_of(folder, case.seed))
    return msgspec.structs.replace(row, problem=problem, phases=phases.seconds, seconds=time.monotonic() - began)


def run_folder_of(folder: Path, seed: int) -> Path:
    """Return where the profile of a case is kept."""
    return folder / "runs" / f"{seed}"


def _measure(case: Case, folder: Path, length: Length, phases: Phases) -> Row:
    with phases.timed("pilot"):
        case, pilots = find_dose(case, length.pilot_seconds)
    if is_hopeless(case, pilots[-1]):
        return Row(case=case, pilots=pilots)
    run_folder = run_folder_of(folder, case.seed)
    with phases.timed("profile"):
        rivals = _profile(case, run_folder, length.profile_seconds)
    asked = draw_changes(case.spec, case.seed, length.changes)
    with phases.timed("diagnosis"):
        frozen = freeze(case.seed, run_folder, asked)
    append(folder / FROZEN, [frozen])
    experimented = None
    if length.experiment_seconds:
        with phases.timed("experiment"):
            experimented = _experiment(case, run_folder, asked, length.experiment_seconds, frozen)
        append(folder / FROZEN, [_with(frozen, experimented)])
    judged = [one for one in (frozen, experimented) if one is not None]
    with phases.timed("rounds"):
        measured = measure_gains(
            alternatives(case, asked, judged), length.block_seconds, length.most_rounds, length.most_round_seconds
        )
    return Row(
        case=case,
        pilots=pilots,
        said=frozen.said,
        predictions=frozen.predictions,
        throughput=rate_of(run_folder),
        rivals=rivals,
        experimented=experimented,
        truths=measured.truths,
        rates=measured.rates,
        rounds=measured.num_rounds,
    )


def _with(frozen: FrozenCase, experimented: Experimented) -> FrozenCase:
    return msgspec.structs.replace(
        frozen, said=experimented.said, predictions=experimented.predictions, is_experimented=True
    )


def _profile(case: Case, run_folder: Path, seconds: float) -> float:
    """Write the run folder of a case, again where others took much of the machine, and return how many cores they took."""
    for _ in range(_PROFILES):
        with machine_of(case.spec), Rivals() as rivals:
            result = profile(pipeline_of(case.spec, seconds), plan_of(case.spec), output=run_folder, force=True)
        if result.interrupted:
            raise KeyboardInterrupt
        if rivals.cores < DISTURBING_CORES:
            break
    return rivals.cores


def _experiment(
    case: Case, run_folder: Path, asked: Sequence[Asked], seconds: float, before: FrozenCase
) -> Experimented:
    """Do what `headrace profile --experiment` does after a profile, and return what is said and predicted then."""
    began, problem = time.monotonic(), ""
    try:
        with machine_of(case.spec):
            pipeline = pipeline_of(case.spec, 2 * seconds)
            add_experiment(pipeline, plan_of(case.spec), run_folder, lambda text: None, budget_seconds=seconds)
        after = freeze(case.seed, run_folder, asked)
    except HeadraceError as error:  # then a user has what the recording tells
        after, problem = before, f"{type(error).__name__}: {error}"
    return Experimented(
        said=after.said, predictions=after.predictions, seconds=time.monotonic() - began, problem=problem
    )


def alternatives(case: Case, asked: Sequence[Asked], frozen: Sequence[FrozenCase | Experimented]) -> dict[str, Spec]:
    """Return what is run in turn, by name: the pipeline as it is, cured, with a blamed stage halved, and changed."""
    found = {AS_IT_IS: case.spec}
    for number in range(len(case.planted)):
        found[f"cure {number}"] = case.without((number,))
    if not case.planted:
        found["arrivals"] = case.spec.with_arrivals(per_second=None)
    for one in frozen:
        found.update(_blamed(case, one.said))
    for number, change in enumerate(asked):
        if any(one.predictions[number].predicted is not None for one in frozen):
            found[f"change {number}"] = change.spec
    return found


def _blamed(case: Case, verdict: Said) -> Iterator[tuple[str, Spec]]:
    """Give the pipeline with half of the work of the stage that is blamed, where nobody planted anything there.

    What limited the pipeline before the fault may still do so more than the fault: then it is right to say that. Where the
    fault is work as well, the pipeline with half of that: to be rid of ten times the work gains more than half of anything.
    """
    first = verdict.first
    if first is None or first.stage is None or first.stage in {one.stage for one in case.planted} or not case.planted:
        return
    if first.stage in {stage.name for stage in case.spec.stages} and first.verdict in own_work(case.spec, first.stage):
        for name in (first.stage, *(one.stage for one in case.planted if one.is_work)):
            if repeats := case.spec.stage(name).part.inmost().whole("repeats", 0):
                yield f"halved {name}", case.spec.with_work(name, repeats=max(1, repeats // 2))


def _remove(folder: Path) -> None:
    if not folder.exists():
        return
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what a faulty pipeline has to say."""
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith("headrace")]
    before = [(logger, logger.level) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with quiet():
            yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


def commit() -> str:
    """Return the commit of this checkout, empty if there is none."""
    import subprocess

    found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=os.path.dirname(__file__))
    return found.stdout.strip()

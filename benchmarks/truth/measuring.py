"""Runs one case: profile, verdict and predictions, which are frozen; then the truth, by removal, in interleaved blocks.

How this works: a case is profiled once, with all its faults. What is said of that run folder, and what is predicted from it,
goes to a file before anything else runs. Then short blocks run in turn, without a profiler: the pipeline as it is, without each
of its faults, without any, and with each change made. What counts are ratios to the block of the same round.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.foreign_load import ForeignLoad
from benchmarks.truth.changes import Asked, draw_changes
from benchmarks.truth.faults import own_work
from benchmarks.truth.grammar import Case
from benchmarks.truth.program import machine_of, pipeline_of, plan_of
from benchmarks.truth.rivals import Rivals
from benchmarks.truth.rows import DISTURBING_CORES, Experimented, Frozen, Row, Said, Truth, append, said
from benchmarks.truth.spec import Spec
from benchmarks.truth.surroundings import stop_services
from headrace.base.errors import HeadraceError
from headrace.base.observer import Observer
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.compare.blocks import FEWEST_ITEMS, per_item, quiet
from headrace.compare.intervals import ALPHA, centre, paired_interval
from headrace.compare.sequential import Look
from headrace.compare.turns import Turns, take_turns
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.whatif import predict
from headrace.pipeline.execute import Measuring, run
from headrace.profiler.profile import profile
from headrace.runs.reader import read_run

FROZEN = "frozen.jsonl"
AS_IT_IS = "as it is"
#: Profiles of a case at most, until one was not disturbed.
_PROFILES = 3
#: A block that gives few results may take so many times as long.
_PATIENCE = 4


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run of a case."""

    profile_seconds: float = 4.0
    block_seconds: float = 0.7
    rounds: int = 6
    """Blocks of each alternative; fewer than six give no interval."""
    most_rounds: int = 9
    """Where what a cure gains is not clear after `rounds`."""
    changes: int = 2
    """Predictions."""
    experiment_seconds: float = 0.0
    """Of experiments with the running pipeline, after the profile; 0: none."""


class FrozenCase(msgspec.Struct, frozen=True, kw_only=True):
    """What was said and predicted of a case, before its truth was measured."""

    seed: int
    at_unix_seconds: float
    said: Said
    predictions: tuple[Frozen, ...]
    is_experimented: bool = False
    """After experiments with the running pipeline."""


def run_case(case: Case, folder: Path, length: Length, *, keep: bool = False) -> Row:
    """Run a case and return what came of it; never raises for what a pipeline or a diagnosis does.

    Args:
        case: The case.
        folder: Of the run folder, and of the file of what is frozen.
        length: How much is run.
        keep: Leave the run folder there.
    """
    row = Row(case=case)
    began = time.monotonic()
    try:
        with ForeignLoad() as foreign, _quiet():
            row = _measure(case, row, folder, length, keep=keep)
    except (HeadraceError, OSError, RuntimeError, ValueError) as error:
        # One case that this machine cannot run must not cost the others.
        return msgspec.structs.replace(
            row, problem=f"{type(error).__name__}: {error}", seconds=time.monotonic() - began
        )
    finally:
        stop_services()
    return msgspec.structs.replace(row, foreign=foreign.cores, seconds=time.monotonic() - began)


def _measure(case: Case, row: Row, folder: Path, length: Length, *, keep: bool) -> Row:
    run_folder = folder / "runs" / f"{case.seed}"
    rivals = _profile(case, run_folder, length.profile_seconds)
    asked = draw_changes(case.spec, case.seed, length.changes)
    frozen = freeze(case.seed, run_folder, asked)
    append(folder / FROZEN, [frozen])
    experimented = (
        _experiment(case, run_folder, asked, length.experiment_seconds) if length.experiment_seconds else None
    )
    if experimented is not None:
        again = msgspec.structs.replace(
            frozen, said=experimented.said, predictions=experimented.predictions, is_experimented=True
        )
        append(folder / FROZEN, [again])
    row = msgspec.structs.replace(
        row,
        said=frozen.said,
        predictions=frozen.predictions,
        throughput=_rate_of(run_folder),
        rivals=rivals,
        experimented=experimented,
    )
    names = alternatives(case, asked, [one for one in (frozen, experimented) if one is not None])
    rates = measure_in_turn(names, length)
    if not keep:
        _remove(run_folder)
    return msgspec.structs.replace(
        row,
        truths={name: _truth(rates, name) for name in names if name != AS_IT_IS and rates.pairs(AS_IT_IS, name)},
        rates={name: statistics.median(rates.of(name)) for name in names if rates.of(name)},
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


def freeze(seed: int, run_folder: Path, asked: Sequence[Asked | Frozen]) -> FrozenCase:
    """Return what a diagnosis says of a run folder, and what is predicted from it.

    Args:
        seed: Of the case.
        run_folder: Of its profile.
        asked: The changes; or what was predicted for them once, to predict it again.
    """
    said_of_it, analysis = _diagnose(run_folder)
    predictions = tuple(_predict(analysis, one) for one in asked)
    return FrozenCase(seed=seed, at_unix_seconds=time.time(), said=said_of_it, predictions=predictions)


def _experiment(case: Case, run_folder: Path, asked: Sequence[Asked], seconds: float) -> Experimented:
    """Do what `headrace profile --experiment` does after a profile, and return what is said and predicted then."""
    from headrace.profiler.experiment.running import add_experiment

    began = time.monotonic()
    with machine_of(case.spec):
        pipeline = pipeline_of(case.spec, 2 * seconds)
        add_experiment(pipeline, plan_of(case.spec), run_folder, lambda text: None, budget_seconds=seconds)
    frozen = freeze(case.seed, run_folder, asked)
    return Experimented(said=frozen.said, predictions=frozen.predictions, seconds=time.monotonic() - began)


def _diagnose(run_folder: Path) -> tuple[Said, Analysis | None]:
    analysis = None
    try:
        analysis = Analysis(read_run(run_folder))
        return said(diagnosis_document(analysis)), analysis
    except Exception as error:  # a diagnosis that fails is a miss with a reason
        return Said(first=None, problem=f"{type(error).__name__}: {error}"), analysis


def _predict(analysis: Analysis | None, asked: Asked | Frozen) -> Frozen:
    empty = Frozen(kind=asked.kind, says=asked.says, change=asked.change, predicted=None)
    if analysis is None:
        return msgspec.structs.replace(empty, refused="the run folder could not be read")
    try:
        document = predict(analysis.replay, asked.change)
    except HeadraceError as error:
        return msgspec.structs.replace(empty, refused=str(error))
    throughput = document.throughput
    return msgspec.structs.replace(
        empty, predicted=throughput.ratio, refused=throughput.refused, warnings=document.warnings
    )


def _rate_of(run_folder: Path) -> float | None:
    from headrace.diagnose.document import profile_document

    try:
        return profile_document(read_run(run_folder)).throughput
    except HeadraceError:
        return None


def alternatives(case: Case, asked: Sequence[Asked], frozen: Sequence[FrozenCase | Experimented]) -> dict[str, Spec]:
    """Return what is run in turn, by name: the pipeline as it is, cured, with a blamed stage halved, and changed."""
    found = {AS_IT_IS: case.spec}
    for number in range(len(case.planted)):
        found[f"cure {number}"] = case.without((number,))
    if len(case.planted) > 1:
        found["cure all"] = case.without(range(len(case.planted)))
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

    What limited the pipeline before the fault may still do so more than the fault: then it is right to say that.
    """
    first = verdict.first
    if first is None or first.stage is None or first.stage in {one.stage for one in case.planted} or not case.planted:
        return
    stages = {stage.name: stage for stage in case.spec.stages}
    if first.stage in stages and first.verdict in own_work(case.spec, first.stage):
        repeats = stages[first.stage].part.inmost().options.get("repeats")
        if repeats:
            yield f"halved {first.stage}", case.spec.with_work(first.stage, repeats=max(1, repeats // 2))


# --- blocks


class _Settled(Observer):
    """Notes when jobs were delivered, and ends the run some seconds after the second was: the first went ahead alone."""

    def __init__(self, seconds: float) -> None:
        self.at_seconds: list[float] = []
        self.is_over = threading.Event()
        self._seconds = seconds

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Note it."""
        if outcome.kind is not OutcomeKind.DELIVERED or self.is_over.is_set():
            return
        self.at_seconds.append(time.monotonic())
        if len(self.at_seconds) > FEWEST_ITEMS and self.at_seconds[-1] > self.at_seconds[1] + self._seconds:
            self.is_over.set()


def throughput(spec: Spec, seconds: float) -> float | None:
    """Run a pipeline once, without a profiler, and return its jobs per second in the steady part; None: too few to tell."""
    settled = _Settled(seconds)
    gc.collect()
    # What is inside when the time is over does not count, and is not waited for.
    plan = plan_of(spec).with_settings(["run.grace_seconds=0.01"])
    with machine_of(spec):
        result = run(
            pipeline_of(spec, _PATIENCE * seconds), plan, observers=[settled], stop=settled.is_over, checkpoint=False,
            measuring=Measuring(first_alone=True),
        )  # fmt: skip
    if result.interrupted and not settled.is_over.is_set():
        raise KeyboardInterrupt
    each_seconds = per_item(settled.at_seconds[1:])
    return None if each_seconds is None else 1 / each_seconds


def measure_in_turn(specs: Mapping[str, Spec], length: Length) -> Turns[float]:
    """Run alternatives in turn, and return their rates.

    Raises:
        KeyboardInterrupt: If the user wants no more.
    """
    sides: dict[str, Callable[[], float | None]] = {
        name: functools.partial(throughput, spec, length.block_seconds) for name, spec in specs.items()
    }

    def is_sure(turns: Turns[float]) -> bool:
        return all(_truth(turns, name).is_gain is not None for name in specs if name.startswith(("cure", "arrivals")))

    looks = [Look(rounds, ALPHA) for rounds in (length.rounds, length.most_rounds)]
    turns = take_turns(sides, looks, is_sure=is_sure)
    if turns.interrupted:
        raise KeyboardInterrupt
    return turns


def _truth(turns: Turns[float], name: str) -> Truth:
    """Return what an alternative gains, which may be anything where no pair of blocks gave rates."""
    differences = [math.log(after / before) for before, after in turns.pairs(AS_IT_IS, name)]
    if not differences:
        return Truth(ratio=1.0, low=0.0, high=1e9, pairs=0)
    mid, interval = centre(differences), paired_interval(differences)
    low, high = (min(differences), max(differences)) if interval is None else (interval.low, interval.high)
    return Truth(
        ratio=math.exp(mid), low=math.exp(min(low, mid)), high=math.exp(max(high, mid)), pairs=len(differences)
    )


def _remove(folder: Path) -> None:
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

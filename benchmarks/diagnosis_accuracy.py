"""Whether `headrace diagnose` names the right bottleneck: faults injected into real pipelines, and healthy runs.

    python -m benchmarks.diagnosis_accuracy --write             # all faults, 149 healthy runs; some 25 minutes
    python -m benchmarks.diagnosis_accuracy --quick             # a few of each, a smoke run
    python -m benchmarks.diagnosis_accuracy --only F8,F10       # these faults, without healthy runs; HEALTHY asks for those
    python -m benchmarks.diagnosis_accuracy --keep FOLDER       # keep the run folders ...
    python -m benchmarks.diagnosis_accuracy --rescore FOLDER    # ... and diagnose them again, without running anything

How this works: each fault of `benchmarks.faults` is injected into each pipeline shape that it applies to, twice and five
times as strong; one profiled run each, in a folder with a random name. Between them run the healthy bases, so that the cost of
a fault is a ratio to a base of the same minutes. Only faults that cost at least a tenth are scored; `verdicts_required` says
of what, and what is right. 1.2 times as strong goes into the detection curve. Healthy runs have work that comes slower than
they could do it, or a device that is kept fed: a verdict that names a fault there is a false alarm. A saturated base is not
healthy in this sense: its dominating stage is a bottleneck by design, and a diagnosis that names it is right. Where a device is
busy with a model file, its layers are measured too (`headrace profile --layers`), whatever was injected. A run during which
programs that it has not started used a quarter of a core or more has a second fault, and is not scored: have nothing else run.

Ctrl-C ends it with what was measured so far.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import multiprocessing
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import measure
from benchmarks.diagnosis_rows import Kept, RunKind, Score, as_text, diagnose, lines_of, summarize
from benchmarks.faults import FAULTS, SHAPES, Case, Fault, run_case
from benchmarks.foreign_load import ForeignLoad
from benchmarks.verdicts_required import NOT_INJECTED, REQUIRED
from headrace.base.errors import HeadraceError, Interrupted
from headrace.diagnose.document import profile_document
from headrace.profiler.post_run import add_layers
from headrace.runs.formats.profile import ProfileDocument, StageAccount
from headrace.runs.reader import read_run

#: Times as strong.
SCORED_DOSES = (2.0, 5.0)
CURVE_DOSE = 1.2
NUM_HEALTHY = 149
#: Runs between two of the base of the same shape: the machine's speed drifts.
RUNS_PER_BASE = 5
#: Shapes that a fault runs in, of those that it applies to; all of them would take too long.
SHAPES_PER_FAULT = 2
#: Those whose runs are long, and therefore few.
LONG = ("F40",)
#: Seconds of runs that show nothing in the usual time: few slow items of many.
SECONDS = {"F6": 8.0, "F15": 8.0}
#: Arrivals of healthy runs, as shares of what the base does.
LOADS = (0.25, 0.4, 0.55, 0.75)
#: Settings under which a shape is healthy too; each looks like some fault. A batch may wait 2 ms, which adds little to any
#: shape's latency; with 20 ms it was twice as long, and BATCH_DELAY right.
CONTROLS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "download_heavy": (
        (),
        ("run.ordered=true", "deliver.workers=1"),
        ("model.threads=2",),
        ("process.max_wait_seconds=0.002",),
    ),
    "decode_heavy": ((), ("run.ordered=true",), ("decode.executor=process", "decode.workers=2")),
    "python_preprocess": ((), ("preprocess.executor=process", "preprocess.workers=2")),
    "device_heavy": ((), ("run.ordered=true",), ("process.max_wait_seconds=0.002",)),
}
FED_SHAPE = "device_heavy"
#: Settings under which the fed device is busy all the same.
FED_CONTROLS = ((), ("run.ordered=true",))
#: Utilization of a device from which on the layers of its model are measured too, whatever was injected.
BUSY = 0.8
FAULT_SECONDS = 3.0
HEALTHY_SECONDS = 2.0
QUICK = ("F8", "F22", "F10")
INDEX = "index.jsonl"


# --- Which runs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Planned:
    """One run to come."""

    kind: RunKind
    shape: str
    fault: str = ""
    dose: float = 1.0
    """Of a healthy run: its arrivals as a share of what the base does; 1 where its device is kept fed."""
    settings: tuple[str, ...] = ()
    """Of a healthy run: where its Plan differs from that of the base."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for."""

    faults: Sequence[Fault]
    doses: Sequence[float]
    num_healthy: int
    shapes_per_fault: int = SHAPES_PER_FAULT
    is_quick: bool = False
    """With one base for each shape, and healthy runs in those shapes alone."""


def wanted(quick: bool, only: Sequence[str]) -> Wanted:
    """Return what to run.

    Raises:
        HeadraceError: If a name is not that of a fault.
    """
    unknown = [name for name in only if name not in FAULTS and name != "HEALTHY"]
    if unknown:
        raise HeadraceError(f"there is no fault {', '.join(unknown)}; there are {', '.join(FAULTS)}, and HEALTHY")
    if quick:
        names = [name for name in only if name in FAULTS] or list(QUICK)
        return Wanted([FAULTS[name] for name in names], SCORED_DOSES[:1], 2, 1, is_quick=True)
    if only:
        names = [name for name in only if name in FAULTS]
        num_healthy = NUM_HEALTHY if "HEALTHY" in only else 0
        return Wanted([FAULTS[name] for name in names], (CURVE_DOSE, *SCORED_DOSES), num_healthy, len(SHAPES))
    names = [name for name in FAULTS if name not in NOT_INJECTED]
    return Wanted([FAULTS[name] for name in names], (CURVE_DOSE, *SCORED_DOSES), NUM_HEALTHY)


def plan_runs(ask: Wanted) -> list[Planned]:
    """Return all runs, in order: shape by shape, with a base before, between and after; the healthy ones last."""
    by_shape: dict[str, list[Planned]] = defaultdict(list)
    for number, fault in enumerate(ask.faults):
        for shape, doses in _where(fault, number, ask):
            for dose in doses:
                by_shape[shape] += _runs_of(fault, shape, dose)
    if ask.num_healthy and not ask.is_quick:  # their arrivals follow from the base
        by_shape.update({shape: by_shape[shape] for shape in SHAPES})
    runs: list[Planned] = []
    for shape, faulty in by_shape.items():
        for start in range(0, max(1, len(faulty)), RUNS_PER_BASE):
            runs += [Planned("base", shape), *faulty[start : start + RUNS_PER_BASE]]
        if not ask.is_quick:
            runs.append(Planned("base", shape))
    return runs + _healthy_runs(ask.num_healthy, list(by_shape))


def _where(fault: Fault, number: int, ask: Wanted) -> Iterator[tuple[str, Sequence[float]]]:
    """Give shapes and doses; where not all shapes are taken, faults begin with different ones."""
    if fault.inject is None or fault.id in NOT_INJECTED:
        return
    shapes = fault.applies_to[:1] if fault.id in LONG else fault.applies_to
    count = min(ask.shapes_per_fault, len(shapes))
    chosen = [shapes[(number + step) % len(shapes)] for step in range(count)]
    for index, shape in enumerate(chosen):
        # One shape is enough for the detection curve.
        yield shape, [dose for dose in ask.doses if dose in SCORED_DOSES or (index == 0 and fault.id not in LONG)]


def _runs_of(fault: Fault, shape: str, dose: float) -> list[Planned]:
    runs = [Planned("fault", shape, fault.id, dose)]
    if REQUIRED[fault.id].costs == "latency":
        runs.append(Planned("fixed", shape, fault.id, dose))
    return runs


def _healthy_runs(number: int, shapes: Sequence[str]) -> list[Planned]:
    choices = [
        Planned("healthy", shape, dose=load, settings=settings)
        for load in LOADS
        for shape in shapes
        for settings in CONTROLS[shape]
    ]
    if FED_SHAPE in shapes:
        choices += [Planned("healthy", FED_SHAPE, settings=settings) for settings in FED_CONTROLS]
    runs = [choices[index % len(choices)] for index in range(number)]
    random.Random(0).shuffle(runs)
    return runs


def make_case(planned: Planned, capacity: dict[str, float]) -> Case:
    """Return the case of a run.

    Args:
        planned: The run.
        capacity: {shape: jobs per second of its base}; healthy runs need it.
    """
    case = SHAPES[planned.shape]()
    if planned.kind == "healthy":
        case = replace(case, seconds=HEALTHY_SECONDS).with_settings(*planned.settings)
        if planned.dose == 1:
            return case
        if planned.shape not in capacity:
            raise HeadraceError(f"no base of {planned.shape} was measured, so nothing is known of what it can do")
        return case.with_broker(rate_per_second=planned.dose * capacity[planned.shape])
    case = replace(case, seconds=SECONDS.get(planned.fault, FAULT_SECONDS))
    if planned.kind == "base":
        return case
    fault = FAULTS[planned.fault]
    case = fault.applied(case, planned.dose)
    if planned.kind == "fixed":
        if fault.fix is None:
            raise HeadraceError(f"{fault.id} has no remedy to measure its cost against")
        case = fault.fix(case)
    return case


# --- Running ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Bench:
    """Runs cases one after the other; nothing else goes on meanwhile, so they are diagnosed when all is over.

    Attributes:
        folder: Of the run folders, and of the index that says what they are.
        problems: {run: why it could not be run}.
    """

    folder: Path
    problems: dict[str, str] = field(default_factory=dict)
    _rates: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _num_kept: int = 0

    def run_all(self, runs: Sequence[Planned]) -> bool:
        """Run them; return whether the user ended it before the last."""
        began = time.monotonic()
        for done, planned in enumerate(runs):
            _say(f"{_progress(done, len(runs), time.monotonic() - began)} {_name(planned)}")
            try:
                self._run(planned)
            except (KeyboardInterrupt, Interrupted):
                _say("interrupted; what was measured so far follows")
                return True
            except (HeadraceError, OSError, RuntimeError) as error:
                # One case that this machine cannot run must not cost the others.
                self.problems[_name(planned)] = f"{type(error).__name__}: {error}"
                _say(f"    not run: {error}")
        return False

    def _run(self, planned: Planned) -> None:
        case = make_case(planned, {shape: statistics.median(rates) for shape, rates in self._rates.items()})
        name = secrets.token_hex(4)
        began = time.monotonic()
        with _quiet():
            with ForeignLoad() as foreign:
                run_case(case, self.folder / name)
            run = read_run(self.folder / name)
            if run.info.status == "interrupted":
                raise Interrupted("a run was interrupted")
            profile = profile_document(run)
            if case.broker is None and is_busy_with_a_model(profile):  # a queue cannot be read again
                _look_into_model(case, self.folder / name)
        if planned.kind == "base" and profile.throughput:
            self._rates[planned.shape].append(profile.throughput)
        kept = Kept(
            number=self._num_kept,
            kind=planned.kind,
            fault=planned.fault,
            shape=planned.shape,
            dose=planned.dose,
            folder=name,
            seconds=time.monotonic() - began,
            foreign_cores=foreign.cores,
            settings=planned.settings,
            device_is_fed=planned.kind == "healthy" and planned.dose == 1,
        )
        self._num_kept += 1
        with (self.folder / INDEX).open("ab") as index:
            index.write(msgspec.json.encode(kept) + b"\n")


def is_busy_with_a_model(profile: ProfileDocument) -> bool:
    """Return whether somebody who looks for the bottleneck would want to see the layers of this run's model."""
    if not any(variant.get("engine") == "onnx" for variant in profile.variants):
        return False
    return any(_busy(one) >= BUSY for one in profile.stages if one.kind == "device")


def _busy(stage: StageAccount) -> float:
    """Return a device's utilization in the steady part of the run, by the utilization law; 0 if it is not known."""
    batch = stage.batches.mean_size if stage.batches else 1.0
    return (stage.throughput or 0.0) * (stage.service.mean or 0.0) / batch / (stage.workers or 1)


def _look_into_model(case: Case, folder: Path) -> None:
    """Do what `headrace profile --layers` does after a run."""
    with case.opened() as pipeline:
        add_layers(pipeline, case.plan, folder, progress=lambda text: None, stop=lambda: False)


def _name(planned: Planned) -> str:
    mended = " mended" if planned.kind == "fixed" else ""
    return " ".join((f"{planned.fault or planned.kind}@{planned.shape} x{planned.dose:g}{mended}", *planned.settings))


def _progress(done: int, total: int, seconds: float) -> str:
    if not done:
        return f"[1/{total}]"
    left = seconds / done * (total - done)
    return (
        f"[{done + 1}/{total}, {left / 60:.0f} min left]" if left > 90 else f"[{done + 1}/{total}, {left:.0f} s left]"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what a faulty pipeline has to say."""
    loggers = [
        logging.getLogger("headrace"),
        *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict)),
    ]
    ours = {logger: logger.level for logger in loggers if logger.name.partition(".")[0] == "headrace"}
    for logger in ours:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in ours.items():
            logger.setLevel(level)


def measure_all(quick: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Run, or diagnose again what was kept, and return the benchmark's object."""
    if options.rescore is not None:
        return summarize(rescore(options.rescore, options.only))
    ask = wanted(quick, options.only)
    with contextlib.ExitStack() as stack:
        folder = options.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-runs-")))
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / INDEX).exists():
            raise HeadraceError(f"{folder} holds kept runs already; name another folder, or --rescore {folder}")
        bench = Bench(folder)
        interrupted = bench.run_all(plan_runs(ask))
        score = rescore(folder, [])
    skipped = {fault.id: f"needs {fault.needs}" for fault in ask.faults if fault.inject is None}
    return summarize(
        msgspec.structs.replace(score, skipped=skipped | bench.problems, interrupted=interrupted, quick=quick)
    )


# --- Again -----------------------------------------------------------------------------------------------------------


def rescore(folder: Path, only: Sequence[str]) -> Score:
    """Diagnose kept runs, on all cores, and say one line for each.

    Raises:
        HeadraceError: If the folder holds none.
    """
    try:
        lines = (folder / INDEX).read_bytes().splitlines()
    except OSError as error:
        raise HeadraceError(f"{folder} holds no kept runs ({error.strerror}); make some with --keep {folder}") from None
    kept = [msgspec.json.decode(line, type=Kept) for line in lines]
    if only:
        kept = [one for one in kept if _is_wanted(one, only)]
    # Not forked: this process may have run pipelines, whose threads a fork would leave behind half way.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0)), mp_context=context) as pool:
        rows = list(pool.map(functools.partial(diagnose, folder=folder), kept, chunksize=4))
    for line in lines_of(rows):
        _say(line)
    return Score(rows=tuple(rows), skipped={})


def _is_wanted(kept: Kept, only: Sequence[str]) -> bool:
    return kept.kind == "base" or kept.fault in only or (kept.kind == "healthy" and "HEALTHY" in only)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- Command line ----------------------------------------------------------------------------------------------------


def _own_options(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options that only this benchmark has, and the rest of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--rescore", type=Path)
    return parser.parse_known_args(list(arguments))


_OPTIONS = (
    " Options of this benchmark alone: --only F8,F10,HEALTHY runs these, in every shape they apply to; --keep FOLDER keeps the "
    "run folders; --rescore FOLDER diagnoses kept runs again."
)


def main() -> int:
    """Run the benchmark from the command line; status 1 when a claim does not hold."""
    options, sys.argv[1:] = _own_options(sys.argv[1:])
    measure_it: Callable[[bool], dict[str, Any]] = functools.partial(measure_all, options=options)
    try:
        result = measure.run_benchmark(
            "diagnosis_accuracy", (__doc__ or "").splitlines()[0] + _OPTIONS, measure_it, as_text
        )
    except HeadraceError as error:
        _say(str(error))
        return 2
    if result["quick"]:
        return 0
    is_missed = bool(result["n"]) and (result["top1"] < 0.90 or result["top2"] < 0.97)
    is_short = not options.only and result["healthy_n"] < NUM_HEALTHY  # fewer do not show what is claimed
    return int(is_missed or is_short or result["false_alarms"] > 0)


if __name__ == "__main__":
    sys.exit(main())

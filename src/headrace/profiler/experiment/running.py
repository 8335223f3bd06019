"""Runs a pipeline for an experiment, and writes what came of it into a run folder.

How this works: a queue, or another source without an end, gives further jobs, which are done, delivered and acknowledged as in
any run, until the experiment is over; the jobs inside are finished then. A folder or a list is gone around again and again, and
its results are dropped unless the caller wants them delivered: the recorded run has delivered them once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from headrace.base.documents import encode_document
from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.compare.blocks import replace_parts
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import Measuring, run
from headrace.pipeline.watching import RunInProgress
from headrace.profiler.experiment.experimenter import Experimenter
from headrace.runs.formats import experiment
from headrace.runs.formats.experiment import ExperimentDocument
from headrace.runs.run_folder import replace_file
from headrace.sources.finite import FiniteSource

USUAL_SECONDS = 60.0


def run_experiment(
    pipeline: Pipeline,
    plan: Plan | str | Path | None = None,
    *,
    budget_seconds: float = USUAL_SECONDS,
    deliver: bool = False,
    stop: threading.Event | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> ExperimentDocument:
    """Run a pipeline, perturb it for short stretches, and return what that cost; raises what `headrace.run` raises.

    Args:
        pipeline: What is done.
        plan: How.
        budget_seconds: The longest time from the first result on, > 0.
        deliver: Deliver the results of a folder or list too; those of other sources always are.
        stop: Ends it early once it is set.
        say: Called with lines for people.

    Raises:
        SettingsError: If the time is not positive, or the source has no items.
    """
    if not budget_seconds > 0:
        raise SettingsError(f"an experiment needs a time above 0 s, got {budget_seconds:g} s; 60 s is usual")
    source = pipeline.source
    delivered = deliver or not isinstance(source, FiniteSource)
    stopping = stop or threading.Event()
    watch: list[Experimenter] = []

    def begin(run: RunInProgress) -> Experimenter:
        watch.append(Experimenter(run, budget_seconds, stopping, delivered=delivered, say=say))
        return watch[0]

    with contextlib.ExitStack() as around:
        if isinstance(source, FiniteSource):  # itself, so that clips are decoded as in a run: that may be the limit
            pipeline = replace_parts(pipeline, source, pipeline.delivery if deliver else None)
            around.enter_context(source.trying_once())  # a failed job comes again anyway
            around.enter_context(source.going_around())
        run(pipeline, plan, checkpoint=False, stop=stopping, watch=begin, measuring=Measuring(first_alone=True))
    return watch[0].document()


def add_experiment(
    pipeline: Pipeline,
    plan: Plan,
    folder: Path,
    say: Callable[[str], object],
    *,
    budget_seconds: float = USUAL_SECONDS,
    deliver: bool = False,
) -> ExperimentDocument:
    """Experiment on a pipeline, write `experiment.json` into a run folder and return it; see `run_experiment`.

    Raises:
        OSError: If it cannot be written.
    """
    document = run_experiment(pipeline, plan, budget_seconds=budget_seconds, deliver=deliver, say=say)
    replace_file(folder / experiment.FILE, encode_document(document, indent=True) + b"\n")
    return document

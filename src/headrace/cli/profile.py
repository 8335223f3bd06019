"""Run a pipeline on real data and measure where every millisecond goes.

    headrace profile jobs:pipeline --source photos/ -o runs/first
    headrace report runs/first                                    one HTML page to look at
    headrace profile jobs:pipeline --layers --isolate             inside the model; each stage alone
    headrace profile jobs:pipeline --python preprocess            which Python line costs most
    headrace profile jobs:pipeline --experiment                   which resource limits it, by experiment
    headrace profile --set process.batch=8 jobs:pipeline          any setting of the Plan
    headrace profile jobs:pipeline --cold                         with files that have to come from the disk

It runs the pipeline as `headrace run` does (results are delivered, jobs are acknowledged) and measures it. The table shows for
each stage how long an item waits and is served, and how the service time splits: CPU, waiting for a core (run delay), or
blocked, and on what. Below are checks of whether the numbers can be trusted; a failed one marks the profile UNTRUSTED. The
cost of profiling is measured during the run, by switching it off and on.

Stages alone (--isolate) and layers (--layers) are measured after the run, on the first items of a source that can be read
again (folder, list); these results are not delivered.

--experiment runs the pipeline once more after that and perturbs it for short stretches: a delay in a stage, fewer or more
workers, a little less of the cores or of the GIL. What costs throughput is the limit. Further jobs of a queue are done and
delivered; a folder or list is gone around, and its results are dropped unless --deliver is given.

Ctrl-C ends the run within its grace period; what was measured is kept and analysed.
"""

from __future__ import annotations

import argparse
import functools
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.formatting import quote_arg
from headrace.cli import live_page
from headrace.cli.experimenting import add_experiment_arguments
from headrace.cli.pipeline_arguments import (
    add_pipeline_arguments,
    live_view,
    open_pipeline,
    positive,
    seconds,
    stdout_kept,
)
from headrace.cli.terminal import say, write, write_json
from headrace.cli.watch_history import add_history_argument, remember_run

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.pipeline.definition import Pipeline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_pipeline_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="RUN", help="the run folder to write (default: runs/NAME-DATE-TIME, a new one)"
    )
    parser.add_argument(
        "--cold",
        action="store_true",
        help="first let the kernel forget the input files, so that they come from the disk",
    )
    parser.add_argument("--layers", action="store_true", help="also measure the model layer by layer")
    parser.add_argument("--isolate", action="store_true", help="also run each stage alone, and with parts replaced")
    parser.add_argument(
        "--isolate-items", type=positive, default=64, metavar="N", help="items kept for --isolate (default 64)"
    )
    parser.add_argument(
        "--isolate-seconds",
        type=seconds,
        default=1.0,
        metavar="S",
        help="how long each setting runs in each of three repetitions (default 1)",
    )
    add_experiment_arguments(
        parser, "--experiment", "also perturb the running pipeline, and measure what limits it", "--budget"
    )
    parser.add_argument("--python", metavar="STAGE", help="also sample the Python code of one stage (needs py-spy)")
    parser.add_argument(
        "--no-overhead", action="store_true", help="do not switch profiling off and on to measure what it costs"
    )
    live_page.add_arguments(parser)
    add_history_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the analysis as JSON (schema headrace.profile/1)")


def run(args: argparse.Namespace) -> int:
    """Profile the pipeline and print the analysis."""
    from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NEGATIVE
    from headrace.pipeline.watching import watch_together
    from headrace.profiler.profile import ProfileSettings, profile

    with stdout_kept(args.json):
        pipeline, plan = open_pipeline(args)
        output = Path(args.output) if args.output else _new_folder(args.pipeline)
        _check_source(args, pipeline)
        watch, page = functools.partial(live_view, args.limit), live_page.open_companion(args, pipeline, plan, None)
        result = profile(
            pipeline,
            plan,
            output=output,
            limit=args.limit,
            force=args.force,
            observers=page.observers if page else (),
            watch=watch_together(watch, page.watch) if page and page.watch else watch,
            settings=ProfileSettings(measure_overhead=not args.no_overhead, python_stage=args.python, cold=args.cold),
        )
        status = EXIT_INTERRUPTED if result.interrupted else EXIT_DONE
        if status == EXIT_DONE:
            status = _look_further(args, pipeline, result.plan, output)
        remember_run(args, output)
        if status == EXIT_DONE and (result.is_in_vain or result.ended_early):
            status = EXIT_NEGATIVE
    _print(output, as_json=args.json)
    return status


def _new_folder(pipeline: str) -> Path:
    """Return a folder for a run that was given no name."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", pipeline.removesuffix(":pipeline").removesuffix(".py")).strip("-")
    return Path("runs", f"{name or 'profile'}-{time.strftime('%Y%m%d-%H%M%S')}")


def _check_source(args: argparse.Namespace, pipeline: Pipeline) -> None:
    """Say before the run, not after it, that something cannot be done."""
    from headrace.base.errors import SettingsError
    from headrace.profiler.stage_bench.inputs import refuse_queue
    from headrace.sources.finite import FiniteSource

    source = pipeline.source
    if args.layers or args.isolate:
        refuse_queue(source)
    again = next((name for name in ("layers", "isolate", "experiment") if getattr(args, name)), None)
    if again and isinstance(source, FiniteSource) and source.serves_one_run:
        raise SettingsError(
            f"--{again} runs the items of the source again after the profile, and the iterator that this pipeline gives to "
            f"headrace.items can be read once; give a list, or an object with __iter__ that begins anew, or leave --{again} out"
        )


def _look_further(args: argparse.Namespace, pipeline: Pipeline, plan: Plan, folder: Path) -> int:
    """Measure what was asked for beyond the run; return the exit status."""
    from headrace.base.errors import HeadraceError, SettingsError
    from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED, EXIT_MISSING, EXIT_MISUSE
    from headrace.profiler.post_run import add_isolation, add_layers

    status = EXIT_DONE
    isolate = functools.partial(add_isolation, items=args.isolate_items, seconds=args.isolate_seconds)
    asked = ((add_layers, args.layers), (isolate, args.isolate), (_experiment(args), args.experiment))
    wanted = [add for add, is_wanted in asked if is_wanted]
    with _Interrupt() as interrupt:
        for add in wanted:
            try:
                if not interrupt.is_set():
                    add(pipeline, plan, folder, _say, interrupt.is_set)
            except (HeadraceError, OSError) as error:
                # The run itself is measured and kept.
                say(f"headrace: {error}; the rest of the profile is in {folder}")
                status = EXIT_MISUSE if isinstance(error, SettingsError) else EXIT_MISSING
    return EXIT_INTERRUPTED if interrupt.is_set() else status


def _experiment(args: argparse.Namespace) -> Callable[..., object]:
    from headrace.profiler.experiment.running import add_experiment

    def add(pipeline: Pipeline, plan: Plan, folder: Path, say: Callable[[object], object], _: object) -> object:
        return add_experiment(pipeline, plan, folder, say, budget_seconds=args.budget, deliver=args.deliver)

    return add


class _Interrupt:
    """Ctrl-C and SIGTERM as a question to ask; a second one ends at once."""

    def __init__(self) -> None:
        self._count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Interrupt:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, *_: object) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt

    def is_set(self) -> bool:
        """Return whether it was asked to end."""
        return self._count > 0


def _print(folder: Path, *, as_json: bool) -> None:

    from headrace.cli import experiment_text
    from headrace.cli.profile_text import as_text, failures_text, hot_spots_text
    from headrace.diagnose import profile_document
    from headrace.profiler import layers, stage_bench
    from headrace.runs.reader import read_run

    run = read_run(folder)
    document = profile_document(run)
    if as_json:
        write_json(document)
        return
    parts = [as_text(document)]
    if failures := failures_text(run.info):
        parts.insert(0, failures)
    if document.layers is not None:
        parts.append(layers.as_text(document.layers))
    if document.isolation is not None:
        parts.append(stage_bench.as_text(document.isolation))
    if document.experiment is not None:
        parts.append(experiment_text.as_text(document.experiment))
    parts += [hot_spots_text(folder / file) for file in document.hot_spots.values()]
    parts.append(f"run folder: {folder}\nlook at it: headrace report {quote_arg(folder)}\n")
    write("\n".join(parts), end="")


def _say(text: object) -> None:
    say(f"headrace: {text}")

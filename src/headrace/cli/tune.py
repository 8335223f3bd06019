"""Find a better Plan for a pipeline, and prove it by measuring.

    headrace tune jobs:pipeline --source photos/ -o plan.toml
    headrace tune jobs:pipeline --plan today.toml --for cost
    headrace tune jobs:pipeline --for latency --slo p99=200ms --rate 100/s

It profiles the pipeline once, predicts some hundred Plans from that (workers, batches, executors, threads of the model, ...;
fewer as well as more), and measures up to three of the best against the present one, in turn. It writes a Plan only if it was
measured to be better, with the reasons as comments. Predictions go to the ledger before they are measured. Results are dropped
unless --deliver is given.

Exit status: 0 a better Plan was found and written, or the present one is already the best; 1 no measured Plan meets the --slo;
4 inconclusive; 130 interrupted, with the measurements kept.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.formatting import escape_controls
from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NEGATIVE
from headrace.cli.pipeline_arguments import (
    add_allow_argument,
    items_source,
    list_allowed_networks,
    positive,
    seconds,
    stdout_kept,
)
from headrace.cli.terminal import say, speaker, write, write_json

if TYPE_CHECKING:
    from headrace.runs.formats.tuning import TuningDocument
    from headrace.tune.objective import Objective
    from headrace.tune.tuning import Tuned, TuneSettings

_say = speaker("tune")

EXIT_INCONCLUSIVE = 4
#: Where the better Plan goes unless -o says otherwise.
PLAN_FILE = "plan.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("pipeline", metavar="MODULE:ATTRIBUTE", help="the Pipeline; a file works too: jobs.py:pipeline")
    parser.add_argument("--plan", metavar="FILE", help="the present Plan; without one, defaults for this machine")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="replace one setting of that Plan",
    )
    add_allow_argument(parser)
    parser.add_argument(
        "--source", help="a folder, a glob, or a .txt of URLs or paths, instead of the pipeline's source"
    )
    parser.add_argument(
        "--for",
        choices=("throughput", "latency", "cost"),
        default="throughput",
        dest="objective",
        help="more items; less latency at the same rate; less CPU and fewer workers at the same rate",
    )
    parser.add_argument(
        "--slo", metavar="GOAL", help="a percentile of the latency that must be kept, such as p99=200ms"
    )
    parser.add_argument(
        "--rate",
        metavar="RATE",
        help="jobs that must be kept up, such as 100/s or 3M/h; with --for latency, and --for cost --slo: that come so",
    )
    parser.add_argument(
        "--enough",
        metavar="RATE",
        help="stop as soon as a measured Plan surely does so many jobs, such as 120/s; for throughput",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default=PLAN_FILE,
        help=f"where a better Plan is written (default {PLAN_FILE})",
    )
    parser.add_argument("--force", action="store_true", help="replace FILE")
    parser.add_argument("--plans", type=positive, default=3, metavar="N", help="Plans to measure, at most (default 3)")
    parser.add_argument(
        "--budget-seconds",
        type=seconds,
        metavar="N",
        help="no new round of measuring begins that would not end by then",
    )
    parser.add_argument("--seconds", type=seconds, metavar="TIME", help="length of a block (default 1s)")
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="KEY",
        help="leave a setting as it is, such as decode.scale or process.batch; places: of all stages; may be repeated",
    )
    parser.add_argument(
        "--largest-batch", type=positive, default=64, metavar="N", help="the largest batch that is tried (default 64)"
    )
    parser.add_argument(
        "--deliver", action="store_true", help="deliver the results of every run; else they are dropped"
    )
    parser.add_argument("--runs", metavar="DIR", default="runs", help="where the profiled runs go (default runs)")
    parser.add_argument(
        "--ledger",
        metavar="FILE",
        help="where predictions are written (default runs/ledger.sqlite, or HEADRACE_LEDGER)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the search (default 0)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.tuning/1)")


def run(args: argparse.Namespace) -> int:
    """Tune, write a better Plan, and print what was found."""
    from headrace.cli.tuning_text import as_text
    from headrace.diagnose.replay import CannotReplay

    try:
        document, problem = find_better_plan(args)
    except CannotReplay as error:  # as `headrace whatif`: the machine was too busy to tell, nobody's mistake
        _say(str(error))
        return EXIT_INCONCLUSIVE
    if args.json:
        write_json(document, indented=True)
    else:
        write(as_text(document), end="")
    if problem is not None:
        raise problem
    return _status(document)


def find_better_plan(args: argparse.Namespace) -> tuple[TuningDocument, Exception | None]:
    """Tune, write a better Plan and its decision; return what was found, and why the Plan could not be written, if so."""
    from headrace.runs.plan_file import check_writable

    check_writable(Path(args.output), force=args.force)  # before minutes are spent
    with stdout_kept(args.json):
        tuned = _tune(args)
    return (tuned.document, None) if tuned.plan is None else _write(args, tuned)


def _status(document: TuningDocument) -> int:
    if document.interrupted:
        return EXIT_INTERRUPTED
    return {"goal missed": EXIT_NEGATIVE, "inconclusive": EXIT_INCONCLUSIVE}.get(document.verdict, EXIT_DONE)


def _tune(args: argparse.Namespace) -> Tuned:
    from headrace.base.plan import Plan
    from headrace.cli.loading import load_pipeline
    from headrace.ledger.ledger import Ledger
    from headrace.tune.tuning import tune

    objective, settings = _objective(args), _settings(args)
    pipeline = load_pipeline(args.pipeline)
    source = items_source(args.source, pipeline)
    plan = (Plan.load(args.plan) if args.plan else Plan()).with_settings(args.settings)
    plan = plan.allowing(list_allowed_networks(args))
    _say("deliveries are made, in every run" if args.deliver else "deliveries are dropped; --deliver makes them")
    with Ledger.open(args.ledger) as ledger:
        return tune(
            pipeline,
            plan,
            source,
            objective=objective,
            settings=settings,
            runs=Path(args.runs),
            ledger=ledger,
            say=_say,
        )


def _objective(args: argparse.Namespace) -> Objective:
    from headrace.base.errors import SettingsError
    from headrace.base.goals import parse_rate, parse_slo
    from headrace.tune.objective import Objective

    try:
        slo = None if args.slo is None else parse_slo(args.slo)
        rate = None if args.rate is None else parse_rate(args.rate)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return Objective(name=args.objective, slo=slo, rate=rate)


def _settings(args: argparse.Namespace) -> TuneSettings:
    from headrace.tune.rounds import Effort
    from headrace.tune.tuning import TuneSettings

    enough = _parse_enough(args)
    effort = Effort(block_seconds=args.seconds or 1.0, deliver=args.deliver)
    return TuneSettings(
        plans=args.plans,
        budget_seconds=args.budget_seconds,
        largest_batch=args.largest_batch,
        keep=frozenset(args.keep),
        enough=enough,
        effort=effort,
        seed=args.seed,
    )


def _parse_enough(args: argparse.Namespace) -> float | None:
    """Return the rate of `--enough`; raises SettingsError where it says nothing."""
    from headrace.base.errors import SettingsError
    from headrace.base.goals import parse_rate

    if args.enough is None:
        return None
    if args.objective != "throughput":
        raise SettingsError(f"--enough {args.enough} is for throughput, not for --for {args.objective}; leave it out")
    try:
        return parse_rate(args.enough)
    except ValueError as error:
        raise SettingsError(f"--enough {args.enough}: {error}") from None


def _write(args: argparse.Namespace, tuned: Tuned) -> tuple[TuningDocument, Exception | None]:
    """Write the better Plan, and the decision to the ledger; return the document that says so, and what went wrong."""
    import msgspec

    from headrace.base.errors import LedgerError, SettingsError
    from headrace.ledger.ledger import Ledger
    from headrace.runs.hardware import find_hardware
    from headrace.runs.plan_file import check_writable, plan_text

    assert tuned.plan is not None
    text = plan_text(
        tuned.plan,
        {reason.key: reason.says for reason in tuned.reasons},
        tuned.document.says,
        made_by="tune",
        subject=args.pipeline,
        hardware=find_hardware(),
        today=datetime.datetime.now(tz=datetime.UTC).date(),
    )
    try:
        check_writable(Path(args.output), force=args.force)
        with Ledger.open(args.ledger) as ledger:
            ledger.attempts.accept(Path(args.output), text, why=" ".join(tuned.document.says))
    except (SettingsError, LedgerError) as error:
        say(escape_controls(text), end="")  # minutes were spent on it
        return tuned.document, error
    return msgspec.structs.replace(tuned.document, plan_file=args.output), None

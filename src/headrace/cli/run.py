"""Run a pipeline until its source has no more (folder, list of URLs) or until Ctrl-C or SIGTERM (queue).

    headrace run jobs:pipeline --plan plan.toml
    headrace run jobs.py:pipeline --set process.batch=8 --set fetch.workers=32 -o runs/first
    headrace run jobs:pipeline --source photos/ --limit 100

The first Ctrl-C finishes what was received within the Plan's run.grace_seconds and gives the rest back to the source; a
second one gives everything back at once.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("pipeline", metavar="MODULE:ATTRIBUTE", help="the Pipeline; a file works too: jobs.py:pipeline")
    parser.add_argument("--plan", metavar="FILE", help="the Plan (TOML); without one, defaults for this machine")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="replace one setting of the Plan, such as fetch.workers=32 or model.threads=1; may be repeated",
    )
    parser.add_argument(
        "--source", help="a queue's address, a folder, a glob, or a .txt of URLs, instead of the pipeline's"
    )
    parser.add_argument("--drain", action="store_true", help="with --source QUEUE: stop when the queue is empty")
    parser.add_argument("--limit", type=_positive, metavar="N", help="receive at most N jobs")
    parser.add_argument("-o", "--output", metavar="RUN", help="write a run folder: spans, errors, plan, environment")
    parser.add_argument("--force", action="store_true", help="replace what an earlier run left in RUN")
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.run/1)")


def run(args: argparse.Namespace) -> int:
    """Run the pipeline and print its table of stages."""
    from headrace.base.errors import SettingsError
    from headrace.base.plan import Plan
    from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED
    from headrace.cli.live import LiveView
    from headrace.cli.loading import load_pipeline, parse_source
    from headrace.pipeline.execute import run as execute

    if args.drain and not args.source:
        raise SettingsError("--drain goes with --source QUEUE; in the program it is headrace.queue(..., drain=True)")
    pipeline = load_pipeline(args.pipeline)
    if args.source:
        pipeline.source = parse_source(args.source, drain=args.drain)
    plan = Plan.load(args.plan) if args.plan else Plan()
    plan = plan.with_settings(args.settings)
    result = execute(
        pipeline,
        plan,
        output=args.output,
        limit=args.limit,
        force=args.force,
        view=functools.partial(_view, LiveView, args.limit),
    )
    if args.json:
        _print_json(result)
    else:
        _print_table(result)
    return EXIT_INTERRUPTED if result.interrupted else EXIT_DONE


def _view(live_view: Any, total: int | None, summary: Any, stages: Any) -> Any:
    return live_view(summary, stages, total)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text}")
    return int(text)


def _print_json(result: Any) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.encode(as_dict(result)).decode() + "\n")


def as_dict(result: Any) -> dict[str, Any]:
    """Return a Result as `headrace run --json` prints it (schema `headrace.run/1`)."""
    return {
        **result.summary.as_dict(),
        "plan_id": result.plan_id,
        "plan": result.plan.as_table(),
        "notes": result.counters.notes,
        "cost_curves": {stage: {str(n): s for n, s in curve.items()} for stage, curve in result.cost_curves.items()},
        "variants": list(result.variants),
        "emulated": result.is_emulated,
        "warnings": list(result.warnings),
        "interrupted": result.interrupted,
        "run_folder": None if result.run_folder is None else str(result.run_folder),
    }


def _print_table(result: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(result.summary.as_table())
    if result.is_emulated:
        console.print("The device was emulated: its times are settings, not measurements.")
    for warning in result.warnings:
        console.print(f"warning: {warning}")
    if result.run_folder is not None:
        console.print(f"run folder: {result.run_folder}")

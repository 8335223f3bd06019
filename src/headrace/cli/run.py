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

from headrace.cli.pipeline_arguments import add_pipeline_arguments, live_view, open_pipeline, stdout_kept


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_pipeline_arguments(parser)
    parser.add_argument("-o", "--output", metavar="RUN", help="write a run folder: spans, errors, plan, environment")
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.run/1)")


def run(args: argparse.Namespace) -> int:
    """Run the pipeline and print its table of stages."""
    from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED
    from headrace.pipeline.execute import run as execute

    with stdout_kept(args.json):
        pipeline, plan = open_pipeline(args)
        result = execute(
            pipeline,
            plan,
            output=args.output,
            limit=args.limit,
            force=args.force,
            view=functools.partial(live_view, args.limit),
        )
    if args.json:
        _print_json(result)
    else:
        _print_table(result)
    return EXIT_INTERRUPTED if result.interrupted else EXIT_DONE


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

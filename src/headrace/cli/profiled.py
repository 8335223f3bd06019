"""`--profile` of `headrace run` and `headrace serve`: what stages cost is measured, in each worker process."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.pipeline.definition import Pipeline
    from headrace.pipeline.watching import Watch


def add_profile_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--profile", action="store_true", help="measure what stages cost, as headrace profile does; with -o"
    )


def check_profile(args: argparse.Namespace) -> None:
    """Raise SettingsError where there is nowhere to put what is measured."""
    from headrace.base.errors import SettingsError

    if args.profile and not args.output:
        raise SettingsError("--profile needs a run folder: say where with -o RUN")


def profile_options(args: argparse.Namespace, pipeline: Pipeline, plan: Plan, watch: Watch | None) -> dict[str, Any]:
    """Return what `--profile` adds to a run or a service, else the watch alone."""
    if not args.profile:
        return {"watch": watch}
    from headrace.profiler.profile import profiling_options

    return profiling_options(pipeline, plan, watch=watch)

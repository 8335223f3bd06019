"""The arguments of every command that runs a pipeline, and the pipeline that they name."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.cli.portions import check_results, name_for_portion, portion_of, take_portion

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.base.protocols import Delivery
    from headrace.pipeline.definition import Pipeline
    from headrace.pipeline.watching import RunInProgress
    from headrace.sources.finite import FiniteSource


PIPELINE_HELP = "the Pipeline; a file works too: jobs.py:pipeline"


def add_pipeline_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the pipeline, its Plan, its source and how much of it to take."""
    parser.add_argument("pipeline", metavar="MODULE:ATTRIBUTE", help=PIPELINE_HELP)
    add_plan_arguments(parser)
    parser.add_argument(
        "--source",
        metavar="QUEUE|PATH",
        type=address,
        help="a queue's address, a folder, a glob, or a .txt of URLs or paths, instead of the pipeline's; env:NAME: the one in "
        "this variable of the environment",
    )
    parser.add_argument(
        "--results",
        metavar="FILE.jsonl|DIR",
        type=address,
        help="write results into this file of JSON Lines, or this folder of Parquet files, instead of delivering them",
    )
    parser.add_argument("--drain", action="store_true", help="of a queue: stop when it is empty")
    parser.add_argument("--limit", type=positive, metavar="N", help="receive at most N jobs")
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace the files of an earlier run; with --resume: continue although it may be another run",
    )


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how the pipeline runs."""
    parser.add_argument("--plan", metavar="FILE", help="the Plan (TOML); without one, defaults for this machine")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="replace one setting of the Plan, such as fetch.workers=32 or model.threads=1; may be repeated",
    )
    add_allow_argument(parser)


def add_allow_argument(parser: argparse.ArgumentParser) -> None:
    """Declare what jobs may make this machine contact."""
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="NETWORK",
        help="let jobs name this private address, network (10.1.0.0/16), host or .domain, each with :PORT or without; may be "
        "repeated; adds to HEADRACE_ALLOW (separated by commas) and to the Plan's [network] allow",
    )


def list_allowed_networks(args: argparse.Namespace) -> list[str]:
    """Return what environment and command line allow beyond the Plan.

    Raises:
        SettingsError: If an entry is none; says which of the two it comes from.
    """
    from headrace.base.errors import SettingsError
    from headrace.base.network_rules import NetworkPlan

    environment = os.environ.get("HEADRACE_ALLOW", "").split(",")
    given = {"HEADRACE_ALLOW": [entry.strip() for entry in environment if entry.strip()], "--allow": args.allow}
    for name, entries in given.items():
        try:
            NetworkPlan(allow=entries)
        except SettingsError as error:
            raise SettingsError(f"{name}: {error}") from None
    return [entry for entries in given.values() for entry in entries]


def open_pipeline(args: argparse.Namespace) -> tuple[Pipeline, Plan]:
    """Return the Pipeline and the Plan that the arguments name.

    Raises:
        SettingsError: If one of them cannot be found or is not what it should be.
    """
    from headrace.cli.loading import choose_source, load_pipeline

    loaded = load_pipeline(args.pipeline)
    # A copy: a process on Ray opens it for one portion after the other.
    pipeline = loaded.replace_source(choose_source(loaded.source, args.source, drain=args.drain))
    if (portion := portion_of(args)) is not None:
        pipeline.source = take_portion(pipeline.source, portion)
    delivery = _delivery(args, pipeline)
    if delivery is not pipeline.delivery:
        pipeline = pipeline.replace_delivery(delivery)
    pipeline.options = tuple(list_choosing_options(args))
    return pipeline, open_plan(args)


def _delivery(args: argparse.Namespace, pipeline: Pipeline) -> Delivery:
    """Return where results go: where the arguments say, else where the pipeline says.

    Raises:
        SettingsError: If nobody says where.
    """
    from headrace.base.errors import SettingsError
    from headrace.cli.loading import parse_results

    portion = portion_of(args)
    if args.results:
        return parse_results(name_for_portion(args.results, portion) if portion else args.results)
    if portion:
        check_results(pipeline.delivery, portion)
    # Jobs of a queue name their receivers themselves; those of a folder or a list cannot.
    if args.source and "://" not in args.source and getattr(pipeline.delivery, "url", "") is None:
        raise SettingsError(
            f"jobs of --source {args.source} name no address for their results, and the pipeline's callback has none of its "
            "own; say where results go with --results results.jsonl"
        )
    return pipeline.delivery


def list_choosing_options(args: argparse.Namespace) -> Iterator[str]:
    """Give the options that choose what runs, for who wants to run it again; addresses without secrets."""
    from headrace.sources.addresses import hide_secrets

    yield from list_plan_options(args)
    for name, address in (("--source", args.source), ("--results", args.results)):
        if address:
            yield from (name, hide_secrets(address))
    if (portion := portion_of(args)) is not None:
        yield from ("--shard", str(portion))
    if args.drain:
        yield "--drain"
    if args.limit:
        yield from ("--limit", str(args.limit))


def list_plan_options(args: argparse.Namespace) -> Iterator[str]:
    """Give the options that choose the Plan."""
    if args.plan:
        yield from ("--plan", args.plan)
    for name, values in (("--set", args.settings), ("--allow", args.allow)):
        for value in values:
            yield from (name, value)


def open_plan(args: argparse.Namespace) -> Plan:
    """Return the Plan that the arguments name; raises SettingsError like `open_pipeline`."""
    from headrace.base.plan import Plan

    plan = Plan.load(args.plan) if args.plan else Plan()
    return plan.with_settings(args.settings).allowing(list_allowed_networks(args))


def items_source(given: str | None, pipeline: Pipeline) -> FiniteSource:
    """Return items that can be read again for every block: of `--source`, else of the pipeline.

    Raises:
        SettingsError: If it is a queue, or another source that cannot.
    """
    from headrace.base.errors import SettingsError
    from headrace.cli.loading import parse_source
    from headrace.compare.blocks import read_items
    from headrace.sources.addresses import hide_secrets
    from headrace.sources.finite import FiniteSource

    if not given:
        return read_items(pipeline)
    source = parse_source(given, drain=True)
    if isinstance(source, FiniteSource):
        return source
    raise SettingsError(
        f"--source {hide_secrets(given)} cannot be read twice; name a folder or a .txt of URLs or paths (of live "
        "streams, headrace clip keeps a stretch)"
    )


@contextlib.contextmanager
def stdout_kept(for_document: bool) -> Iterator[None]:
    """Lead what the user's code and its child processes print to stderr, where stdout is for one JSON document."""
    if not for_document:
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def live_view(total: int | None, run: RunInProgress) -> Any:
    """Return the view of a run in progress; of a quiet one there is none."""
    from headrace.cli.live import LiveView
    from headrace.cli.terminal import is_quiet, progress_stream

    if is_quiet():
        return contextlib.nullcontext()
    return LiveView(run.summary, run.statistics, total, stream=progress_stream())


def address(text: str) -> str:
    """Return an address; of `env:NAME` the one in that variable: arguments of a process are seen by all users of a machine."""
    if not text.startswith("env:"):
        return text
    name = text.removeprefix("env:")
    if not (found := os.environ.get(name, "").strip()):  # a Secret made of a file ends with its line break
        raise argparse.ArgumentTypeError(f"the environment has no address in {name!r}")
    return found


def positive(text: str) -> int:
    """Return a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text}")
    return int(text)


def points(text: str) -> float:
    """Return a drop as a share: `0.5pt`, `0.5%` or `0.005`."""
    try:
        for unit in ("pt", "%"):
            if text.endswith(unit):
                return float(text.removesuffix(unit)) / 100
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no drop; write 0.5pt, 0.5% or 0.005") from None


def sizes(text: str) -> tuple[int, ...]:
    """Return whole numbers above 0 from `224,160,128`."""
    return tuple(positive(part.strip()) for part in text.split(","))


def seconds(text: str) -> float:
    """Return a duration in seconds: `90`, `90s`, `10m` or `3m30s`."""
    from headrace.base.units import parse_seconds

    try:
        found = parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found <= 0:
        raise argparse.ArgumentTypeError(f"expected more than 0 seconds, got {text}")
    return found

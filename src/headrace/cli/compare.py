"""Say whether B is really faster than A: the same items, blocks run in turn, a 95 % interval, a verdict.

    headrace compare before.toml after.toml --pipeline jobs:pipeline
    headrace compare jobs:pipeline jobs:faster --source photos/
    headrace compare jobs:pipeline jobs:pipeline@after.toml --budget 3%
    headrace compare runs/before runs/after
    headrace compare runs/before runs/after --measure
    headrace compare jobs:pipeline jobs:shards --source photos/ --cold
    headrace compare runs/served@56b56 runs/served@78f5 --metric latency

A and B are each a Plan (a .toml, with --pipeline), a pipeline (MODULE:ATTRIBUTE, with @PLAN.toml if wanted) or a run
folder. Of a run that several Plans answered, RUN@ID is what one of them did, such as an arm of a canary; ID is the beginning
of the Plan's id. Two run folders are compared by what they recorded, which tells large differences only; --measure runs their
pipelines and Plans again, in turn. Results are dropped unless --deliver is given.

Exit status: 0 done, or within the budget; 1 a loss beyond the budget; 4 it cannot be told yet whether the loss is within the
budget; 130 interrupted, with the verdict from what was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NEGATIVE
from headrace.cli.output_file import check_output, write_output
from headrace.cli.pipeline_arguments import (
    add_allow_argument,
    items_source,
    list_allowed_networks,
    seconds,
    stdout_kept,
)
from headrace.cli.terminal import as_json, open_console, speaker, write_machine_readable

if TYPE_CHECKING:
    from headrace.compare.blocks import Contender
    from headrace.compare.contenders import Blocks
    from headrace.pipeline.definition import Pipeline
    from headrace.runs.formats.comparison import ComparisonDocument
    from headrace.runs.reader import Run

_say = speaker("compare")

EXIT_INCONCLUSIVE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "a", metavar="A", help="the one before: PLAN.toml, MODULE:ATTRIBUTE[@PLAN.toml] or a run folder[@ID]"
    )
    parser.add_argument("b", metavar="B", help="the one after, the same")
    parser.add_argument(
        "--pipeline", metavar="MODULE:ATTRIBUTE", help="the pipeline, where A or B is a Plan or a run folder"
    )
    add_allow_argument(parser)
    parser.add_argument(
        "--source", help="a folder, a glob, or a .txt of URLs or paths, instead of the pipeline's source"
    )
    parser.add_argument(
        "--measure", action="store_true", help="run two run folders' pipelines again instead of reading them"
    )
    parser.add_argument(
        "--metric", choices=("throughput", "latency", "cpu"), default="throughput", help="what is compared"
    )
    add_length_arguments(parser, blocks="pairs of blocks (default 24)", time_limit="10min")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=seconds, metavar="TIME", help="length of a block (default 1s)")
    length.add_argument(
        "--items", type=int, dest="num_items", metavar="N", help="items of a block, instead of its length"
    )
    parser.add_argument(
        "--deliver", action="store_true", help="deliver the results of every block; else they are dropped"
    )
    parser.add_argument(
        "--cold",
        action="store_true",
        help="before each block let the kernel forget the input files: they come from the disk",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the bootstrap for recorded runs (default 0)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result as JSON (schema headrace.compare/1)")
    parser.add_argument("--force", action="store_true", help="replace FILE")
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.compare/1)")


def run(args: argparse.Namespace) -> int:
    """Compare, and print the verdict."""
    check_output(args.output, force=args.force)
    with stdout_kept(args.json):
        document = compare_sides(args)
    return report(args, document, per="per item")


def report(args: argparse.Namespace, document: ComparisonDocument, *, per: str) -> int:
    """Write and print what a comparison came to, and return the exit status.

    Args:
        args: `output` and `json`.
        document: The comparison.
        per: Of what the times of stages are, in words.
    """
    encoded = as_json(document, indented=True)
    if args.output:
        write_output(Path(args.output), encoded)
    if args.json:
        write_machine_readable(encoded)
    else:
        _print(document, per)
    return exit_status(document)


def add_length_arguments(parser: argparse.ArgumentParser, *, blocks: str, time_limit: str) -> None:
    """Declare what is wanted of a comparison, and how long it may go on.

    Args:
        parser: Of a command that compares in turn.
        blocks: What `--blocks` counts, and its default.
        time_limit: The default of `--time-limit`.
    """
    parser.add_argument(
        "--margin", type=share, metavar="SHARE", help="differences below it count as none (default 2%%)"
    )
    parser.add_argument("--budget", type=share, metavar="SHARE", help="the largest loss that is accepted, such as 3%%")
    parser.add_argument("--blocks", type=int, metavar="N", help=blocks)
    parser.add_argument("--until-sure", action="store_true", help="add pairs until it is decided or the time is over")
    parser.add_argument(
        "--time-limit", type=seconds, metavar="TIME", help=f"the time for --until-sure (default {time_limit})"
    )


def given_length(args: argparse.Namespace) -> dict[str, Any]:
    """Return `until_sure`, and the other lengths that were given.

    Raises:
        SettingsError: If a time limit is given that nothing would heed.
    """
    from headrace.base.errors import SettingsError

    if args.time_limit is not None and not args.until_sure:
        raise SettingsError("--time-limit goes with --until-sure; --blocks says how much is measured otherwise")
    given = {"pairs": args.blocks, "time_limit_seconds": args.time_limit}
    return {"until_sure": args.until_sure} | {key: value for key, value in given.items() if value is not None}


def exit_status(document: ComparisonDocument) -> int:
    """Return the exit status that says what a comparison came to."""
    if document.interrupted:
        return EXIT_INTERRUPTED
    if document.is_regression:
        return EXIT_NEGATIVE
    return EXIT_INCONCLUSIVE if document.budget is not None and document.budget_met is None else EXIT_DONE


def compare_sides(args: argparse.Namespace) -> ComparisonDocument:
    """Return what the two sides came to."""
    from headrace.compare.blocks import SameItems
    from headrace.compare.comparison import METRICS, Question, compare_pipelines, compare_runs
    from headrace.compare.plan_of_run import read_side

    question = Question(metric=METRICS[args.metric], margin=args.margin, budget=args.budget)
    runs = [read_side(text) for text in (args.a, args.b)]
    if runs[0] and runs[1] and not args.measure:
        _refuse_measuring(args)
        return compare_runs(runs[0], runs[1], question=question, seed=args.seed)
    _refuse_unused_pipeline(args, any(runs))
    a, b = (
        dataclasses.replace(contender, plan=contender.plan.allowing(list_allowed_networks(args)))
        for contender in (_contender(args.a, runs[0], args.pipeline), _contender(args.b, runs[1], args.pipeline))
    )
    source = SameItems(items_source(args.source, a.pipeline), cold=args.cold, own=not args.source)
    _say(
        "deliveries are made, once for every block" if args.deliver else "deliveries are dropped; --deliver makes them"
    )
    return compare_pipelines(a, b, source, question=question, blocks=_blocks(args), say=_say)


def _refuse_measuring(args: argparse.Namespace) -> None:
    """Raise SettingsError for an option that reading two run folders has no use for."""
    from headrace.base.errors import SettingsError

    names = (
        "pipeline",
        "source",
        "allow",
        "blocks",
        "seconds",
        "num_items",
        "until_sure",
        "time_limit",
        "deliver",
        "cold",
    )
    given = [f"--{name.removeprefix('num_').replace('_', '-')}" for name in names if getattr(args, name)]
    if given:
        raise SettingsError(f"two run folders are only read; {', '.join(given)} needs --measure, which runs them again")


def _refuse_unused_pipeline(args: argparse.Namespace, has_run_folder: bool) -> None:
    from headrace.base.errors import SettingsError

    if args.pipeline and not has_run_folder and not any(_is_plan(text) for text in (args.a, args.b)):
        raise SettingsError("--pipeline goes with a Plan or a run folder; A and B both name their pipelines")


def _is_plan(text: str) -> bool:
    return text.endswith(".toml") and "@" not in text


def _blocks(args: argparse.Namespace) -> Blocks:
    from headrace.compare.contenders import Blocks

    given = {"seconds": args.seconds, "items": args.num_items}
    known = {key: value for key, value in given.items() if value is not None}
    return Blocks(deliver=args.deliver, **known, **given_length(args))


def _contender(text: str, recorded: Run | None, pipeline: str | None) -> Contender:
    """Return what a user named: a run folder, a Plan or a pipeline."""
    from headrace.base.errors import SettingsError
    from headrace.base.plan import Plan
    from headrace.cli.loading import load_pipeline
    from headrace.compare.blocks import Contender

    if recorded is not None:
        return Contender(
            name=text, pipeline=_load_recorded_pipeline(recorded, pipeline), plan=_load_recorded_plan(recorded)
        )
    if _is_plan(text):
        if pipeline is None:
            raise SettingsError(f"{text} is a Plan: say of which pipeline with --pipeline MODULE:ATTRIBUTE")
        return Contender(name=text, pipeline=load_pipeline(pipeline), plan=Plan.load(text))
    target, at, plan = text.partition("@")
    if ":" not in target and not target.endswith(".py"):
        raise SettingsError(
            f"{text!r} is no run folder here, no PLAN.toml and no MODULE:ATTRIBUTE[@PLAN.toml]; expected one of the three"
        )
    if at and not plan:
        raise SettingsError(f"{text!r} names no Plan after @; expected MODULE:ATTRIBUTE@PLAN.toml")
    return Contender(name=text, pipeline=load_pipeline(target), plan=Plan.load(plan) if plan else Plan())


def _load_recorded_pipeline(recorded: Run, pipeline: str | None) -> Pipeline:
    from headrace.base.errors import SettingsError
    from headrace.cli.loading import load_pipeline

    target = pipeline or recorded.info.pipeline
    if ":" not in target and not target.endswith(".py"):
        raise SettingsError(
            f"{recorded.path} was made by a program and names its pipeline {target!r}; say where it is with --pipeline "
            "MODULE:ATTRIBUTE"
        )
    return load_pipeline(target)


def _load_recorded_plan(recorded: Run) -> Any:
    from headrace.base.errors import SettingsError
    from headrace.base.plan import Plan

    plans = list(recorded.info.plans.values())
    if len(plans) != 1:
        raise SettingsError(
            f"{recorded.path} holds {len(plans)} Plans, and one is needed to run it again; name a PLAN.toml, or one of them as "
            f"{recorded.path}@{next(iter(recorded.info.plans), 'ID')}"
        )
    return Plan.from_record(plans[0])


def _print(document: ComparisonDocument, per: str) -> None:
    from rich.table import Table

    from headrace.base.formatting import wrap_lines
    from headrace.base.units import format_duration

    console = open_console()  # a folder may be called runs[old]
    table = Table()
    for heading in ("", "A", "B"):
        table.add_column(heading, justify="right" if heading else "left")
    sides = (document.a, document.b)
    table.add_row("", *(side.name for side in sides))
    if any(any(side.plan_ids) for side in sides):  # a training has no Plan
        table.add_row("plan", *("\n".join(side.plan_ids) for side in sides))
    table.add_row(f"{document.metric}, median, {document.unit}", *(_number(side.median) for side in sides))
    for stage in dict.fromkeys((*document.a.stages, *document.b.stages)):
        table.add_row(f"{stage}, {per}", *(format_duration(side.stages.get(stage)) for side in sides))
    states = [side.page_cache for side in sides]
    if any(states):
        table.add_row("page cache when it began", *(state or "-" for state in states))
    console.print(table)
    for line in wrap_lines([*document.says, *(f"warning: {warning}" for warning in document.warnings)]):
        console.print(line, soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def share(text: str) -> float:
    """Return a share from `2%`, `2 %` or `0.02`."""
    number = text.strip().removesuffix("%").strip()
    try:
        value = float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a share such as 2% or 0.02, got {text!r}") from None
    value = value / 100 if "%" in text else value
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to below 1, such as 2% or 0.02, got {text!r}")
    return value

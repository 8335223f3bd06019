"""Show what each step from a sequential run to a given Plan gives, together and alone.

Runs one pipeline under several Plans in turn, over the same items: everything on one thread; threads for downloads and
deliveries; workers for every stage; batches; decoding at scale; another engine. The last one is the Plan that --plan names
(without one, defaults for this machine with batches of 8). Steps that would change nothing are left out. Before that, the first
step alone is profiled and the others are predicted from it; both stand in the table. Results are dropped, and compared.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED
from headrace.cli.output_file import check_output, write_output
from headrace.cli.pipeline_arguments import (
    add_allow_argument,
    items_source,
    list_allowed_networks,
    seconds,
    stdout_kept,
)
from headrace.cli.terminal import as_json, speaker, write, write_machine_readable

if TYPE_CHECKING:
    from headrace.tune.ladder import LadderSettings

_say = speaker("ladder")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("pipeline", metavar="MODULE:ATTRIBUTE", help="the Pipeline; a file works too: jobs.py:pipeline")
    parser.add_argument("--plan", metavar="FILE", help="the Plan at the top, such as one that headrace tune wrote")
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
    parser.add_argument("--price", metavar="PRICE", help="of an hour of this machine, such as 0.75/h")
    parser.add_argument("--blocks", type=int, metavar="N", help="blocks of each step, 6 or more (default 8)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=seconds, metavar="TIME", help="length of a block of the fastest step (default 1s)"
    )
    length.add_argument(
        "--items", type=int, dest="num_items", metavar="N", help="items of a block, instead of its length"
    )
    parser.add_argument("--no-alone", action="store_true", help="leave out what each step gives alone: half the time")
    parser.add_argument("--no-predict", action="store_true", help="predict nothing from the first step")
    parser.add_argument(
        "--run", metavar="RUN", dest="run_folder", help="where the first step's profile goes (default runs/ladder-TIME)"
    )
    parser.add_argument(
        "--ledger",
        metavar="FILE",
        help="where predictions are written (default runs/ledger.sqlite, or HEADRACE_LEDGER)",
    )
    parser.add_argument("--no-ledger", action="store_true", help="write no prediction down")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result as JSON (schema headrace.ladder/1)")
    parser.add_argument("--force", action="store_true", help="replace FILE")
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.ladder/1)")


def run(args: argparse.Namespace) -> int:
    """Climb, and print the table."""
    from headrace.cli.ladder_text import as_text

    check_output(args.output, force=args.force)
    with stdout_kept(args.json):
        document = _climb(args)
    encoded = as_json(document, indented=True)
    if args.output:
        write_output(Path(args.output), encoded)
    if args.json:
        write_machine_readable(encoded)
    else:
        write(as_text(document), end="")
    return EXIT_INTERRUPTED if document.interrupted else EXIT_DONE


def _climb(args: argparse.Namespace) -> Any:
    from headrace.base.plan import Plan
    from headrace.cli.loading import load_pipeline
    from headrace.ledger.ledger import Ledger
    from headrace.tune.ladder import climb, full_plan

    settings = _settings(args)
    pipeline = load_pipeline(args.pipeline)
    source = items_source(args.source, pipeline)
    full = full_plan(pipeline, Plan.load(args.plan) if args.plan else None, args.settings)
    full = full.allowing(list_allowed_networks(args))
    with contextlib.ExitStack() as stack:
        ledger = None
        if settings.run_folder is not None and not args.no_ledger:
            ledger = stack.enter_context(Ledger.open(args.ledger))
        return climb(pipeline, full, source, settings=settings, ledger=ledger, say=_say)


def _settings(args: argparse.Namespace) -> LadderSettings:
    from headrace.base.errors import SettingsError
    from headrace.base.goals import parse_price
    from headrace.compare.contenders import Blocks
    from headrace.tune.ladder import LadderSettings

    if args.no_predict and (args.run_folder or args.ledger):
        raise SettingsError("--no-predict leaves nothing to profile or to write down; drop it, or --run and --ledger")
    folder = None if args.no_predict else Path(args.run_folder or f"runs/ladder-{time.strftime('%Y%m%d-%H%M%S')}")
    if folder is not None and folder.is_dir() and any(folder.iterdir()):
        raise SettingsError(f"--run {folder} is not empty: name a new folder for the first step's profile")
    try:
        price = None if args.price is None else parse_price(args.price)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    blocks = Blocks(
        pairs=8 if args.blocks is None else args.blocks,
        seconds=1.0 if args.seconds is None else args.seconds,
        items=args.num_items,
    )
    return LadderSettings(blocks=blocks, price_per_hour=price, alone=not args.no_alone, run_folder=folder)

"""Say whether training B is really faster than training A: both are run to their ends in turn, and their steps recorded.

    headrace train compare train.py faster.py
    headrace train compare "train.py --workers 0" "train.py --workers 4" --blocks 12
    headrace train compare "train.py" "torchrun --nproc-per-node 2 train.py"

A and B are each what stands behind `headrace train`, in quotes if it has arguments. Compared are samples per second of all
processes together, from the end of their first step on, so that how long a program takes to start does not count. Make the
trainings short: some seconds of steps, and two epochs if their turns matter.

Exit status: 0 done, or within the budget; 1 a loss beyond the budget; 4 it cannot be told yet whether the loss is within the
budget; 130 interrupted, with the verdict from what was measured.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.compare import exit_status, share
from headrace.cli.output_file import check_output, write_output
from headrace.cli.pipeline_arguments import positive, seconds
from headrace.cli.terminal import as_json, open_console, speaker, write_machine_readable

if TYPE_CHECKING:
    from headrace.runs.formats.comparison import ComparisonDocument
    from headrace.train.in_turn import Amount

_say = speaker("train compare")


def add_word_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `headrace train compare`."""
    parser.add_argument("a", metavar="A", help="the training before: SCRIPT.py, in quotes with its arguments")
    parser.add_argument("b", metavar="B", help="the one after, the same")
    parser.add_argument(
        "--margin", type=share, metavar="SHARE", help="differences below it count as none (default 2%%)"
    )
    parser.add_argument("--budget", type=share, metavar="SHARE", help="the largest loss that is accepted, such as 3%%")
    parser.add_argument(
        "--blocks", type=positive, metavar="N", help="pairs of runs (default 6, the fewest with an interval)"
    )
    parser.add_argument("--until-sure", action="store_true", help="add pairs until it is decided or the time is over")
    parser.add_argument("--time-limit", type=seconds, metavar="TIME", help="the time for --until-sure (default 1h)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result as JSON (schema headrace.compare/1)")
    parser.add_argument("--force", action="store_true", help="replace FILE")
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.compare/1)")


def run_word(args: argparse.Namespace) -> int:
    """Compare, and print the verdict."""
    from headrace.compare.comparison import Question
    from headrace.train.in_turn import compare_trainings

    check_output(args.output, force=args.force)
    question = Question(margin=args.margin, budget=args.budget)
    document = compare_trainings(args.a, args.b, question=question, amount=_amount(args), say=_say)
    encoded = as_json(document, indented=True)
    if args.output:
        write_output(Path(args.output), encoded)
    if args.json:
        write_machine_readable(encoded)
    else:
        _print(document)
    return exit_status(document)


def _amount(args: argparse.Namespace) -> Amount:
    from headrace.base.errors import SettingsError
    from headrace.train.in_turn import Amount

    if args.time_limit is not None and not args.until_sure:
        raise SettingsError("--time-limit goes with --until-sure; --blocks says how much is measured otherwise")
    given = {"pairs": args.blocks, "time_limit_seconds": args.time_limit}
    return Amount(until_sure=args.until_sure, **{key: value for key, value in given.items() if value is not None})


def _print(document: ComparisonDocument) -> None:
    from rich.table import Table

    from headrace.base.formatting import wrap_lines
    from headrace.base.units import format_duration

    console = open_console()
    table = Table()
    for heading in ("", "A", "B"):
        table.add_column(heading, justify="right" if heading else "left")
    sides = (document.a, document.b)
    table.add_row("", *(side.name for side in sides))
    table.add_row(f"{document.unit}, median", *("-" if side.median is None else f"{side.median:.4g}" for side in sides))
    for phase in dict.fromkeys((*document.a.stages, *document.b.stages)):
        table.add_row(f"{phase}, of a step", *(format_duration(side.stages.get(phase)) for side in sides))
    console.print(table)
    for line in wrap_lines([*document.says, *(f"warning: {warning}" for warning in document.warnings)]):
        console.print(line, soft_wrap=True)

"""Review a sample of a run's answers, and learn how accurate production is.

    headrace run jobs:pipeline --source sqlite:///jobs.db --review reviews
    headrace review reviews
    headrace review reviews --estimate
    headrace review reviews --export items.csv
    headrace review reviews --import items.csv
    headrace review reviews --golden golden

`headrace run` and `serve` with --review DIR keep some of the answers: of each class, arm of a canary and hour some at random,
the least certain, and those that a twin (a shadow, a canary) answers otherwise; with each the picture that the model saw.

`headrace review DIR` opens a local page: look, press A for a correct answer, W for a wrong one, U if you cannot tell. Open the
address that it prints; Ctrl-C ends it, and every verdict is kept. Items come in a random order, drawn from all answers with
known probabilities, so that the accuracy that is shown speaks of all answers and not of those that were kept. Its interval
holds however often you look: stop when it is narrow enough.

A round speaks of what was kept when it began. --new-round begins another one over all that is kept now.

--estimate prints the accuracy: of all answers, by class and by arm. --export and --import are for other tools: fill in the
columns verdict (correct, wrong, unsure) and label. --golden writes what was reviewed as a folder that `headrace validate
--golden` reads: look at it before you use it, it holds more hard items than production does.

Exit status of --estimate: 0, or 4 if nothing was reviewed yet.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, pluralize, quote_arg
from headrace.cli import EXIT_DONE
from headrace.cli.pipeline_arguments import positive
from headrace.cli.terminal import speaker, write, write_json

if TYPE_CHECKING:
    from headrace.monitor.review.reviewing import Review
    from headrace.runs.formats.review import GroupEstimate, ReviewEstimate

_say = speaker("review")
#: Nobody can tell yet.
_EXIT_INCONCLUSIVE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", metavar="DIR", help="the folder that the run has as --review")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--estimate", action="store_true", help="print the accuracy as far as it is known")
    what.add_argument("--export", metavar="FILE.csv", help="write the items as a table")
    what.add_argument("--import", dest="table", metavar="FILE.csv", help="take the verdicts of a table")
    what.add_argument("--golden", metavar="OUT", help="write reviewed items as a folder for a golden set")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--round", type=positive, metavar="N", help="which round (default: the last)")
    which.add_argument("--new-round", action="store_true", help="begin a round over all that is kept now")
    parser.add_argument(
        "--items", type=positive, default=100, metavar="N", help="after which the page calls a round done (default 100)"
    )
    parser.add_argument("--port", type=int, default=0, help="of the page (default: any that is free)")
    parser.add_argument(
        "--force", action="store_true", help="replace the file of --export, write into the folder of --golden"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the estimate as JSON (schema headrace.review_estimate/1)"
    )


def run(args: argparse.Namespace) -> int:
    """Open the page, or do what was asked for instead."""
    from headrace.monitor.review.reviewing import Review

    review = Review(Path(args.folder), args.round, is_new=args.new_round)
    for problem in review.problems:
        _say(f"warning: {problem}")
    if args.export:
        return _export(review, args)
    if args.golden:
        return _write_golden(review, args)
    if args.table:
        _import(review, args.table)
    elif not args.estimate and not args.json:
        _serve(review, args)
    return _print(review.estimate(), args)


def _serve(review: Review, args: argparse.Namespace) -> None:
    from headrace.monitor.review.page.server import ReviewServer

    with ReviewServer(review, args.items, args.port) as server:
        _say(f"round {review.round.number}, {pluralize(len(review.round.draws), 'item')}: open {server.address}")
        _say("the address is for you alone; Ctrl-C ends the page, every verdict is kept")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            _say("ended")


def _export(review: Review, args: argparse.Namespace) -> int:
    from headrace.cli.output_file import check_output, write_output
    from headrace.monitor.review.table import write_table

    check_output(args.export, force=args.force, option="--export")
    write_output(Path(args.export), write_table(review), option="--export")
    again = f"headrace review {quote_arg(args.folder)} --round {review.round.number} --import {quote_arg(args.export)}"
    _say(f"{args.export}: fill in the columns verdict (correct, wrong, unsure) and label, then: {again}")
    return EXIT_DONE


def _import(review: Review, table: str) -> None:
    from headrace.monitor.review.table import read_table

    said = read_table(Path(table))
    review.record(said)
    _say(f"{pluralize(len(said), 'verdict')} of {table} taken")


def _write_golden(review: Review, args: argparse.Namespace) -> int:
    from headrace.monitor.review.golden import write_golden

    num, num_left = write_golden(review, Path(args.golden), force=args.force)
    left = f"; {num_left} left out, without a picture or one right class" if num_left else ""
    _say(f"{pluralize(num, 'item')} in {args.golden}{left}")
    _say(f"look at them, then: headrace validate A B --golden {quote_arg(args.golden)} --pipeline MODULE:ATTRIBUTE")
    return EXIT_DONE


def _print(found: ReviewEstimate, args: argparse.Namespace) -> int:
    if args.json:
        write_json(found)
    else:
        for line in _list_lines(found):
            write(line)
    return EXIT_DONE if found.overall.accuracy is not None else _EXIT_INCONCLUSIVE


def _list_lines(found: ReviewEstimate) -> list[str]:
    from headrace.base.units import format_time

    lines = [
        f"round {found.round}, answers from {format_time(found.first_unix_seconds)} to {format_time(found.last_unix_seconds)}",
        found.says,
    ]
    if found.num_waiting:
        lines.append(f"{found.num_waiting} more reviewed, which count once those before them are reviewed too")
    if found.num_missed or found.num_uncovered:
        lines.append(
            f"in no count: {found.num_missed:,} answers that came too fast, {found.num_uncovered:,} of which nothing is kept"
        )
    groups = [one for one in (*found.by_arm, *found.by_class) if one.num_reviewed]
    if groups:
        head = ["answer", "answers", "reviewed", "wrong", "right", f"{found.confidence:.0%} confidence, each"]
        lines += ["", *align_columns([head, *map(_row, groups)])]
    return lines


def _row(one: GroupEstimate) -> list[str | None]:
    right = None if one.accuracy is None else f"{one.accuracy:.1%}"
    return [
        one.name or "(no class)", f"{one.num_answers:,}", str(one.num_reviewed), str(one.num_wrong), right,
        f"{one.low:.1%} to {one.high:.1%}",
    ]  # fmt: skip

"""Say whether training B is really faster than training A: both are run to their ends in turn, and their steps recorded.

    headrace train compare train.py faster.py
    headrace train compare "train.py --workers 0" "train.py --workers 4" --blocks 12
    headrace train compare "train.py" "torchrun --nproc-per-node 2 train.py"

A and B are each what stands behind `headrace train`, in quotes if it has arguments. Compared are samples per second of all
processes together, from the end of their first step on, so that how long a program takes to start does not count. Make the
trainings short: some seconds of steps, and two epochs if their turns matter.

Exit status: 0 done, or within the budget; 1 a loss beyond the budget; 4 it cannot be told yet whether the loss is within the
budget; 130 interrupted (Ctrl-C, SIGTERM), with the verdict from what was measured.
"""

from __future__ import annotations

import argparse

from headrace.cli.compare import add_length_arguments, given_length, report
from headrace.cli.end_signal import ended_by_sigterm
from headrace.cli.output_file import check_output
from headrace.cli.terminal import speaker

_say = speaker("train compare")


def add_word_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `headrace train compare`."""
    parser.add_argument("a", metavar="A", help="the training before: SCRIPT.py, in quotes with its arguments")
    parser.add_argument("b", metavar="B", help="the one after, the same")
    blocks = "pairs of runs (default 6, the fewest with an interval)"
    add_length_arguments(parser, blocks=blocks, time_limit="1h")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result as JSON (schema headrace.compare/1)")
    parser.add_argument("--force", action="store_true", help="replace FILE")
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.compare/1)")


def run_word(args: argparse.Namespace) -> int:
    """Compare, and print the verdict."""
    from headrace.compare.comparison import Question
    from headrace.train.in_turn import Amount, compare_trainings

    check_output(args.output, force=args.force)
    question = Question(margin=args.margin, budget=args.budget)
    amount = Amount(**given_length(args))
    with ended_by_sigterm():
        document = compare_trainings(args.a, args.b, question=question, amount=amount, say=_say)
    return report(args, document, per="of a step")

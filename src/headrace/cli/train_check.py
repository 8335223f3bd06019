"""Check that a training computes what it seems to: accumulated gradients, lower precision; say what checkpointing saves.

    headrace train check training.py:make
    headrace train check training.py:make --micro-batches 8 --ddp

FUNCTION returns a `headrace.train.Recipe`; its `accumulate` is your code for one update of several micro-batches. Its gradient
is compared with that of one batch of the same samples, and every reason for a difference is named. Then a batch is computed
under autocast in bfloat16 and float16, and the layer that makes NaN, overflows or is far from float32 is named. Then the memory
that each part keeps for the backward pass is counted, and the three best choices of parts to checkpoint are run.

Exit status: 0 nothing is wrong; 1 something is; 130 interrupted (Ctrl-C, SIGTERM), and nothing is printed of what was found.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
from headrace.cli.end_signal import ended_by_sigterm
from headrace.cli.pipeline_arguments import positive
from headrace.cli.terminal import speaker, write_answer
from headrace.cli.train_accept import accept, add_accept_arguments, check_file

if TYPE_CHECKING:
    from headrace.runs.formats.train_check import TrainCheckDocument

_say = speaker("train check")


def add_word_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `headrace train check`."""
    parser.add_argument("recipe", metavar="FILE.py:FUNCTION", help="returns the recipe; `make` if no function is named")
    parser.add_argument(
        "--only",
        choices=("accumulation", "precision", "checkpointing"),
        action="append",
        help="check this alone; may be repeated",
    )
    parser.add_argument(
        "--micro-batches", type=parts, default=4, metavar="K", help="parts of the large batch, 2 or more (default 4)"
    )
    parser.add_argument(
        "--samples", type=positive, metavar="N", help="samples of a part (default: the recipe's batch size / K)"
    )
    parser.add_argument(
        "--ddp", action="store_true", help="also count exchanges of gradients under DistributedDataParallel"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the recipe's random numbers (default 0)")
    add_accept_arguments(parser, "checkpointed")
    parser.add_argument("--json", action="store_true", help="print JSON (schema headrace.train_check/1)")


def parts(text: str) -> int:
    """Return into how many parts a batch is cut."""
    found = positive(text)
    if found < 2:
        raise argparse.ArgumentTypeError(f"expected 2 or more, got {text}")
    return found


def run_word(args: argparse.Namespace) -> int:
    """Check, and print what was found."""
    from headrace.cli.train_check_text import as_text
    from headrace.train.search.checks import CHECKS, check_training

    check_file(args.accept)
    with ended_by_sigterm():
        document = check_training(
            args.recipe,
            checks=args.only or CHECKS,
            micro_batches=args.micro_batches,
            micro_batch_size=args.samples,
            with_ddp=args.ddp,
            seed=args.seed,
        )
    write_answer(document, as_text, as_json=args.json)
    checkpointing = document.checkpointing
    if args.accept is not None and checkpointing is not None and checkpointing.proposed:
        why = f"headrace train check {args.recipe}: these parts are worth a checkpoint"
        _say(accept(args.accept, "checkpointed", list(checkpointing.proposed), why=why, ledger=args.ledger))
    return EXIT_NEGATIVE if _is_wrong(document) else EXIT_DONE


def _is_wrong(document: TrainCheckDocument) -> bool:
    accumulation = document.accumulation
    defects = accumulation is not None and any(finding.is_defect for finding in accumulation.findings)
    return defects or any(check.findings for check in document.precision)

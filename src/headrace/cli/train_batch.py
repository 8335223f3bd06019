"""Find the batch size that a model trains best with: by memory, throughput and validation loss.

    headrace train batch training.py:make
    headrace train batch training.py:make --memory 2GB

FUNCTION returns a `headrace.train.Recipe`: model, loss, data and optimizer. Sizes double from 1, each in a process of its own:
one that does not fit ends nothing. What is recommended was run, and leaves 10 % of the memory free. With `validation` data in
the recipe, a larger batch than the present one is recommended only if its validation loss after the same samples is not worse.

Exit status: 0 a size was found; 1 not even one sample fits; 130 interrupted (Ctrl-C, SIGTERM), with what was measured printed.
"""

from __future__ import annotations

import argparse

from headrace.cli import answer_status
from headrace.cli.end_signal import ended_by_sigterm
from headrace.cli.pipeline_arguments import points, positive, seconds
from headrace.cli.terminal import speaker, write_answer
from headrace.cli.train_accept import accept, add_accept_arguments, check_file

_say = speaker("train batch")


def add_word_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `headrace train batch`."""
    parser.add_argument("recipe", metavar="FILE.py:FUNCTION", help="returns the recipe; `make` if no function is named")
    parser.add_argument(
        "--memory", type=size, metavar="SIZE", help="the training process may take so much, such as 2GB (default: all)"
    )
    parser.add_argument("--largest", type=positive, metavar="N", help="no size above it (default: the data set's)")
    parser.add_argument(
        "--seconds", type=seconds, default=1.0, metavar="TIME", help="time steps of a size so long (default 1s)"
    )
    parser.add_argument(
        "--samples",
        type=positive,
        metavar="N",
        help="compare validation losses after N samples (default: the data once)",
    )
    parser.add_argument(
        "--learning-rate",
        choices=("linear", "sqrt", "none"),
        default="linear",
        metavar="RULE",
        help="it grows with the batch size: linear (default), sqrt, or none: it stays",
    )
    parser.add_argument(
        "--seeds", type=seeds, default=6, metavar="N", help="trainings of a size, 6 or more (default 6)"
    )
    parser.add_argument(
        "--margin", type=points, default=0.01, metavar="SHARE", help="a loss higher by this is no worse (default 1%%)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the recipe's random numbers (default 0)")
    add_accept_arguments(parser, "batch_size")
    parser.add_argument("--json", action="store_true", help="print JSON (schema headrace.batch_search/1)")


def size(text: str) -> int:
    """Return bytes above 0 from `2GB`."""
    from headrace.base.units import parse_size

    try:
        found = parse_size(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found <= 0:
        raise argparse.ArgumentTypeError(f"expected more than 0 bytes, got {text}")
    return found


def seeds(text: str) -> int:
    """Return how many seeds are compared: fewer than six allow no interval at 95 %."""
    found = positive(text)
    if found < 6:
        raise argparse.ArgumentTypeError(f"expected 6 or more, got {text}: fewer allow no interval at 95 %")
    return found


def run_word(args: argparse.Namespace) -> int:
    """Search, and print what was found."""
    from headrace.cli.train_batch_text import as_text, loss_line, trial_line
    from headrace.train.search.batch_search import SearchSettings, search_batch_size

    check_file(args.accept)
    settings = SearchSettings(
        memory_bytes=args.memory,
        seconds=args.seconds,
        largest=args.largest,
        seed=args.seed,
        loss_samples=args.samples,
        rate_rule=args.learning_rate,
        num_seeds=args.seeds,
        margin=args.margin,
    )
    with ended_by_sigterm():
        document = search_batch_size(
            args.recipe,
            settings,
            on_trial=lambda trial: _say(trial_line(trial)),
            on_comparison=lambda loss: _say(loss_line(loss)),
        )
    write_answer(document, as_text, as_json=args.json)
    if args.accept is not None and document.batch_size is not None and not document.interrupted:
        why = f"headrace train batch {args.recipe}: {document.present_batch_size} -> {document.batch_size}"
        _say(accept(args.accept, "batch_size", document.batch_size, why=why, ledger=args.ledger))
    return answer_status(interrupted=document.interrupted, is_found=document.batch_size is not None)

"""Train one model on several ranks by data, by parts of the model, and as a pipeline: which way is fastest, and who waits.

    headrace train parallel training.py:make
    headrace train parallel --ranks 2 --micro-batches 8 mypackage.training:make

FUNCTION returns a `headrace.train.Recipe`: model, loss, data and optimizer, as for `headrace train batch`. Ranks are processes
of this machine that exchange over gloo. The ways take turns: one rank alone; data (DistributedDataParallel); model: parts of a
torch.nn.Sequential on ranks of their own, one after the other; pipelines of the same parts, with micro-batches, in the orders
GPipe and 1F1B of torch.distributed.pipelining. All train the same batch, so their losses have to be alike; that is checked.

The bubble is the share of the ranks' time in which they wait for another stage. It is predicted from what each stage takes
while the others do nothing, and measured. Ranks that share cores take them from one another: with more ranks than cores these
figures say more of the machine than of the ways, and a warning says so.

Exit status: 0 measured; 1 a rank failed or hangs; 130 interrupted (Ctrl-C, SIGTERM), with the rounds that were done printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, escape_controls, wrap_lines
from headrace.base.units import format_duration, format_number
from headrace.cli import EXIT_NEGATIVE, answer_status
from headrace.cli.end_signal import ended_by_sigterm
from headrace.cli.pipeline_arguments import positive, seconds
from headrace.cli.terminal import say, write_answer

if TYPE_CHECKING:
    from headrace.runs.formats.parallel import MeasuredWay, ParallelDocument


def add_word_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `headrace train parallel`."""
    parser.add_argument("recipe", metavar="FILE.py:FUNCTION", help="returns the recipe; `make` if no function is named")
    parser.add_argument(
        "--ranks", type=positive, default=2, metavar="N", help="processes that share the work (default 2)"
    )
    parser.add_argument(
        "--micro-batches", type=positive, metavar="N", help="of a pipeline's batch (default: twice the ranks)"
    )
    parser.add_argument(
        "--steps", type=positive, default=10, metavar="N", help="of each way in each round (default 10)"
    )
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="the ways take turns (default 3)")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="of each rank (default 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the recipe's random numbers (default 0)")
    parser.add_argument(
        "--patience", type=seconds, default=600.0, metavar="TIME", help="ranks that take longer hang (default 10min)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (schema headrace.parallel/1)")


def run_word(args: argparse.Namespace) -> int:
    """Measure, and print what was found."""
    from headrace.train.ranks.launch import RanksFailed
    from headrace.train.ranks.parallel import ParallelSettings, measure_ways

    try:
        with ended_by_sigterm():
            document = measure_ways(
                ParallelSettings(
                    recipe=args.recipe,
                    ranks=args.ranks,
                    micro_batches=args.micro_batches or 2 * args.ranks,
                    steps=args.steps,
                    rounds=args.rounds,
                    threads=args.threads,
                    seed=args.seed,
                    patience=args.patience,
                )
            )
    except RanksFailed as error:
        say(f"headrace: {escape_controls(str(error))}")
        return EXIT_NEGATIVE
    write_answer(document, as_text, as_json=args.json)
    return answer_status(interrupted=document.interrupted, is_found=True)


def as_text(document: ParallelDocument) -> str:
    """Return the whole answer, for a terminal of 80 columns."""
    head = (
        f"{document.recipe}: a batch of {document.batch_size} on {document.ranks} ranks, {document.threads} thread(s) each, "
        f"{document.num_cores} core(s)"
    )
    paragraphs = [
        wrap_lines([head]),
        list(_table(document)),
        list(_stages(document)),
        wrap_lines(f"warning: {warning}" for warning in document.warnings),
        ["interrupted: these are the rounds that were done"] if document.interrupted else [],
    ]
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n"


def _table(document: ParallelDocument) -> Iterator[str]:
    one = document.ways[0].samples_per_second
    rows: list[tuple[str, ...]] = [("way", "samples/s", "of one", "step", "bubble", "predicted", "kept")]
    rows += [_row(way, one) for way in document.ways]
    yield from align_columns(rows)
    fastest = max(document.ways, key=lambda way: way.samples_per_second)
    yield ""
    says = (
        f"fastest: {fastest.way}. bubble: share of the ranks' time that is waiting for another stage; predicted from "
        "stages that were timed alone. kept: micro-batches whose activations a rank held at once"
    )
    yield from wrap_lines([says])


def _row(way: MeasuredWay, one: float) -> tuple[str, ...]:
    bubble = ("-", "-") if way.bubble is None else (f"{way.bubble.measured:.1%}", f"{way.bubble.predicted:.1%}")
    return (
        str(way.way),
        format_number(way.samples_per_second),
        f"x{way.samples_per_second / one:.2f}",
        format_duration(way.step_seconds),
        *bubble,
        f"{way.kept} of {way.micro_batches}",
    )


def _stages(document: ParallelDocument) -> Iterator[str]:
    pipelined = document.ways[-1]
    if not pipelined.stages:
        return
    rows = [("rank", "layers", "forward", "backward", "to the next")]
    rows += [
        (
            str(rank),
            stage.layers[0] if len(stage.layers) == 1 else f"{stage.layers[0]} to {stage.layers[-1]}",
            format_duration(stage.forward_seconds),
            format_duration(stage.backward_seconds),
            format_duration(stage.transfer_seconds) if stage.transfer_seconds else "-",
        )
        for rank, stage in enumerate(pipelined.stages)
    ]
    yield "stages, one micro-batch, timed alone:"
    yield from align_columns(rows)

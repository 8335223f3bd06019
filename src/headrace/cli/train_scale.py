"""Train a script on 1, 2 and 4 ranks for a short while each: what more ranks bring, what takes the rest, and what would help.

    headrace train scale train.py --epochs 3
    headrace train scale --ranks 1,2 --steps 50 -o runs/scale train.py
    headrace train scale -m mypackage.train

The script is one for torchrun: it calls torch.distributed.init_process_group("gloo"), and has its model in
DistributedDataParallel. It is not changed, and each training ends after --steps steps, all ranks after the same one. The
numbers of ranks are trained in turn, in --rounds rounds; ranks have one thread each, in all of them.

Printed are samples per second, efficiency (over those of one rank times the ranks) and the parts that take the rest and add up:
loading, computing, no core, waiting for the last rank, transfer, optimizer, rest. Then an all-reduce is measured between two
ranks that do nothing else, and more ranks are predicted from the training of one rank: on this machine, and with a machine
each; and the bandwidth below which more ranks are slower than one.

Ranks that share cores take them from one another. On a machine of 2 cores, 4 ranks say more of that than of scaling: `no core`
is the part that a machine for each rank would not have.

Exit status: 0 measured; 1 a training failed, with what was measured printed; 130 interrupted (Ctrl-C, SIGTERM), the same.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from headrace.cli import answer_status
from headrace.cli.end_signal import ended_by_sigterm
from headrace.cli.pipeline_arguments import positive, seconds, sizes
from headrace.cli.terminal import say, speaker, write_answer

_say = speaker("train scale")


def add_word_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `headrace train scale`."""
    parser.usage = "headrace train scale [OPTION]... (SCRIPT.py | -m MODULE) [ARGUMENT]..."
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        help="for run folders and scaling.json (default: runs/scale-DATE-TIME, a new one)",
    )
    parser.add_argument("--force", action="store_true", help="replace what an earlier command left in the folder")
    parser.add_argument(
        "--ranks", type=ranks, default=(1, 2, 4), metavar="N,N,...", help="numbers of ranks, with 1 (default 1,2,4)"
    )
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="trainings of each number (default 3)")
    parser.add_argument("--steps", type=steps, default=30, metavar="N", help="of each training, 8 or more (default 30)")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="of each rank (default 1)")
    parser.add_argument(
        "--patience",
        type=seconds,
        default=600.0,
        metavar="TIME",
        help="a training that takes longer hangs (default 10min)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (schema headrace.scaling/1)")
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="a module, with its arguments"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="SCRIPT", help="script, with its arguments")


def ranks(text: str) -> tuple[int, ...]:
    """Return numbers of ranks, 1 among them: it is what the others are measured against."""
    found = tuple(sorted(set(sizes(text))))
    return found if found[0] == 1 else (1, *found)


def steps(text: str) -> int:
    """Return steps of a training: without the first three there have to be some left."""
    found = positive(text)
    if found < 8:
        raise argparse.ArgumentTypeError(f"expected 8 or more, got {text}: the first 3 are left out")
    return found


def run_word(args: argparse.Namespace) -> int:
    """Measure, and print what was found."""
    from headrace.cli.train_scale_text import as_text
    from headrace.train.ranks.ladder import Ladder, LadderSettings

    settings = LadderSettings(
        argv=_argv(args),
        output=Path(args.output or Path("runs", f"scale-{time.strftime('%Y%m%d-%H%M%S')}")),
        ranks=args.ranks,
        rounds=args.rounds,
        steps=args.steps,
        threads=args.threads,
        patience=args.patience,
        force=args.force,
    )
    with ended_by_sigterm():
        document = Ladder(settings, _say).measure()
    if args.json or document.rungs:
        write_answer(document, as_text, as_json=args.json)
    for failure in document.failures:
        say(f"headrace train scale: {failure}")
    if not document.rungs and not document.failures:
        say("headrace train scale: interrupted before one rank had trained: nothing was measured")
    is_found = bool(document.rungs) and not document.failures
    return answer_status(interrupted=document.interrupted, is_found=is_found)


def _argv(args: argparse.Namespace) -> tuple[str, ...]:
    from headrace.base.errors import SettingsError

    if args.module is not None:
        given = [*args.module, *args.program]
        if not given:
            raise SettingsError("-m names no module; expected `headrace train scale -m MODULE [ARGUMENT]...`")
        return ("-m", *given)
    given = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not given:
        raise SettingsError("no script is named; expected `headrace train scale SCRIPT.py [ARGUMENT]...`")
    if not Path(given[0]).is_file():
        hint = "; name the script alone, ranks are started here" if Path(given[0]).name == "torchrun" else ""
        raise SettingsError(f"script {given[0]!r} does not exist; the working folder is {Path.cwd()}{hint}")
    return tuple(given)

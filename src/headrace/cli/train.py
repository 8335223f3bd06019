"""Run a training script and record where each of its steps goes; nothing in the script changes.

    headrace train train.py --epochs 3                      as `python train.py --epochs 3`, and recorded
    headrace train -o runs/first train.py --epochs 3        into this run folder
    headrace train -m mypackage.train --epochs 3            a module, as `python -m` runs it
    headrace train torchrun --nproc-per-node 2 train.py     any program: every process that trains is recorded
    headrace diagnose runs/first                            what limits the steps

The script is a process of its own, run by the same Python, with the same arguments, folder, streams and exit status. It gives
the same results bit by bit. Options of headrace stand before the script; everything behind it is the script's.

Recorded is each step from the request for its first batch to the next: waiting for data, forward, loss, backward, optimizer,
and all between, for plain PyTorch loops and for what is built on them. Recording takes about 0.1 ms of a step.
Steps that differ (first of an epoch, compiled again) and validation are kept apart.

Ctrl-C reaches the script as usual; what was measured is kept. A second Ctrl-C ends a script that goes on. If headrace itself
is killed, the script gets SIGTERM, and SIGKILL if it still runs after 30 seconds. What headrace says goes to stderr. The exit
status is the script's own, also if the profile is lost (a full disk); or 1 if it ended well and no step was seen.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.formatting import quote_arg
from headrace.cli.terminal import is_quiet, say, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.diagnose.training.steps import RankSteps
    from headrace.train.recording import Recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.usage = (
        "headrace train [-o RUN] [--force] [--torch-profiler SCHEDULE] [--ranges nvtx|itt] [--json] (SCRIPT.py | "
        "-m MODULE | PROGRAM) [ARGUMENT]..."
    )
    parser.add_argument(
        "-o", "--output", metavar="RUN", help="the run folder to write (default: runs/NAME-DATE-TIME, a new one)"
    )
    parser.add_argument("--force", action="store_true", help="replace an earlier run in the folder")
    parser.add_argument(
        "--torch-profiler",
        metavar="SCHEDULE",
        help="let torch.profiler record some steps, such as wait=20,warmup=2,active=5,repeat=1; its traces go into the run "
        "folder, numbered as the steps there, and these steps are in no figure. stack=1 and shapes=1 record more",
    )
    parser.add_argument(
        "--layers",
        action="store_true",
        help="time the parts of the model, forward and backward, in eight steps after the tenth; these are in no figure",
    )
    parser.add_argument(
        "--ranges",
        choices=("nvtx", "itt"),
        help="make each phase a range that Nsight Systems (nvtx) or VTune (itt) draws",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document on stdout at the end (schema headrace.train/1); the script's stdout goes to stderr",
    )
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module, with its arguments"
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="SCRIPT", help="script, or program, with its arguments"
    )


def run(args: argparse.Namespace) -> int:
    """Run the program, finish its run folder and say what was recorded."""
    from headrace.base.errors import SettingsError
    from headrace.cli import go_on_unread, report_error
    from headrace.cli.train_words import is_word, run_word
    from headrace.train.profiler_schedule import parse_schedule
    from headrace.train.recording import find_program, record_program

    if args.module is None and is_word(args.program):
        return run_word(args.program)
    argv, name = find_program(args.program if args.module is None else ["-m", *args.module, *args.program])
    if args.torch_profiler is not None:
        parse_schedule(args.torch_profiler)  # refused before anything runs
        if args.layers:
            raise SettingsError("--layers and --torch-profiler would slow the same steps: name one of them")
    output = Path(args.output) if args.output else new_folder(name)
    if outer := os.environ.get("HEADRACE_TRAIN"):
        say(
            f"headrace train: another `headrace train` runs this one; steps of {name} go into {output}, and not into {outer}"
        )
    recording = record_program(
        argv, name, output, force=args.force, stdout=2 if args.json else 1, variables=_variables(args)
    )
    try:
        status = _report(recording, name, as_json=args.json)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        go_on_unread()
        return recording.ending.exit_status
    except Exception as error:
        # Batch systems act by the status: what headrace cannot say once the script has ended is no failure of the script.
        report_error(error)
        say(_describe_loss(recording, name, "the lines above say why"))
        return recording.ending.exit_status


def new_folder(program: str) -> Path:
    """Return a folder for a run that was given no name."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(program).name.removesuffix(".py")).strip("-")
    return Path("runs", f"{name or 'train'}-{time.strftime('%Y%m%d-%H%M%S')}")


def _variables(args: argparse.Namespace) -> dict[str, str]:
    """Return the variables of the program that ask for more than recording."""
    from headrace.train import profiler_schedule

    asked = {
        profiler_schedule.VARIABLE: args.torch_profiler,
        profiler_schedule.LAYERS_VARIABLE: "1" if args.layers else None,
        "HEADRACE_TRAIN_RANGES": args.ranges,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _report(recording: Recording, name: str, *, as_json: bool) -> int:
    """Say what was recorded; return the exit status."""
    from headrace.cli import EXIT_NEGATIVE
    from headrace.cli.training_text import as_text

    folder, ending = recording.folder, recording.ending
    ranks, problem = _read(recording)
    if problem:
        say(_describe_loss(recording, name, problem))
    elif ending.reason and ranks:
        say(f"headrace train: {name}: {ending.reason}; what was recorded until then is in {folder}")
    elif ending.reason:
        say(
            f"headrace train: {name}: {ending.reason}, and no training step is in {folder}: steps are written every two "
            "seconds and at the end of a process, and what it printed above may say how it ended"
        )
    elif not ranks:
        say(
            f"headrace train: no training step was seen in {name}. Recorded are Pythons that import PyTorch and call an "
            "optimizer (torch.optim) or backward(); not those started with -I, -E or -S, by another user, or on another "
            "machine; what a `headrace train` within it started is in that one's folder. "
            f"If spans could not be written, it is said above. Does {name} train with these arguments? The empty "
            f"run folder is {folder}"
        )
    if as_json:
        write_json(_document(recording, ranks, problem))
    elif ranks and not is_quiet():
        say(f"\n{as_text(folder)}\nrun folder: {folder}\nwhat limits it: headrace diagnose {quote_arg(folder)}")
    return ending.exit_status or (0 if ranks or problem else EXIT_NEGATIVE)


def _read(recording: Recording) -> tuple[list[RankSteps], str]:
    """Return what is in the run folder, and what keeps it from being all that was recorded; empty: nothing does."""
    from headrace.base.errors import HeadraceError
    from headrace.diagnose.training.steps import read_steps
    from headrace.diagnose.training.trust import describe_lost
    from headrace.runs.reader import read_run

    problem = "" if recording.problem is None else str(recording.problem)
    try:
        ranks = read_steps(found := read_run(recording.folder))
    except (HeadraceError, OSError) as error:
        return [], problem or str(error)
    return ranks, problem or ("" if ranks or recording.ending.reason else "; ".join(describe_lost(found, ranks)))


def _describe_loss(recording: Recording, name: str, problem: str) -> str:
    return (
        f"headrace train: THE PROFILE IS LOST, OR NOT WHOLE: {problem}. {name} itself ended with exit status "
        f"{recording.ending.exit_status}, which is the one of this command. The run folder is {recording.folder}"
    )


def _document(recording: Recording, ranks: Sequence[RankSteps], problem: str) -> dict[str, Any]:
    ending = recording.ending
    return {
        "schema": "headrace.train/1",
        "run": str(recording.folder),
        "problem": problem or None,
        "status": ending.status,
        "exit_status": ending.exit_status,
        "signal": ending.signal or None,
        "processes": [
            {
                "rank": one.rank,
                "host": one.host,
                "process": one.process,
                "steps": len(one.steps),
                "validation": len(one.validation),
                "between": len(one.between),
            }
            for one in ranks
        ],
    }

"""Read traces of torch.profiler, and say what limits the training in them: nothing has to run again.

    headrace train read trace.json
    headrace train read rank0.json.gz rank1.json.gz -o runs/traced
    headrace train read logs/                                  all traces in a folder, as tensorboard_trace_handler writes them

Makes an ordinary run folder of the traces, which diagnose and report read. Steps are what `prof.step()` marked; without it
they are inferred, and that is said. With a GPU in the trace the verdict is about the GPU: when it is idle, and what the host
does then. Give the traces of all ranks to have stragglers named. A file that is cut off is read up to there.

What a trace has not: CPU time, what loading costs in worker processes, samples, memory. `headrace train SCRIPT.py` measures
these.

Exit status: 0 steps were read; 4 inconclusive.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.base.formatting import quote_arg
from headrace.cli.terminal import is_quiet, say, write, write_json


def add_word_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `headrace train read`."""
    parser.add_argument(
        "traces",
        nargs="+",
        metavar="TRACE",
        help="a Chrome trace of torch.profiler (.json, .json.gz), or a folder of them",
    )
    parser.add_argument(
        "-o", "--output", metavar="RUN", help="the run folder to write (default: runs/NAME-DATE-TIME, a new one)"
    )
    parser.add_argument("--force", action="store_true", help="replace an earlier run in the folder")
    parser.add_argument("--json", action="store_true", help="print JSON (schema headrace.diagnosis/1)")


def run_word(args: argparse.Namespace) -> int:
    """Read the traces and print what limits the training."""
    from headrace.cli.diagnose import status_of
    from headrace.cli.train import new_folder
    from headrace.cli.training_text import analysis_text
    from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training
    from headrace.runs.reader import read_run
    from headrace.train.trace.reading import read_traces

    paths = [Path(text) for text in args.traces]
    output = Path(args.output) if args.output else new_folder(paths[0].name.removesuffix(".gz").removesuffix(".json"))
    folder = read_traces(paths, output, force=args.force)
    analysis = TrainingAnalysis(read_run(folder))
    document = diagnose_training(analysis)
    if args.json:
        write_json(document)
    else:
        write(analysis_text(analysis, document), end="")
    if not is_quiet():
        say(
            f"run folder: {folder}\nagain, or as a page: headrace diagnose {quote_arg(folder)}, headrace report "
            f"{quote_arg(folder)}"
        )
    return status_of(document)

"""Show the history of runs: each a line, and whether stages take more CPU time per item than they used to.

    headrace run jobs:pipeline --history runs/history.sqlite      the run adds itself; serve and profile do so, too
    export HEADRACE_HISTORY=runs/history.sqlite                   say it once for all runs
    headrace history                                              the newest lines, and a verdict for each stage
    headrace history add runs/monday runs/tuesday                 add run folders and incidents that are there already
    headrace history show h12                                     one line with all that is known
    headrace history page -o history.html                         all of it as a page, with the ledger's decisions
    headrace history restart jobs:pipeline --why "new camera"     compare with a new baseline from now on

The first windows (hours, unless --window or --history-window says otherwise) of a pipeline, Plan and machine family are the
baseline. The others are compared with it in CPU time per item, at equal input size: the same, slower or faster by x % with a
95 % interval, or cannot tell yet. A slowdown is called one when a sequential test says so, which may be looked at at any time;
in simulations it raised a false alarm in one of sixty weeks of hours. What all stages have in common is judged apart, against a
small piece of work that the run does beside; where that was not measured, the machine's speed is in it, and only more than a
tenth counts.

Exit status: 0 done; 1 with --fail-if-slower, if a stage is slower than in its baseline; 2 misuse.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
from headrace.cli.output_file import check_output, write_output
from headrace.cli.pipeline_arguments import positive, seconds
from headrace.cli.terminal import speaker, write, write_json

if TYPE_CHECKING:
    from headrace.monitor.history.store import History
    from headrace.runs.formats.history import HistoryDocument

_say = speaker("history")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    _add_common(parser)
    _add_list(parser)
    parser.set_defaults(action=None)
    actions = parser.add_subparsers(dest="action", metavar="{list,add,show,page,restart}")
    listing = actions.add_parser("list", help="the newest lines, and a verdict for each stage; also without an action")
    _add_list(listing)
    adding = actions.add_parser("add", help="add run folders, or incidents")
    adding.add_argument("runs", nargs="+", metavar="RUN", help="a run folder, that of a supervised run, or an incident")
    adding.add_argument("--window", type=seconds, metavar="TIME", help="length of a window (default 1h)")
    adding.add_argument("--no-diagnosis", action="store_true", help="do not find the bottleneck, which takes seconds")
    show = actions.add_parser("show", help="one line with all that is known")
    show.add_argument("id", metavar="ID", help="of the line, such as h12")
    page = actions.add_parser("page", help="write a page: throughput and CPU time over time")
    page.add_argument("-o", "--output", required=True, metavar="FILE", help="the HTML file")
    page.add_argument("--force", action="store_true", help="replace FILE")
    restart = actions.add_parser("restart", help="compare with a new baseline from now on")
    restart.add_argument("pipeline", metavar="MODULE:ATTRIBUTE", help="the pipeline, as the history names it")
    restart.add_argument("--why", default="", metavar="TEXT", help="the reason, to be written down")
    for action in (listing, page):
        action.add_argument("--pipeline", metavar="MODULE:ATTRIBUTE", default=argparse.SUPPRESS, help=_ONLY)
    for action in (listing, adding, show, page, restart):
        _add_common(action, default=argparse.SUPPRESS)


_ONLY = "only of this pipeline"


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=positive, default=20, metavar="N", help="show N lines at most (default 20)")
    parser.add_argument("--fail-if-slower", action="store_true", help="exit with 1 if a stage is slower")


def _add_common(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument(
        "--history", metavar="FILE", default=default, help="default: $HEADRACE_HISTORY, else runs/history.sqlite"
    )
    parser.add_argument(
        "--ledger", metavar="FILE", default=default,
        help="whose decisions stand beside the runs (default: $HEADRACE_LEDGER, else runs/ledger.sqlite)",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", default=default or False, help="print JSON (schema headrace.history/1)"
    )


def run(args: argparse.Namespace) -> int:
    """Carry out the action and print what came of it."""
    from headrace.monitor.history.store import History, history_path

    if args.action == "page":
        check_output(args.output, force=args.force)
    with History(history_path(args.history), must_exist=args.action != "add") as history:
        return _ACTIONS[args.action or "list"](history, args)


def _document(history: History, args: argparse.Namespace) -> HistoryDocument:
    from headrace.ledger.ledger import ledger_path
    from headrace.monitor.history.document import make_document

    return make_document(history, pipeline=getattr(args, "pipeline", None), ledger=ledger_path(args.ledger))


def _list(history: History, args: argparse.Namespace) -> int:
    import msgspec

    from headrace.cli.history_text import as_text

    document = _document(history, args)
    if args.json:
        write_json(msgspec.structs.replace(document, lines=document.lines[: args.n]))
    else:
        write(as_text(document, args.n), end="")
    is_slower = any(stage.verdict == "slower" for verdict in document.baselines for stage in verdict.stages)
    return EXIT_NEGATIVE if args.fail_if_slower and is_slower else EXIT_DONE


def _add(history: History, args: argparse.Namespace) -> int:
    from headrace.monitor.history.lines import add_run
    from headrace.monitor.history.windows import WINDOW_SECONDS

    for name in args.runs:
        _say(f"reading {name}")
        for problem in add_run(
            history, Path(name), seconds=args.window or WINDOW_SECONDS, diagnose=not args.no_diagnosis
        ):
            _say(problem)
    args.n, args.fail_if_slower = len(args.runs), False
    return _list(history, args)


def _show(history: History, args: argparse.Namespace) -> int:
    from headrace.base.errors import LedgerError
    from headrace.cli.history_text import line_as_text
    from headrace.runs.formats.history import HistoryDocument

    found = [line for line in history.lines() if line.id == args.id]
    if not found:
        raise LedgerError(
            f"the history {history.path} has no line {args.id}; `headrace history` lists them: h1, h2, ..."
        )
    if args.json:
        write_json(HistoryDocument(file=str(history.path), lines=tuple(found)))
    else:
        write(line_as_text(found[0]), end="")
    return EXIT_DONE


def _page(history: History, args: argparse.Namespace) -> int:
    from headrace.monitor.history.document import read_windows
    from headrace.monitor.history.page import render_history

    document = _document(history, args)
    windows = [read_windows(history, verdict) for verdict in document.baselines]
    write_output(Path(args.output), render_history(document, windows))
    if args.json:
        write_json(document)
    return EXIT_DONE


def _restart(history: History, args: argparse.Namespace) -> int:
    from headrace.base.errors import LedgerError
    from headrace.runs.formats.history import HistoryLine

    known = sorted({line.pipeline for line in history.lines() if line.kind == "run"})
    if args.pipeline not in known:
        names = ", ".join(known) or "none yet"
        raise LedgerError(f"the history {history.path} has no run of {args.pipeline}; it has runs of: {names}")
    now = time.time()
    history.add_line(
        HistoryLine(
            kind="restart", began_unix_seconds=now, ended_unix_seconds=now, pipeline=args.pipeline,
            says=args.why or "a new baseline from here on",
        )
    )  # fmt: skip
    args.n, args.fail_if_slower = 5, False
    return _list(history, args)


_ACTIONS: dict[str, Callable[[History, argparse.Namespace], int]] = {
    "list": _list,
    "add": _add,
    "show": _show,
    "page": _page,
    "restart": _restart,
}

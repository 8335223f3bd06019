"""The command line: one module per command, each with `add_arguments(parser)` and `run(args) -> exit status`.

A command's module docstring is its help. Results go to stdout, progress and errors to stderr. Exit status: 0 done; 1 a
negative answer to a goal that the user stated, or nothing came of the work; 2 misuse; 3 something missing on this machine;
4 inconclusive; 70 a defect of headrace itself; 130 interrupted, with what was measured kept.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import logging
import os
import re
import sys
import termios
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from headrace import __version__
from headrace.base.error_origin import is_of_user
from headrace.base.errors import HeadraceError, Interrupted, LedgerError, RunFolderError, SettingsError
from headrace.base.formatting import showable
from headrace.base.redaction import hide_secrets_in_text
from headrace.cli.terminal import say, set_style, stamp

#: In the order in which a user meets them.
COMMANDS = {
    "demo": "see what headrace does, on real photographs, in a minute",
    "run": "run a pipeline",
    "gather": "put together what the runs over portions of a source wrote (run --shard)",
    "canary": "try another Plan's model on a share of a running pipeline's jobs",
    "serve": "answer HTTP requests with a pipeline, or put them into a queue",
    "profile": "run a pipeline and measure where every millisecond goes",
    "train": "run a training script and record where each of its steps goes",
    "report": "make one HTML page of a run",
    "snapshot": "write the last minutes of a run, and say why it is or was slow",
    "diagnose": "say what limits a recorded run, why, and what fixing it would buy",
    "explain": "explain a verdict: what it means, how it is recognised, and what to do about it",
    "whatif": "predict what a change would do to a recorded run",
    "tune": "find a better Plan, and prove it by measuring",
    "loop": "make a pipeline faster unattended: profile, diagnose, tune or optimize, validate",
    "ladder": "show what each step from a sequential run to a Plan gives, together and alone",
    "capacity": "say how many machines a rate needs, what they cost, and what each improvement saves",
    "compare": "say whether one Plan, pipeline or run is really faster than another",
    "gate": "fail a build if a change makes a pipeline slower",
    "validate": "say whether one variant of a model may stand in for another",
    "optimize": "make a model cheaper, prove it, and write a Plan that uses the better variant",
    "review": "review a sample of a run's answers, and learn how accurate production is",
    "history": "show what became of runs over time, and which stages got slower",
    "ledger": "compare predictions with measurements; roll back a decision",
    "board": "show runs, incidents, decisions and what to do next on one page",
    "doctor": "say whether this machine is what a Plan, a run or another machine was proved on",
    "monitor": "look at what watches a pipeline: drift of its input, alert rules, a dashboard",
    "fleet": "show all workers of all machines, and which of them are silent or stuck",
    "deploy": "write what runs a pipeline elsewhere: systemd unit, Kubernetes manifests, Containerfile",
    "submit": "put jobs into a queue",
    "queue": "look into a queue and its dead letters",
    "clip": "keep a stretch of live streams as clips, to tune and compare on",
    "pack": "pack many small files into few large ones that are read faster",
    "samples": "make labelled sample images",
    "completion": "print what completes commands and options in bash or zsh",
}

EXIT_DONE = 0
EXIT_NEGATIVE = 1
EXIT_MISUSE = 2
EXIT_MISSING = 3
EXIT_DEFECT = 70
EXIT_INTERRUPTED = 130


def answer_status(*, interrupted: bool, is_found: bool) -> int:
    """Return the exit status of a command that looked for something, and printed what it found until then."""
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_DONE if is_found else EXIT_NEGATIVE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    with contextlib.ExitStack() as log:
        return run_reporting(lambda: _run(arguments, log))


def _run(arguments: Sequence[str] | None, log: contextlib.ExitStack) -> int:
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not sys.stdout:  # closed by the shell (`>&-`): nobody reads it, and no other file may get its number
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    parser = make_parser(argv)
    args, rest = parser.parse_known_args(argv)
    set_style(quiet=args.quiet, timestamps=args.timestamps)
    log.callback(set_style, quiet=False, timestamps=False)
    if rest and hasattr(args, "items") and not any(text.startswith("-") for text in rest):
        args.items += rest  # argparse gives up on a list of names once an option has come before it
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}{_suggest(rest[0], _options(parser, argv))}")
    begin_log(args, log)
    status: int = args.run(args)
    return status


def begin_log(args: argparse.Namespace, log: contextlib.ExitStack) -> None:
    """Say where log lines go, and which; commands that watch a run may have options of their own for that."""
    level = logging.INFO if args.verbose else logging.ERROR if args.quiet else logging.WARNING
    if hasattr(args, "log_format"):
        from headrace.cli.logs import open_log

        level = log.enter_context(open_log(args, level))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_ShowableFormatter("headrace: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def run_reporting(command: Callable[[], int]) -> int:
    """Run a command and return its exit status; print an error on stderr."""
    try:
        status = command()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return go_on_unread()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and not is_of_user(error):
            raise  # argparse has said what there is to say
        if _is_ctrl_c(error) and not isinstance(error, Interrupted):
            say("headrace: interrupted")
            return EXIT_INTERRUPTED
        if isinstance(error, OSError) and error.errno == errno.EIO and _is_terminal_gone():
            return go_on_unread()
        return report_error(error)


def go_on_unread() -> int:
    """End as usual: the reader (head, less) has seen enough, or is a closed terminal; Python would complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_DONE


def _is_terminal_gone() -> bool:
    try:
        termios.tcgetattr(sys.stdout.fileno())
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    except (OSError, ValueError):  # something else stands for stdout
        return False
    return False


def _is_ctrl_c(error: BaseException | None) -> bool:
    """Return whether Ctrl-C is behind an error: one within an import may come out as another exception."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def report_error(error: BaseException) -> int:
    """Print an error on stderr and return its exit status."""
    if isinstance(error, Interrupted):
        return _report_failure(error, EXIT_INTERRUPTED)
    if isinstance(error, SettingsError | RunFolderError | LedgerError):
        return _report_failure(error, EXIT_MISUSE)
    if isinstance(error, HeadraceError):
        return _report_failure(error, EXIT_MISSING)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return _report_failure(error, EXIT_MISSING)
    if is_of_user(error):
        say(hide_secrets_in_text(traceback.format_exc()), end="")
        say("headrace: the run was ended by code of yours, see the lines above")
        return EXIT_MISSING
    # Not Python's own 1: that would read as the answer to a goal.
    say(hide_secrets_in_text(traceback.format_exc()), end="")
    say("headrace: this is a defect of headrace; please report it with the lines above")
    return EXIT_DEFECT


class _ShowableFormatter(logging.Formatter):
    """Log lines name items, files and addresses of strangers, and say what others raised."""

    def format(self, record: logging.LogRecord) -> str:
        return stamp() + showable(hide_secrets_in_text(super().format(record)))


class _Parser(argparse.ArgumentParser):
    """Says which command was probably meant, and no secret of an address that stands where it does not belong."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"://\S*@", "://***@", message)
        found = re.search(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if found:
            message = (
                f"there is no command {found[1]!r}{_suggest(found[1], COMMANDS) or '; `headrace --help` lists them'}"
            )
        super().error(message)


def _suggest(given: str, known: Iterable[str]) -> str:
    """Return a question for what was probably meant; empty if nothing is like it."""
    close = difflib.get_close_matches(given.partition("=")[0], list(known), n=1)
    return f". Did you mean {close[0]}?" if close else ""


def _options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Return the options of the command that was given."""
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001
    return [
        option
        for name in argv
        if name in COMMANDS
        for action in commands.choices[name]._actions  # noqa: SLF001 - argparse has no public list of its options
        for option in action.option_strings
    ]


def make_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command line; only commands that are named among the arguments know their own."""
    parser = _Parser(
        prog="headrace",
        description="Runs a deep-learning pipeline at the limit of the hardware and shows where the time goes.",
        epilog="`headrace COMMAND --help` explains a command; `headrace demo` is the place to start.",
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    _add_general(parser, default=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        # Only the command that was asked for is imported: --help of the others needs no OpenCV.
        wanted = name in argv
        module = importlib.import_module(f"headrace.cli.{name}") if wanted else None
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__ if module else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if module:
            module.add_arguments(command)
            _add_general(command.add_argument_group("general"), default=argparse.SUPPRESS)
            command.set_defaults(run=module.run)
    return parser


def _add_general(parser: argparse._ActionsContainer, *, default: object) -> None:
    """Add the options that may stand before a command and behind it."""
    for names, says in (
        (("-v", "--verbose"), "report each item that fails, as it fails"),
        (("-q", "--quiet"), "print only results and errors: no progress, no warnings"),
        (("--timestamps",), "begin each line on stderr with the time in UTC"),
    ):
        parser.add_argument(*names, action="store_true", default=default, help=says)


def _report_failure(error: Exception, status: int) -> int:
    say(f"headrace: {showable(hide_secrets_in_text(str(error)))}")
    origin = getattr(error, "origin", None)
    if origin is not None:
        say(showable(origin.traceback))
    return status

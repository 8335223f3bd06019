"""What commands print: results to stdout, progress and errors to stderr.

Names in run folders, models, queues and golden sets are whatever their makers wrote. A terminal obeys some of what it shows:
it moves the cursor, changes colours or its title. So commands print through this module alone (a test looks), which escapes
what a terminal would obey.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Protocol, TextIO

from headrace.base.formatting import escape_controls, showable
from headrace.base.log_events import EventText

if TYPE_CHECKING:
    from rich.console import Console


_style = {"quiet": False, "timestamps": False}


class Log(Protocol):
    """What takes lines for people instead of stderr, where programs read the log."""

    def tell(self, line: object, level: int) -> None:
        """Take a line of a level of module `logging`."""
        ...

    def stream(self, event: str) -> TextIO:
        """Return a stream whose lines are events of a name."""
        ...


_log: list[Log] = []


def write(text: object = "", end: str = "\n") -> None:
    """Print part of a command's result."""
    sys.stdout.write(showable(text) + end)


def write_machine_readable(text: str) -> None:
    """Print JSON or TOML: control characters in it become escapes that both understand."""
    sys.stdout.write(escape_controls(text))


def write_json(document: Any, *, indented: bool = False) -> None:
    """Print a document, which ends with its line."""
    write_machine_readable(as_json(document, indented=indented))


def write_answer(document: Any, as_text: Callable[[Any], str], *, as_json: bool) -> None:
    """Print what a command found: for people, or as JSON."""
    if as_json:
        write_json(document, indented=True)
    else:
        write(as_text(document), end="")


def as_json(document: Any, *, indented: bool = False) -> str:
    """Return a document as one line of JSON, or over several lines, with the line's end."""
    from headrace.base.documents import encode_document

    return encode_document(document, indent=indented).decode() + "\n"


def say(line: object, end: str = "\n", *, level: int = logging.ERROR) -> None:
    """Print an error or a question at once; where nobody can read it (a terminal that was closed) that is no error.

    Args:
        line: What to print.
        end: What follows it.
        level: Of the line in a log for programs.
    """
    if _log:
        _log[0].tell(line, level)
        return
    with contextlib.suppress(OSError):
        print(stamp() + showable(line), end=end, file=sys.stderr, flush=True)


def speaker(command: str, *, event: str = "", is_news: bool = False) -> Callable[[object], None]:
    """Return what prints a command's progress: lines that begin with `headrace COMMAND: `, unless it is to be quiet.

    Args:
        command: The command.
        event: What lines that are no events by themselves are in a log for programs; empty: notices.
        is_news: Whether they are printed also when it is to be quiet.
    """

    def speak(line: object) -> None:
        if _log:
            _log[0].tell(EventText(str(line), event) if event else line, logging.WARNING if is_news else logging.INFO)
        elif is_news or not is_quiet():
            say(f"headrace {command}: {line}")

    return speak


def set_log(log: Log | None) -> None:
    """Let a log take what is for people; None: stderr again."""
    _log[:] = [] if log is None else [log]


def progress_stream() -> TextIO | None:
    """Return where progress goes that is no line of a command; None: to stderr."""
    return _log[0].stream("progress") if _log else None


def set_style(*, quiet: bool, timestamps: bool) -> None:
    """Choose how progress is printed from now on."""
    _style["quiet"], _style["timestamps"] = quiet, timestamps


def is_quiet() -> bool:
    """Return whether results and errors alone are to be printed."""
    return _style["quiet"]


def stamp() -> str:
    """Return what a line on stderr begins with: the time in UTC, if that was asked for."""
    if not _style["timestamps"] or _log:
        return ""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z ")


def open_console(stream: IO[str] | None = None) -> Console:
    """Return rich's console on a stream (None: stdout), without markup: a folder may be called `runs[old]`."""
    from rich.console import Console
    from rich.text import Text

    class ShowableConsole(Console):
        """Escapes every plain string; its own colours stay."""

        def render_str(self, text: str, **settings: Any) -> Text:
            return super().render_str(showable(text), **settings)

    return ShowableConsole(file=stream, highlight=False, markup=False)

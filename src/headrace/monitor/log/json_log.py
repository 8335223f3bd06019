"""The log as JSON lines: what goes through `logging`, what commands tell people, and what anybody prints to `sys.stderr`.

How this works. A handler of the root logger makes a line of each record, unless too many of its kind came before; the number of
those that were held back follows when their window has passed. Lines are made by those that log and written by `LineWriter`.
What native libraries write to file descriptor 2 passes by: it stays as they write it, because the last words of a process that
crashes must not depend on anything here.
"""

from __future__ import annotations

import atexit
import functools
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO, cast

from headrace.base.child_setup import Setup, add_setup, remove_setup
from headrace.base.formatting import pluralize
from headrace.base.log_events import EVENTS, FIELDS, EventText, event_fields
from headrace.monitor.log.line import make_line
from headrace.monitor.log.line_writer import LineWriter, call_in_forks
from headrace.monitor.log.rate_limit import RateLimit

#: Logs the first failure of each kind for people; this log has all of them from an observer.
_FOR_PEOPLE = "headrace.failures"
_PYTHON_WARNINGS = "py.warnings"
#: As many times more lines of prints pass, which are not of one kind.
_MORE_PRINTS = 25
_LONGEST_PRINT = 8_192
_MOST_FRAMES = 200
#: Fields that lines of one kind have in common.
_OF_A_KIND = ("event", "code", "stage", "logger")
_TRACEBACK = "Traceback (most recent call last):"


class JsonLog(logging.Handler):
    """See above; thread-safe. Installs itself when it is made, and takes itself out again when it is closed.

    Args:
        level: Of module `logging`: what is less is left out.
        has_thread: Whether a thread writes the lines; else those that log do so, and leave those that cannot be written now.
    """

    def __init__(self, level: int = logging.INFO, *, has_thread: bool = True) -> None:
        super().__init__(level)
        self.worker: int | None = None
        self._is_over = False
        self._forget()
        call_in_forks(self._forget)
        self._stderr = sys.stderr
        self._writer = LineWriter(_descriptor(self._stderr), self._tell_dropped, self._tell_held)
        self._install()
        if has_thread:
            self._writer.start()

    def _forget(self) -> None:
        """Begin, in this process, with nothing that was held back."""
        self._limit: RateLimit[dict[str, Any]] = RateLimit()
        self._limiting = threading.Lock()

    def _install(self) -> None:
        root = logging.getLogger()
        self._before = root.level, logging.getLogger(_FOR_PEOPLE).disabled
        root.addHandler(self)
        root.setLevel(self.level)
        logging.getLogger(_FOR_PEOPLE).disabled = True
        logging.captureWarnings(True)
        sys.stderr = self.stream("stderr")
        self._set_up_children()

    def _set_up_children(self) -> None:
        """Let the processes of stages log in the same way."""
        self._in_children: Setup = functools.partial(_open_in_child, self.level, self.worker)
        add_setup(self._in_children)

    def become_worker(self, number: int) -> None:
        """Go on in a worker process, with a thread."""
        self.worker = number
        remove_setup(self._in_children)
        self._set_up_children()
        self._writer.start()

    def close(self) -> None:
        """Write what is left, and leave things as they were."""
        if self._is_over:
            return
        if isinstance(sys.stderr, LineStream):
            sys.stderr.finish()
        sys.stderr = self._stderr
        remove_setup(self._in_children)
        logging.captureWarnings(False)
        root = logging.getLogger()
        root.removeHandler(self)
        root.setLevel(self._before[0])
        logging.getLogger(_FOR_PEOPLE).disabled = self._before[1]
        self._is_over = True
        self._writer.close()
        super().close()

    # --- what comes in

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit what passes the filters, without the handler's lock, which would be held while a user's `__str__` runs.

        What is shared here has locks of its own.
        """
        passed = self.filter(record)
        if passed:
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        """Make a line of a record; whatever is wrong with it, the caller goes on."""
        try:
            self._take(record)
        except Exception as error:
            what = f"a line could not be made: {type(error).__name__}"
            self._put_limited({"event": "log", "logger": record.name}, "error", what, "unmade")

    def tell(self, line: object, level: int) -> None:
        """Take a line that a command tells people."""
        text = str(line).removeprefix("headrace: ")
        if isinstance(line, EventText):
            fields, level = dict(line.fields), line.level
        else:
            fields = {"event": "error" if level >= logging.ERROR else "notice"}
        if level >= self.level:
            self._put_limited(fields, logging.getLevelName(level).lower(), text, kind=text[:100])

    def stream(self, event: str) -> TextIO:
        """Return a stream whose lines are events."""
        return cast(TextIO, LineStream(self, event))

    def take_print(self, event: str, text: str) -> None:
        """Take what was printed to such a stream: people's own prints have no level."""
        if event == "stderr" or self.level <= logging.INFO:
            self._put_limited({"event": event}, "info", text.removeprefix("headrace: "), times=_MORE_PRINTS)

    # --- what goes out

    def _take(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", "")
        if event not in EVENTS:
            event = "warning" if record.name == _PYTHON_WARNINGS else "log"
        fields = {name: value for name in FIELDS if (value := record.__dict__.get(name)) is not None}
        fields |= {"event": event}
        kind: Any = None
        if event in ("log", "warning"):
            fields["logger"] = record.name
            kind = record.name, record.pathname, record.lineno
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        self._put_limited(fields, record.levelname.lower(), record.getMessage(), kind, record.created)

    def _put_limited(
        self,
        fields: dict[str, Any],
        level: str,
        message: str,
        kind: Any = None,
        created: float | None = None,
        times: int = 1,
    ) -> None:
        key = fields["event"], fields.get("code"), fields.get("stage"), kind
        sample = {"level": level, **{name: value for name, value in fields.items() if name in _OF_A_KIND}}
        with self._limiting:
            is_shown = self._limit.admit(key, sample, time.monotonic(), times=times)
        if is_shown:
            self._writer.put(self._line(fields, level, message, created))

    def _line(self, fields: Mapping[str, Any], level: str, message: str, created: float | None = None) -> bytes:
        who = {"worker": self.worker, "process": os.getpid()}
        return make_line(created or time.time(), level, fields["event"], message, {**who, **fields})

    def _tell_held(self) -> Iterator[bytes]:
        with self._limiting:
            held = list(self._limit.list_held(time.monotonic(), is_over=self._is_over))
        for sample, number, seconds in held:
            message = f"and {number:,} more like this in the last {seconds:.0f} s"
            yield self._line({**sample, "more": number}, sample["level"], message)

    def _tell_dropped(self, number: int) -> bytes:
        fields = event_fields("log_dropped", more=number)
        return self._line(
            fields, "error", f"{pluralize(number, 'line')} lost: nobody read them, or they could not be written"
        )


class LineStream(io.TextIOBase):
    """Stands for `sys.stderr`: what is printed there becomes events, a traceback one.

    Args:
        log: Takes them.
        event: Their name.
    """

    encoding = "utf-8"

    def __init__(self, log: JsonLog, event: str) -> None:
        super().__init__()
        self._log = log
        self._event = event
        self._lock = threading.RLock()
        self._rest = ""
        self._frames: list[str] = []

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return 2: programs that are started write there."""
        return 2

    def write(self, text: str) -> int:
        """Take a part of a line, or several lines."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            if len(self._rest) > _LONGEST_PRINT:
                lines, self._rest = [*lines, self._rest], ""
            for line in lines:
                self._take(line)
        return len(text)

    def finish(self) -> None:
        """Take what has no end yet."""
        with self._lock:
            lines, self._rest = [*self._frames, self._rest], ""
            self._frames = []
            self._tell("\n".join(lines))

    def _take(self, line: str) -> None:
        if self._frames or line == _TRACEBACK:
            self._frames.append(line)
            if line.startswith(" ") or line == _TRACEBACK:
                if len(self._frames) > _MOST_FRAMES:
                    del self._frames[1]
                return
            line, self._frames = "\n".join(self._frames), []
        self._tell(line)

    def _tell(self, text: str) -> None:
        if text.strip():
            self._log.take_print(self._event, text.rstrip())


def _open_in_child(level: int, worker: int | None) -> None:
    """Log in the process of a stage as in its parent."""
    log = JsonLog(level)
    log.worker = worker
    atexit.register(log.close)


def _descriptor(stream: TextIO | None) -> int:
    """Return the number of the file behind a stream."""
    try:
        return stream.fileno() if stream else os.open(os.devnull, os.O_WRONLY)
    except (OSError, ValueError):  # replaced by something that has none
        return 2

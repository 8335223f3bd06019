"""The last warnings and errors that a process logged: after its death they are what it had to say."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Sequence

from headrace.base.formatting import encodable
from headrace.base.redaction import hide_secrets_in_text
from headrace.monitor.recorder.recording import Event

_MOST_LINES, _MOST_CHARACTERS = 20, 400
KIND = "log"


def join_repeated(lines: Sequence[str]) -> list[str]:
    """Return each different line once, in the order in which they came last, with how often it came if that is not once."""
    counts = Counter(lines)
    last = reversed(dict.fromkeys(reversed(lines)))
    return [line if counts[line] == 1 else f"{line} ({counts[line]} times)" for line in last]


class LogLines(logging.Handler):
    """Keeps lines of any logger, without what looks like a secret, until they are taken."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[Event] = deque(maxlen=_MOST_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line; what cannot be formatted is its logger's trouble."""
        try:
            text = f"{record.levelname.lower()}: {record.getMessage()}"[:_MOST_CHARACTERS]
            self._lines.append(Event(time.monotonic_ns(), KIND, encodable(hide_secrets_in_text(text))))
        except Exception:
            pass

    def take(self) -> list[Event]:
        """Return the lines since the last call."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def begin(self) -> None:
        """Listen to all loggers: to the root, and to our own where it hands nothing on."""
        for logger in self._loggers():
            logger.addHandler(self)

    def end(self) -> None:
        """Listen no more."""
        for logger in self._loggers():
            logger.removeHandler(self)

    def _loggers(self) -> list[logging.Logger]:
        own = logging.getLogger("headrace")
        return [logging.getLogger(), *([] if own.propagate else [own])]

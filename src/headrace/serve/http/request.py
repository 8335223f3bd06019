"""A request as handlers see it, and its answer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qsl

import msgspec

#: Characters of an error's reason that are told.
LONGEST_REASON = 2_000


class Answer(msgspec.Struct, frozen=True):
    """What goes back to the client."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    closes: bool = False
    """Close the connection afterwards."""


_CLASSES = {number: f"{number}xx" for number in range(10)}


def class_of(answer: Answer) -> str:
    """Return what counts call an answer: `2xx`, ..."""
    return _CLASSES[answer.status // 100]


def json_answer(status: int, value: object, *headers: tuple[str, str]) -> Answer:
    """Return an answer with a JSON body."""
    return Answer(status, msgspec.json.encode(value), headers=headers)


def error_answer(status: int, code: str, reason: str, *headers: tuple[str, str]) -> Answer:
    """Return an error as every route gives it: `{"error": "reason", "code": "code"}`.

    `error` is a text because the clients of the Open Inference Protocol expect one. A reason may come from anybody's exception:
    what is no Unicode is escaped, and what is long is cut.
    """
    said = (reason or HTTPStatus(status).phrase)[:LONGEST_REASON]
    return json_answer(status, {"error": as_unicode(said), "code": as_unicode(code)}, *headers)


def as_unicode(text: str) -> str:
    """Return a text with escapes in the places of halves of characters, which JSON and UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()


class Sends(Protocol):
    """A connection, as a request sees it."""

    def answer(self, request: Request, answer: Answer) -> None:
        """Send the answer to a request; any thread."""
        ...


class Request:
    """One request with its whole body.

    Attributes:
        method: `GET`, `POST`, ...
        path: Decoded, without the query.
        headers: {name in lower case: value}; a repeated name's values are joined by a comma.
        body: Valid until the request is answered or its client is gone; then the buffer serves another one. Who needs it
            longer makes `bytes` of it.
        received_ns: When its first byte came, ns of the host's monotonic clock.
        lock: Of what the threads that handle and answer it share.
        is_gone: The client went away, or was cut off for being slow: nobody waits for an answer.
    """

    __slots__ = (
        "__weakref__",
        "_is_answered",
        "_on_gone",
        "_query",
        "_query_text",
        "_sends",
        "body",
        "headers",
        "is_gone",
        "lock",
        "method",
        "path",
        "received_ns",
    )

    def __init__(
        self,
        sends: Sends,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        body: bytes | memoryview = b"",
        received_ns: int = 0,
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.received_ns = received_ns
        self.is_gone = False
        self._query_text = query
        self._query: dict[str, str] | None = None
        self._sends = sends
        self._is_answered = False
        self._on_gone: Callable[[], object] | None = None
        self.lock = threading.Lock()

    @property
    def query(self) -> dict[str, str]:
        """What stands behind the question mark; of a repeated name the last."""
        query = self._query
        if query is None:
            text = self._query_text
            query = self._query = dict(parse_qsl(text, keep_blank_values=True)) if text else {}
        return query

    def find_repeated(self) -> str | None:
        """Return a name that stands more than once behind the question mark; None: there is none."""
        counts = Counter(name for name, _ in parse_qsl(self._query_text, keep_blank_values=True))
        return next((name for name, count in counts.items() if count > 1), None)

    def header(self, name: str, default: str = "") -> str:
        """Return a header's value; `name` in lower case."""
        return self.headers.get(name, default)

    def answer(self, answer: Answer) -> bool:
        """Answer it, from any thread; return whether this was the first answer. Others are dropped."""
        if not self.claim():
            return False
        self._sends.answer(self, answer)
        return True

    def claim(self) -> bool:
        """Return whether the caller is the first to answer; the connection does it for what a handler returns."""
        with self.lock:
            if self._is_answered:
                return False
            self._is_answered = True
            # It knows the job, which knows this request: the circle, and its body, would be left to the garbage collector.
            self._on_gone = None
        return True

    def call_when_gone(self, call: Callable[[], object]) -> None:
        """Call a function in the front's thread once the client goes before the answer, or now if it has; must not block."""
        with self.lock:
            if self._is_answered:
                return
            if not self.is_gone:
                self._on_gone = call
                return
        call()

    def note_gone(self) -> None:
        """Note that the client is gone; the first time, what `call_when_gone` was given is called, and may raise."""
        with self.lock:
            self.is_gone = True
            call, self._on_gone = self._on_gone, None
        if call is not None:
            call()

    @property
    def is_answered(self) -> bool:
        """Whether an answer was given."""
        return self._is_answered

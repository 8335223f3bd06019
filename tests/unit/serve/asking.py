"""Requests without a connection, and the answers that they got."""

import threading
from collections.abc import Callable

from headrace.serve.http.request import Answer, Request


class Asker:
    """Stands for a connection: keeps the answers."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.has_answer = threading.Event()

    def answer(self, request: Request, answer: Answer) -> None:
        """Answer."""
        self.answers.append(answer)
        self.has_answer.set()

    def request(self, method: str, target: str, body: bytes = b"", **headers: str) -> Request:
        """Request."""
        path, _, query = target.partition("?")
        return Request(
            self, method, path, query, {name.replace("_", "-"): text for name, text in headers.items()}, body
        )

    def wait(self) -> Answer:
        """Wait."""
        assert self.has_answer.wait(30)
        return self.answers[0]


class Later:
    """Stands for a front's timers: keeps what is to be called."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], object]]] = []

    def __call__(self, seconds: float, call: Callable[[], object]) -> None:
        """Note a call."""
        self.calls.append((seconds, call))

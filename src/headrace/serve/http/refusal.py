"""How a request is refused while it is being read."""

from __future__ import annotations

from headrace.serve.http.request import Answer, error_answer


class BadRequest(Exception):
    """A request that is not read to its end; its connection is closed after the answer.

    Attributes:
        answer: What the client is told.
        code: Why, in a word.
    """

    def __init__(self, status: int, code: str, reason: str, *headers: tuple[str, str]) -> None:
        super().__init__(reason)
        self.answer = error_answer(status, code, reason, *headers)
        self.code = code

    @classmethod
    def with_answer(cls, answer: Answer) -> BadRequest:
        """Return a refusal whose answer somebody else made."""
        refusal = cls(answer.status, "http.refused", "refused before its body was read")
        refusal.answer = answer
        return refusal

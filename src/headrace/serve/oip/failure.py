"""Why a request of the Open Inference Protocol has no response."""

from __future__ import annotations

from headrace.base.errors import HeadraceError


class OipError(HeadraceError):
    """A request cannot be answered.

    Attributes:
        code: Such as `oip.shape`.
        reason: What happened, what was expected, what to do.
        status: The HTTP status that says the same.
        retry_after_seconds: When another try may be worth it; None: it is not, or nobody knows.
    """

    def __init__(self, code: str, reason: str, status: int = 400, retry_after_seconds: float | None = None) -> None:
        super().__init__(reason if f"{code}: " in reason else f"{code}: {reason}")
        self.code = code
        self.reason = reason
        self.status = status
        self.retry_after_seconds = retry_after_seconds

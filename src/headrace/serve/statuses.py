"""The HTTP status that says the same as an error's code."""

from __future__ import annotations

_EXACT = {
    "deadline.passed": 504,
    "serve.busy": 429,
    "serve.killer": 422,
    "serve.starting": 503,
    "serve.stopping": 503,
    "message.size": 413,
    "message.coding": 415,
    "message.array": 422,
}
#: By what stands before the dot. What the client sent is its own fault (4xx); a server that it named is neither's.
_GROUPS = {
    "message": 400,
    "decode": 422,
    "text": 422,
    "ssrf": 422,
    "file": 422,
    "http": 424,
    "brake": 503,
    "shortage": 503,
    "route": 404,
    "result": 500,
}


def status_of(code: str, otherwise: int = 500) -> int:
    """Return the status of an error's code.

    Args:
        code: Such as `decode.corrupt`.
        otherwise: For codes that are not ours: 422 where the item was rejected, by the module for what it holds, and 500
            where it is nobody's fault but ours.
    """
    return _EXACT.get(code) or _GROUPS.get(code.partition(".")[0], otherwise)

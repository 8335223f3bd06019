"""Tells whether a failure means that memory ran out, whichever library says it."""

from __future__ import annotations

from headrace.base.shortage import SIGNS_OF_NO_MEMORY


def is_out_of_memory(failure: BaseException | str) -> bool:
    """Return whether an exception, one of its causes, or a message says that memory ran out."""
    if isinstance(failure, str):
        return bool(SIGNS_OF_NO_MEMORY.search(failure))
    seen: set[int] = set()
    error: BaseException | None = failure
    while error is not None and id(error) not in seen:
        if isinstance(error, MemoryError) or SIGNS_OF_NO_MEMORY.search(f"{type(error).__name__}: {error}"):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False

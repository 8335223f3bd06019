"""What a client may take up, and for how long."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass, replace

#: Files that are left to the run: models, spans, downloads.
_OTHER_FILES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one front. All are on by default: a server without them is taken down by one slow client."""

    request_seconds: float = 30.0
    """From a request's first byte to its last; no byte that comes prolongs it."""
    idle_seconds: float = 30.0
    """A connection without a request."""
    answer_seconds: float = 30.0
    """A client that does not read its answer is cut off after this long."""
    header_bytes: int = 16 * 1024
    """Request line and headers, without the body."""
    header_lines: int = 100
    body_bytes: int = 32 * 1024 * 1024
    """One request's body."""
    total_bytes: int = 256 * 1024 * 1024
    """Bodies of all requests that are being read or answered."""
    connections: int = 10_000
    connection_seconds: float | None = None
    """About how old a connection may become: with its next answer its client is asked to open another (`Connection: close`).
    Where processes share a port, that may be with another of them, so that clients spread again after a restart. None: any."""


def fit_to_files(limits: Limits) -> Limits:
    """Return limits with no more connections than this process may open files for, beside those that the run needs.

    What the system lets a process have at most is asked for first.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY:
        return limits
    return replace(limits, connections=max(1, min(limits.connections, max(soft - _OTHER_FILES, soft // 2))))
